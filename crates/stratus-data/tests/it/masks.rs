//! Masks through the loader: they stay aligned with their images, damaged ones are detected, and nothing
//! depends on the workers.

use std::sync::Arc;

use proptest::prelude::*;
use stratus_data::buffer::IGNORED_LABEL;
use stratus_data::datasets::{IGNORED, IGNORED_PIXEL};
use stratus_data::{
    Augment, BatchBuffer, ColourJitter, DataError, Dataset, LastBatch, Layout, Loader, LoaderConfig, Mix,
    Normalisation, Order, Orientation, Padding, PixelOrder, Position, ResizedCrop, Sample, Scratch,
};

const CLASSES: usize = 4;
/// The classes of blocks; the last is ignored.
const BLOCKS: [u8; 5] = [0, 1, 2, 3, IGNORED_PIXEL];
const CHANNELS: usize = 3;

/// The defect of a mask.
#[derive(Clone, Copy, Debug, PartialEq)]
enum MaskDefect {
    Size,
    Class,
    Missing,
}

/// Images of large blocks with varying sizes and orientations, whose colour encodes the class.
struct Blocks {
    len: usize,
    /// Height and width of the first image; the others grow.
    size: [usize; 2],
    /// True if all images have the same size and are upright.
    alike: bool,
    defect: Option<(usize, MaskDefect)>,
}

impl Blocks {
    fn new(len: usize, size: [usize; 2]) -> Self {
        Self { len, size, alike: false, defect: None }
    }

    fn size_of(&self, index: usize) -> [usize; 2] {
        let [height, width] = self.size;
        if self.alike { self.size } else { [height + index % 7, width + 3 * (index % 5)] }
    }
}

/// The colour of a class in a channel; never black.
fn colour(class: u8, channel: usize) -> u8 {
    let number = if class == IGNORED_PIXEL { CLASSES as u8 } else { class };
    250 - 40 * number - 10 * channel as u8
}

impl Dataset for Blocks {
    fn name(&self) -> &str {
        "blocks"
    }
    fn len(&self) -> usize {
        self.len
    }
    fn classes(&self) -> usize {
        CLASSES
    }
    fn sample_shape(&self) -> Option<[usize; 3]> {
        self.alike.then(|| [CHANNELS, self.size[0], self.size[1]])
    }
    fn sample_name(&self, index: usize) -> String {
        format!("blocks/{index}.png")
    }
    fn label(&self, _: usize) -> Result<u32, DataError> {
        Ok(IGNORED)
    }
    fn has_masks(&self) -> bool {
        true
    }
    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        let [height, width] = self.size_of(index);
        scratch.mask.clear();
        scratch.decoded.clear();
        for at in 0..height * width {
            // Three blocks along each side.
            let (block_row, block_column) = (at / width * 3 / height, at % width * 3 / width);
            let class = BLOCKS[(block_row * 2 + block_column + index) % BLOCKS.len()];
            scratch.mask.push(class);
            scratch.decoded.extend((0..CHANNELS).map(|channel| colour(class, channel)));
        }
        let defect = self.defect.filter(|(defect, _)| *defect == index).map(|(_, defect)| defect);
        match defect {
            Some(MaskDefect::Size) => scratch.mask.truncate(height * width - 1),
            Some(MaskDefect::Class) => scratch.mask[height * width / 2] = CLASSES as u8,
            Some(MaskDefect::Missing) | None => {}
        }
        let exif = if self.alike { 1 } else { index % 8 + 1 };
        Ok(Sample {
            pixels: &scratch.decoded,
            shape: [CHANNELS, height, width],
            dct_scaled: None,
            order: PixelOrder::Interleaved,
            orientation: Orientation::from_exif(exif as u16),
            label: IGNORED,
            mask: (defect != Some(MaskDefect::Missing)).then_some(&scratch.mask),
        })
    }
    fn normalisation(&self) -> Normalisation {
        Normalisation::unit(CHANNELS)
    }
    fn resident_bytes(&self) -> u64 {
        0
    }
}

fn config(batch_size: usize) -> LoaderConfig {
    LoaderConfig {
        seed: 5,
        shape: Some([CHANNELS, 36, 30]),
        layout: Layout::Nhwc,
        last: LastBatch::Keep,
        epochs: Some(2),
        ..LoaderConfig::new(batch_size)
    }
}

/// All augmentations, except the random crop without resizing, which excludes the resized one.
fn all_augmentations() -> Augment {
    Augment {
        shift: 3,
        flip: true,
        cutout: 9,
        resized_crop: Some(ResizedCrop::default()),
        rotation: 30.0,
        zoom: Some([0.5, 2.0]),
        colour: ColourJitter { brightness: 0.4, contrast: 0.4, saturation: 0.4, hue: 0.1 },
        ..Augment::default()
    }
}

fn all(set: Blocks, config: LoaderConfig) -> Vec<BatchBuffer> {
    let mut loader = Loader::new(Arc::new(set), config).unwrap();
    let mut batches = Vec::new();
    while let Some(buffer) = loader.next().unwrap() {
        batches.push(buffer.clone());
        loader.recycle(buffer);
    }
    batches
}

/// Checks that image and mask agree at every pixel of a batch, except near the borders of blocks and of the
/// image, which are blurred in the image. Returns the numbers of compared pixels, and of blank pixels with a
/// class.
fn compare(batch: &BatchBuffer, [_, height, width]: [usize; 3]) -> (usize, usize) {
    const MARGIN: usize = 3;
    let (mut compared, mut blank) = (0, 0);
    let pixels = batch.images.elements::<f32>();
    let plane = height * width;
    for sample in 0..batch.samples {
        let labels = &batch.labels[sample * plane..][..plane];
        for at in 0..plane {
            let (y, x) = (at / width, at % width);
            let inside = (MARGIN..height - MARGIN).contains(&y) && (MARGIN..width - MARGIN).contains(&x);
            if !inside {
                continue;
            }
            let mut neighbours =
                (y - MARGIN..=y + MARGIN).flat_map(|y| (x - MARGIN..=x + MARGIN).map(move |x| (y, x)));
            let even = neighbours.all(|(y, x)| labels[y * width + x] == labels[at]);
            let pixel = &pixels[(sample * plane + at) * CHANNELS..][..CHANNELS];
            if !even || labels[at] == IGNORED_LABEL {
                continue;
            }
            if pixel.iter().all(|&value| value == 0.0) {
                blank += 1;
                continue;
            }
            compared += 1;
            for (channel, value) in pixel.iter().enumerate() {
                let expected = f32::from(colour(labels[at] as u8, channel));
                assert!(
                    (value * 255.0 - expected).abs() < 1.5,
                    "sample {} of epoch {}, pixel ({y}, {x}, {channel}): {} for class {}",
                    batch.indices[sample],
                    batch.epoch,
                    value * 255.0,
                    labels[at]
                );
            }
        }
    }
    (compared, blank)
}

#[test]
fn labels_are_pixel_classes() {
    let set = Blocks { alike: true, ..Blocks::new(3, [36, 30]) };
    let mut scratch = Scratch::default();
    let expected: Vec<i32> = (0..3)
        .flat_map(|index| set.read(index, &mut scratch).unwrap().mask.unwrap().to_vec())
        .map(|class| if class == IGNORED_PIXEL { IGNORED_LABEL } else { i32::from(class) })
        .collect();
    assert!(expected.contains(&IGNORED_LABEL) && expected.contains(&3));
    let config = LoaderConfig { order: Order::Sequential, ..config(4) };
    let batches = all(set, config);
    assert_eq!(batches.len(), 2);
    for batch in &batches {
        assert_eq!(batch.labels[..expected.len()], expected);
        // The fourth row has no sample.
        assert_eq!(batch.samples, 3);
        assert_eq!(batch.labels[expected.len()..], vec![IGNORED_LABEL; 36 * 30]);
        let (compared, blank) = compare(batch, [CHANNELS, 36, 30]);
        assert!(compared > 500 && blank == 0, "{compared} {blank}");
    }
}

#[test]
fn memory_includes_masks() {
    let loader = Loader::new(Arc::new(Blocks::new(8, [36, 30])), config(2)).unwrap();
    assert_eq!(loader.label_len(), 36 * 30);
    let buffer = 2 * 36 * 30 * (CHANNELS * 4 + 4) + 2 * 4 + 2 * 63;
    assert_eq!(loader.memory_bytes(), (3 * buffer + 4 * 8) as u64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn images_and_masks_stay_aligned(
        size in [20usize..90, 20usize..90],
        switches in any::<[bool; 4]>(),
        rotation in prop_oneof![Just(0.0), 0.0..180.0],
        cutout in 0u16..10,
        shift in 0u16..12,
        seed in any::<u64>(),
    ) {
        let [flip, crop, resized, zoomed] = switches;
        // A crop that is not enlarged much, because enlarging blurs the borders.
        let resized_crop = crop.then_some(ResizedCrop { scale: [0.3, 1.0], ..ResizedCrop::default() });
        let config = LoaderConfig {
            seed,
            resize: resized.then_some(48),
            augment: Augment {
                shift,
                flip,
                cutout,
                resized_crop,
                random_crop: !crop,
                rotation,
                zoom: zoomed.then_some([0.7, 1.4]),
                ..Augment::default()
            },
            // Enough images that some pixels are far from borders for every rotation and shift.
            epochs: Some(4),
            ..config(8)
        };
        let (mut compared, mut samples) = (0, 0);
        for batch in all(Blocks::new(16, size), config) {
            let (agree, blank) = compare(&batch, [CHANNELS, 36, 30]);
            compared += agree;
            samples += batch.samples;
            prop_assert!(blank <= batch.samples * usize::from(cutout).pow(2), "{} are blank", blank);
        }
        prop_assert_eq!(samples, 64);
        prop_assert!(compared > 32 * 50, "only {} pixels were compared", compared);
    }
}

/// Images of the batch's size are not interpolated: every pixel has the colour of its block, even next to a
/// reflecting edge.
#[test]
fn images_and_masks_reflect_at_the_same_edge() {
    let augment = Augment { shift: 14, padding: Padding::Reflect, flip: true, ..Augment::default() };
    let (mut compared, mut uncovered) = (0, 0);
    let set = || Blocks { alike: true, ..Blocks::new(16, [36, 30]) };
    for batch in all(set(), LoaderConfig { augment, epochs: Some(4), ..config(8) }) {
        let pixels = batch.images.elements::<f32>().chunks_exact(CHANNELS);
        for (&label, pixel) in batch.labels.iter().zip(pixels) {
            if label == IGNORED_LABEL {
                uncovered += 1;
                continue;
            }
            compared += 1;
            for (channel, value) in pixel.iter().enumerate() {
                let expected = f32::from(colour(label as u8, channel));
                assert!((value * 255.0 - expected).abs() < 0.01, "{} for class {label}", value * 255.0);
            }
        }
    }
    let zero = Augment { padding: Padding::Zero, ..augment };
    let zero = all(set(), LoaderConfig { augment: zero, epochs: Some(4), ..config(8) });
    let ignored =
        zero.iter().flat_map(|batch| batch.labels.iter()).filter(|&&label| label == IGNORED_LABEL).count();
    // The remaining ignored pixels are ignored blocks.
    assert!(compared > 40_000 && 2 * uncovered < ignored, "{compared} {uncovered} {ignored}");
}

#[test]
fn masks_do_not_depend_on_workers_or_resuming() {
    let random_crop = Augment { resized_crop: None, random_crop: true, ..all_augmentations() };
    for (augment, resize) in [(all_augmentations(), None), (random_crop, Some(40))] {
        let config = LoaderConfig { augment, resize, epochs: Some(3), ..config(4) };
        let contents = |batches: &[BatchBuffer]| {
            let content =
                |b: &BatchBuffer| (b.epoch, b.index, b.images.to_vec(), b.labels.clone(), b.indices.clone());
            batches.iter().map(content).collect::<Vec<_>>()
        };
        let set = || Blocks::new(11, [50, 40]);
        let expected = contents(&all(set(), config.clone()));
        assert_eq!(expected.len(), 9);
        assert_ne!(expected[0].3, expected[3].3);
        for workers in [1, 2, 4] {
            let batches = all(set(), LoaderConfig { workers, slots: 5, ..config.clone() });
            assert_eq!(contents(&batches), expected, "{workers} workers");
        }
        for done in [1, 4, 8] {
            let start = Position { epoch: done as u32 / 3, batch: done as u64 % 3 };
            let batches = all(set(), LoaderConfig { start, workers: 2, ..config.clone() });
            assert_eq!(contents(&batches), expected[done..], "resumed after {done}");
        }
    }
}

#[test]
fn rejects_mixing_of_masks() {
    let mix = Mix { mixup: 0.2, ..Mix::default() };
    let error =
        Loader::new(Arc::new(Blocks::new(4, [50, 40])), LoaderConfig { mix, ..config(4) }).unwrap_err();
    assert_eq!(
        error.to_string(),
        "mix: is on, but `blocks` has masks; only samples with a single class can be mixed"
    );
}

#[test]
fn damaged_masks_are_errors_or_skipped_rows() {
    for (defect, problem) in [
        (MaskDefect::Size, "the mask has 2375 pixels, but the image is 54×44"),
        (MaskDefect::Class, "the mask has class 4, but classes go from 0 to 3, and 255 is ignored"),
        (MaskDefect::Missing, "the mask is missing"),
    ] {
        let set = || Blocks { defect: Some((2, defect)), ..Blocks::new(4, [52, 38]) };
        let config = LoaderConfig { order: Order::Sequential, epochs: Some(1), ..config(4) };
        let mut loader = Loader::new(Arc::new(set()), config.clone()).unwrap();
        assert_eq!(
            loader.next().unwrap_err().to_string(),
            format!(
                "batch 0 of epoch 0: blocks/2.png: {problem}; replace it, or set data.on_bad_sample = \
                 \"skip\" to train without it"
            )
        );
        let mut loader = Loader::new(Arc::new(set()), LoaderConfig { skip_damaged: true, ..config }).unwrap();
        let batch = loader.next().unwrap().unwrap();
        assert_eq!(loader.skipped().into_iter().collect::<Vec<_>>(), [(2, problem.to_owned())]);
        let plane = 36 * 30;
        for (sample, labels) in batch.labels.chunks_exact(plane).enumerate() {
            assert_eq!(labels.iter().all(|&label| label == IGNORED_LABEL), sample == 2);
        }
        let image = &batch.images.elements::<f32>()[2 * plane * CHANNELS..][..plane * CHANNELS];
        assert!(image.iter().all(|&value| value == 0.0));
        let (compared, _) = compare(&batch, [CHANNELS, 36, 30]);
        assert!(compared > 500, "{compared}");
    }
}
