//! The loader: order, content, determinism, bounded memory, errors, shutdown.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use half::{bf16, f16};
use stratus_base::ALIGNMENT;
use stratus_data::buffer::IGNORED_LABEL;
use stratus_data::datasets::SyntheticOptions;
use stratus_data::{
    Augment, BatchBuffer, BatchMemory, ColourJitter, DataError, Dataset, Element, LastBatch, Layout, Loader,
    LoaderConfig, LoaderError, Mix, Normalisation, OpenOptions, Order, Orientation, Padding, PixelOrder,
    Position, ResizedCrop, Sample, Scratch, Split, mix, open,
};

/// Samples that encode their index: pixel p of sample i is i × 31 + p.
struct Counting {
    len: usize,
    shape: [usize; 3],
    classes: usize,
    fail_at: Option<usize>,
    panic_at: Option<usize>,
    reads: AtomicUsize,
}

impl Counting {
    fn new(len: usize) -> Self {
        Self { len, shape: [3, 4, 5], classes: 7, fail_at: None, panic_at: None, reads: AtomicUsize::new(0) }
    }

    fn pixel(index: usize, at: usize) -> u8 {
        (index * 31 + at) as u8
    }
}

impl Dataset for Counting {
    fn name(&self) -> &str {
        "counting"
    }
    fn len(&self) -> usize {
        self.len
    }
    fn classes(&self) -> usize {
        self.classes
    }
    fn sample_shape(&self) -> Option<[usize; 3]> {
        Some(self.shape)
    }
    fn label(&self, index: usize) -> Result<u32, DataError> {
        Ok((index % 7) as u32)
    }
    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        assert_ne!(self.panic_at, Some(index), "sample {index} panics");
        if self.fail_at == Some(index) {
            return Err(DataError::SampleOutOfRange { dataset: "counting".to_owned(), index, len: self.len });
        }
        // Later batches finish earlier.
        thread::sleep(Duration::from_micros(200 * (3 - index as u64 % 4)));
        scratch.decoded.clear();
        scratch.decoded.extend((0..self.shape.iter().product()).map(|at| Self::pixel(index, at)));
        Ok(Sample {
            pixels: &scratch.decoded,
            shape: self.shape,
            dct_scaled: None,
            order: PixelOrder::Planes,
            orientation: Orientation::default(),
            label: self.label(index)?,
            mask: None,
        })
    }
    fn normalisation(&self) -> Normalisation {
        Normalisation { mean: vec![0.1, 0.2, 0.3], std: vec![0.5, 0.6, 0.7] }
    }
    fn resident_bytes(&self) -> u64 {
        0
    }
}

fn config(batch_size: usize) -> LoaderConfig {
    LoaderConfig { seed: 11, ..LoaderConfig::new(batch_size) }
}

fn loader(len: usize, config: LoaderConfig) -> Loader {
    Loader::new(Arc::new(Counting::new(len)), config).unwrap()
}

/// Everything the loader delivers, at most `limit` batches.
fn all(loader: &mut Loader, limit: usize) -> Vec<BatchBuffer> {
    let mut batches = Vec::new();
    while batches.len() < limit {
        let Some(buffer) = loader.next().unwrap() else { break };
        batches.push(buffer.clone());
        loader.recycle(buffer);
    }
    batches
}

/// The content that two deliveries of a batch must share.
type Content<'a> = (u32, u64, usize, &'a [u8], &'a [i32], &'a [u32]);

fn content(batches: &[BatchBuffer]) -> Vec<Content<'_>> {
    batches.iter().map(|b| (b.epoch, b.index, b.samples, &*b.images, &*b.labels, &*b.indices)).collect()
}

/// A loader whose samples are read by another process returns the positions of its batches and reads nothing.
#[test]
fn positions_only_loader_gives_positions_without_reading() {
    for last in [LastBatch::Keep, LastBatch::Drop] {
        for start in [Position::default(), Position { epoch: 1, batch: 2 }] {
            let settings = LoaderConfig { last, start, epochs: Some(3), ..config(4) };
            let set = Arc::new(Counting::new(10));
            let elsewhere = LoaderConfig { positions_only: true, ..settings.clone() };
            let mut elsewhere = Loader::new(Arc::clone(&set) as Arc<dyn Dataset>, elsewhere).unwrap();
            let mut here = loader(10, settings);
            let positions = |loader: &mut Loader| -> Vec<(u32, u64, usize)> {
                all(loader, 99).iter().map(|batch| (batch.epoch, batch.index, batch.samples)).collect()
            };
            assert_eq!(elsewhere.batches_per_epoch(), here.batches_per_epoch());
            let batch = elsewhere.next().unwrap().unwrap();
            assert_eq!((batch.images.len(), &*batch.labels), (0, &[IGNORED_LABEL; 4][..]));
            elsewhere.recycle(batch);
            assert_eq!(positions(&mut elsewhere), positions(&mut here)[1..]);
            assert!(elsewhere.next().unwrap().is_none() && elsewhere.memory_bytes() < here.memory_bytes());
            assert_eq!(set.reads.load(Ordering::Relaxed), 0);
        }
    }
}

#[test]
fn sequential_epoch_has_normalised_samples_in_order() {
    let settings =
        LoaderConfig { order: Order::Sequential, last: LastBatch::Keep, epochs: Some(1), ..config(4) };
    let mut loader = loader(10, settings);
    assert_eq!((loader.batches_per_epoch(), loader.samples_per_epoch()), (3, 10));
    let batches = all(&mut loader, 99);
    assert_eq!(
        batches.iter().map(|b| (b.epoch, b.index, b.samples)).collect::<Vec<_>>(),
        [(0, 0, 4), (0, 1, 4), (0, 2, 2)]
    );
    let Normalisation { mean, std } = Counting::new(10).normalisation();
    for batch in &batches {
        assert_eq!(batch.images.as_ptr() as usize % ALIGNMENT, 0);
        let images: &[f32] = batch.images.elements();
        assert_eq!((images.len(), batch.labels.len(), batch.indices.len()), (4 * 60, 4, batch.samples));
        for row in 0..4 {
            let image = &images[row * 60..][..60];
            if row >= batch.samples {
                assert!(image.iter().all(|value| value.to_bits() == 0));
                assert_eq!(batch.labels[row], IGNORED_LABEL);
                continue;
            }
            let index = batch.index as usize * 4 + row;
            assert_eq!((batch.indices[row] as usize, batch.labels[row] as usize), (index, index % 7));
            for (at, value) in image.iter().enumerate() {
                let channel = at / 20;
                let pixel = f32::from(Counting::pixel(index, at));
                // One multiplication and one addition, each rounded to f32, with constants rounded once.
                let (mean, std) = (f64::from(mean[channel]), f64::from(std[channel]));
                let expected = pixel * (1.0 / (255.0 * std)) as f32 + (-mean / std) as f32;
                assert_eq!(value.to_bits(), expected.to_bits());
                assert!((f64::from(*value) - (f64::from(pixel) / 255.0 - mean) / std).abs() < 1e-6);
            }
        }
    }
    assert!(loader.next().unwrap().is_none());
    assert!(loader.next().unwrap().is_none());
}

#[test]
fn layouts_and_elements_hold_the_same_values() {
    let first = |layout, element| {
        let mut loader = loader(8, LoaderConfig { layout, element, ..config(8) });
        loader.next().unwrap().unwrap()
    };
    let nchw = first(Layout::Nchw, Element::F32);
    let nhwc = first(Layout::Nhwc, Element::F32);
    let half = first(Layout::Nchw, Element::Bf16);
    assert_eq!(half.images.len() * 2, nchw.images.len());
    let (planes, interleaved): (&[f32], &[f32]) = (nchw.images.elements(), nhwc.images.elements());
    for sample in 0..8 {
        for channel in 0..3 {
            for at in 0..20 {
                let value = planes[sample * 60 + channel * 20 + at];
                assert_eq!(value, interleaved[sample * 60 + at * 3 + channel]);
                assert_eq!(
                    bf16::from_f32(value),
                    half.images.elements::<bf16>()[sample * 60 + channel * 20 + at]
                );
            }
        }
    }
}

/// Bytes that are normalised by the same scales and shifts give the same bits, for every augmentation.
#[test]
fn normalised_bytes_equal_the_other_element_types() {
    let changed = Augment {
        shift: 1,
        flip: true,
        colour: ColourJitter { brightness: 0.4, hue: 0.1, ..ColourJitter::default() },
        ..Augment::default()
    };
    let reflected = Augment { padding: Padding::Reflect, ..changed };
    let cropped = Augment { resized_crop: Some(ResizedCrop::default()), flip: true, ..Augment::default() };
    let scale_shifts = Counting::new(10).normalisation().scale_shifts();
    for augment in [Augment::default(), changed, reflected, cropped] {
        for layout in [Layout::Nchw, Layout::Nhwc] {
            // The last batch has rows without a sample: zeros for every type.
            let batches_of = |element| {
                let last = LastBatch::Keep;
                let settings = LoaderConfig { element, layout, augment, last, epochs: Some(2), ..config(4) };
                all(&mut loader(10, settings), 99)
            };
            let batches = batches_of(Element::U8).into_iter().zip(batches_of(Element::F32));
            let narrow = batches_of(Element::Bf16).into_iter().zip(batches_of(Element::F16));
            let mut compared = 0;
            for ((bytes, floats), (bf16s, f16s)) in batches.zip(narrow) {
                assert_eq!((&bytes.indices, &bytes.labels), (&floats.indices, &floats.labels));
                assert_eq!((bytes.images.len(), f16s.images.len()), (4 * 60, 2 * 4 * 60));
                for (at, &pixel) in bytes.images.iter().enumerate() {
                    if at / 60 >= bytes.samples {
                        assert_eq!((pixel, floats.images.elements::<f32>()[at]), (0, 0.0));
                        continue;
                    }
                    let channel = if layout == Layout::Nhwc { at % 3 } else { at / 20 % 3 };
                    let number = scale_shifts[channel].normalise(pixel);
                    assert_eq!(floats.images.elements::<f32>()[at].to_bits(), number.to_bits());
                    assert_eq!(bf16s.images.elements::<bf16>()[at], bf16::from_f32(number));
                    assert_eq!(f16s.images.elements::<f16>()[at], f16::from_f32(number));
                    compared += 1;
                }
            }
            assert_eq!(compared, 2 * 10 * 60);
        }
    }
}

#[test]
fn every_epoch_is_its_own_permutation() {
    let mut loader = loader(30, LoaderConfig { epochs: Some(3), ..config(10) });
    let batches = all(&mut loader, 99);
    let epochs: Vec<Vec<u32>> = batches
        .chunks(3)
        .map(|epoch| epoch.iter().flat_map(|batch| batch.indices.clone()).collect())
        .collect();
    assert_eq!(epochs.len(), 3);
    for (number, epoch) in epochs.iter().enumerate() {
        let mut sorted = epoch.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..30).collect::<Vec<_>>());
        assert!(epochs.iter().enumerate().all(|(other, order)| other == number || order != epoch));
    }
}

/// The bytes are the same for any number of workers and slots, and after resuming at any position.
#[test]
fn batches_do_not_depend_on_workers_slots_or_resuming() {
    let mixed = Mix { mixup: 0.5, cutmix: 1.0, probability: 0.9 };
    // Batches of resized samples are split among the workers; copied samples form a single chunk.
    let shape = Some([3, 6, 7]);
    for (mix, shape) in [(Mix::default(), None), (mixed, None), (Mix::default(), shape), (mixed, shape)] {
        let base = LoaderConfig {
            shape,
            augment: Augment { shift: 2, ..Augment::default() },
            mix,
            last: LastBatch::Keep,
            layout: Layout::Nhwc,
            epochs: Some(3),
            ..config(8)
        };
        let expected = all(&mut loader(29, base.clone()), 99);
        assert_eq!(expected.len(), 12);
        for (workers, slots) in [(1, 1), (2, 1), (2, 3), (5, 4), (4, 9), (16, 2), (16, 19)] {
            let batches = all(&mut loader(29, LoaderConfig { workers, slots, ..base.clone() }), 99);
            assert_eq!(content(&batches), content(&expected), "{workers} workers, {slots} slots");
        }
        for done in 0..12 {
            let mut before = loader(29, LoaderConfig { workers: 3, ..base.clone() });
            all(&mut before, done);
            let start = before.position();
            assert_eq!(start, Position { epoch: done as u32 / 4, batch: done as u64 % 4 });
            let batches = all(&mut loader(29, LoaderConfig { workers: 2, start, ..base.clone() }), 99);
            assert_eq!(content(&batches), content(&expected[done..]), "resumed after {done}");
        }
        let start = Position { epoch: 1, batch: 4 };
        let batches = all(&mut loader(29, LoaderConfig { start, ..base.clone() }), 99);
        assert_eq!(content(&batches), content(&expected[8..]));
    }
}

/// With slow samples and more workers than cores, the bytes are the same.
#[test]
fn many_waiting_workers_deliver_the_same_batches() {
    let batches = |workers: usize, delay: Duration, shape| {
        let size = SyntheticOptions { images: 48, delay, ..SyntheticOptions::default() };
        let options = OpenOptions { shape: [3, 20, 20], synthetic: size, ..OpenOptions::default() };
        let dataset = open("synthetic", Path::new(""), Split::Train, &options).unwrap();
        let slots = workers + 3;
        let settings = LoaderConfig { shape, workers, slots, epochs: Some(1), ..config(12) };
        all(&mut Loader::new(Arc::from(dataset), settings).unwrap(), 99)
    };
    for shape in [None, Some([3, 16, 16])] {
        let expected = batches(1, Duration::ZERO, shape);
        assert_eq!(expected.len(), 4);
        for workers in [1, 4, 16] {
            let delayed = batches(workers, Duration::from_millis(10), shape);
            assert_eq!(content(&delayed), content(&expected), "{workers} workers");
        }
    }
}

/// Samples that can only be read after others: a worker that waits for an unread one fails.
struct Dependent {
    inner: Counting,
    /// A sample, and the sample that must be read before it.
    after: [(usize, usize); 2],
    read: Mutex<HashSet<usize>>,
    changed: Condvar,
}

impl Dependent {
    fn new(after: [(usize, usize); 2]) -> Self {
        Self { inner: Counting::new(40), after, read: Mutex::default(), changed: Condvar::new() }
    }
}

impl Dataset for Dependent {
    fn name(&self) -> &str {
        "dependent"
    }
    fn len(&self) -> usize {
        self.inner.len()
    }
    fn classes(&self) -> usize {
        self.inner.classes()
    }
    fn sample_shape(&self) -> Option<[usize; 3]> {
        self.inner.sample_shape()
    }
    fn label(&self, index: usize) -> Result<u32, DataError> {
        self.inner.label(index)
    }
    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        let mut read = self.read.lock().unwrap();
        for (_, before) in self.after.iter().filter(|(sample, _)| *sample == index) {
            let waiting =
                self.changed.wait_timeout_while(read, Duration::from_secs(60), |read| !read.contains(before));
            let (now, outcome) = waiting.unwrap();
            assert!(!outcome.timed_out(), "nobody reads sample {before} while another waits for it");
            read = now;
        }
        read.insert(index);
        self.changed.notify_all();
        drop(read);
        self.inner.read(index, scratch)
    }
    fn normalisation(&self) -> Normalisation {
        self.inner.normalisation()
    }
    fn resident_bytes(&self) -> u64 {
        0
    }
}

/// Two workers and one buffer: while one waits for the first sample, the other reads the rest of the batch.
#[test]
fn splits_a_batch_among_workers() {
    let settings =
        LoaderConfig { order: Order::Sequential, shape: Some([3, 6, 7]), workers: 2, slots: 1, ..config(8) };
    let dataset = Arc::new(Dependent::new([(0, 7), (8, 15)]));
    let mut shared = Loader::new(dataset, settings.clone()).unwrap();
    let expected = all(&mut loader(40, LoaderConfig { workers: 1, ..settings }), 3);
    assert_eq!(content(&all(&mut shared, 3)), content(&expected));
}

/// While one worker waits for a sample of the first batch, the others fill all other buffers.
#[test]
fn slow_batch_does_not_block_others() {
    for shape in [None, Some([3, 6, 7])] {
        let settings = LoaderConfig { order: Order::Sequential, shape, workers: 2, slots: 4, ..config(4) };
        let dataset = Arc::new(Dependent::new([(0, 15), (19, 2)]));
        let mut shared = Loader::new(dataset, settings.clone()).unwrap();
        let expected = all(&mut loader(40, LoaderConfig { workers: 1, ..settings }), 6);
        assert_eq!(content(&all(&mut shared, 6)), content(&expected), "{shape:?}");
    }
}

/// Fewer workers deliver the same batches; deactivated workers can be activated again.
#[test]
fn active_workers_can_change_while_running() {
    let base = LoaderConfig { shape: Some([3, 6, 7]), slots: 5, ..config(4) };
    let expected = all(&mut loader(40, base.clone()), 30);
    let mut loader = loader(40, LoaderConfig { workers: 6, ..base });
    let mut batches = Vec::new();
    for active in [1, 6, 0, 3, 99, 1] {
        loader.set_active_workers(active);
        batches.extend(all(&mut loader, 5));
    }
    assert_eq!(content(&batches), content(&expected));
}

/// A mixed batch has the same samples, each with its own class and that of another sample; the padding rows
/// of an incomplete batch stay empty.
#[test]
fn mixed_samples_have_two_classes_and_a_share() {
    let base = LoaderConfig { last: LastBatch::Keep, epochs: Some(2), ..config(8) };
    let alone = all(&mut loader(29, base.clone()), 99);
    let mut loader = loader(29, LoaderConfig { mix: Mix { mixup: 1.0, ..Mix::default() }, ..base });
    assert_eq!(loader.label_len(), mix::LABELS_PER_SAMPLE);
    let mixed = all(&mut loader, 99);
    assert_eq!(mixed.len(), alone.len());
    let mut changed = 0;
    for (mixed, alone) in mixed.iter().zip(&alone) {
        assert_eq!((&mixed.indices, mixed.samples), (&alone.indices, alone.samples));
        let pixels =
            |batch: &BatchBuffer, row: usize| batch.images.elements::<f32>()[row * 60..][..60].to_vec();
        for (row, labels) in mixed.labels.chunks_exact(mix::LABELS_PER_SAMPLE).enumerate() {
            let (plain, blended) = (pixels(alone, row), pixels(mixed, row));
            if row >= mixed.samples {
                assert_eq!(labels, [IGNORED_LABEL; mix::LABELS_PER_SAMPLE]);
                assert!(blended.iter().all(|value| value.to_bits() == 0));
                continue;
            }
            let previous = (row + alone.samples - 1) % alone.samples;
            let share = labels[2] as f32 / mix::FULL_SHARE as f32;
            let other = if labels[2] > 0 { previous } else { row };
            assert_eq!(labels[..2], [alone.labels[row], alone.labels[other]]);
            for ((blended, plain), other) in blended.iter().zip(&plain).zip(pixels(alone, previous)) {
                assert!((blended - (plain * (1.0 - share) + other * share)).abs() < 1e-6);
            }
            changed += usize::from(blended != plain);
        }
    }
    assert!(changed > 50, "{changed} of 58 samples are mixed");
}

#[test]
fn resuming_skips_delivered_samples() {
    let dataset = Arc::new(Counting::new(20));
    let settings = LoaderConfig { start: Position { epoch: 4, batch: 3 }, epochs: Some(5), ..config(5) };
    let mut loader = Loader::new(Arc::clone(&dataset) as Arc<dyn Dataset>, settings).unwrap();
    assert_eq!(all(&mut loader, 99).len(), 1);
    assert_eq!(dataset.reads.load(Ordering::Relaxed), 5);
}

/// Back-pressure: without a consumer the workers fill only the slots; the same buffers circulate.
#[test]
fn memory_is_bounded_by_the_slots() {
    let dataset = Arc::new(Counting::new(64));
    let settings = LoaderConfig { workers: 3, slots: 4, ..config(8) };
    let mut loader = Loader::new(Arc::clone(&dataset) as Arc<dyn Dataset>, settings).unwrap();
    let bytes = loader.memory_bytes();
    assert_eq!(bytes, 4 * (8 * 60 * 4 + 63 + 8 * 8 + 63) + 4 * 64);
    let mut pointers = HashSet::new();
    for _ in 0..40 {
        let buffer = loader.next().unwrap().unwrap();
        pointers.insert((
            buffer.images.as_ptr() as usize,
            buffer.labels.as_ptr() as usize,
            buffer.indices.as_ptr() as usize,
        ));
        loader.recycle(buffer);
    }
    assert!(pointers.len() <= 4, "{pointers:?}");
    let held: Vec<BatchBuffer> = (0..4).map(|_| loader.next().unwrap().unwrap()).collect();
    assert_eq!(dataset.reads.load(Ordering::Relaxed), 44 * 8);
    let error = loader.next().unwrap_err();
    assert!(matches!(error, LoaderError::NoFreeBuffer { slots: 4 }), "{error}");
    for buffer in held {
        loader.recycle(buffer);
    }
    assert_eq!(loader.next().unwrap().unwrap().index, 4);
}

#[test]
fn rejects_replaced_buffers() {
    let mut one = loader(8, LoaderConfig { order: Order::Sequential, slots: 1, ..config(2) });
    let mut two = loader(8, LoaderConfig { slots: 1, ..config(4) });
    one.recycle(two.next().unwrap().unwrap());
    let mut buffer = one.next().unwrap().unwrap();
    assert_eq!(buffer.labels.len(), 2);
    buffer.images = BatchMemory::default();
    one.recycle(buffer);
    assert_eq!(
        one.next().unwrap_err().to_string(),
        "batch 1 of epoch 0: recycled batch buffer has 0 bytes of images, expected 480, or another number of \
         labels"
    );
}

#[test]
fn rejects_buffers_larger_than_memory() {
    let settings = LoaderConfig { last: LastBatch::Keep, ..config(1 << 50) };
    let error = Loader::new(Arc::new(Counting::new(10)), settings).unwrap_err();
    assert!(matches!(error, LoaderError::Memory { .. }), "{error}");
}

#[test]
fn delivers_earlier_batches_before_an_error() {
    for (workers, shape) in [(1, None), (4, None), (1, Some([3, 6, 7])), (4, Some([3, 6, 7]))] {
        let dataset = Counting { fail_at: Some(13), ..Counting::new(40) };
        let settings = LoaderConfig { order: Order::Sequential, shape, workers, slots: 6, ..config(4) };
        let mut loader = Loader::new(Arc::new(dataset), settings).unwrap();
        assert_eq!(all(&mut loader, 3).last().unwrap().index, 2);
        assert_eq!(
            loader.next().unwrap_err().to_string(),
            "batch 3 of epoch 0: sample 13 is out of range: `counting` has 40 samples"
        );
        assert!(matches!(loader.next(), Err(LoaderError::Stopped)));
    }
}

#[test]
fn reports_worker_panics() {
    for (workers, shape) in [(1, None), (3, None), (3, Some([3, 6, 7]))] {
        let dataset = Counting { panic_at: Some(5), ..Counting::new(40) };
        let settings = LoaderConfig { order: Order::Sequential, shape, workers, ..config(4) };
        let mut loader = Loader::new(Arc::new(dataset), settings).unwrap();
        all(&mut loader, 1);
        let error = loader.next().unwrap_err().to_string();
        assert!(error.starts_with("batch 1 of epoch 0: a loader thread panicked: "), "{error}");
        assert!(error.contains("sample 5 panics"), "{error}");
    }
}

#[test]
fn rejects_labels_out_of_range() {
    let dataset = Counting { classes: 3, ..Counting::new(40) };
    let settings = LoaderConfig { order: Order::Sequential, ..config(4) };
    let error = Loader::new(Arc::new(dataset), settings).unwrap().next().unwrap_err().to_string();
    assert!(error.contains("counting: sample 3 has label 3, but labels go from 0 to 2"), "{error}");
}

#[test]
fn dropping_the_loader_ends_its_workers() {
    for slots in [1, 3] {
        for taken in 0..3 {
            let dataset = Arc::new(Counting::new(64));
            let settings = LoaderConfig { workers: 4, slots, ..config(4) };
            let mut loader = Loader::new(Arc::clone(&dataset) as Arc<dyn Dataset>, settings).unwrap();
            all(&mut loader, taken);
            drop(loader);
            assert_eq!(Arc::strong_count(&dataset), 1);
        }
    }
}

#[test]
fn rejects_invalid_config_by_key() {
    let error =
        |settings: LoaderConfig| Loader::new(Arc::new(Counting::new(10)), settings).unwrap_err().to_string();
    for (settings, message) in [
        (config(0), "batch_size: is 0, expected at least 1"),
        (LoaderConfig { workers: 0, ..config(1) }, "workers: is 0, expected at least 1"),
        (LoaderConfig { slots: 0, ..config(1) }, "slots: is 0, expected at least 1"),
        (config(11), "batch_size: is 11, but `counting` has only 10 samples; set at most 10"),
        (
            LoaderConfig { normalisation: Some(Normalisation::unit(1)), ..config(1) },
            "normalisation: must have a mean and a positive deviation for each of the 3 channels of \
             `counting`",
        ),
        (
            LoaderConfig { augment: Augment { shift: 4, ..Augment::default() }, ..config(1) },
            "augment: shift is 4 pixels, but images are 4×5; set less than 4",
        ),
        (
            LoaderConfig { augment: Augment { rotation: 181.0, ..Augment::default() }, ..config(1) },
            "augment: rotation is 181 degrees, expected 0 to 180",
        ),
        (
            LoaderConfig { augment: Augment { zoom: Some([2.0, 1.0]), ..Augment::default() }, ..config(1) },
            "augment: zoom is [2, 1]; expected a minimum and a maximum between 0.0625 and 16",
        ),
        (
            LoaderConfig {
                augment: Augment {
                    random_crop: true,
                    resized_crop: Some(ResizedCrop::default()),
                    ..Augment::default()
                },
                ..config(1)
            },
            "augment: random_crop and resized_crop are mutually exclusive",
        ),
        (
            LoaderConfig {
                augment: Augment {
                    colour: ColourJitter { hue: 0.6, ..ColourJitter::default() },
                    ..Augment::default()
                },
                ..config(1)
            },
            "augment: colour has brightness 0, contrast 0, saturation 0 and hue 0.6; expected 0 to 16 for \
             the first three, 0 to 0.5 for hue",
        ),
        (
            LoaderConfig { mix: Mix { cutmix: -1.0, ..Mix::default() }, ..config(1) },
            "mix: cutmix is -1, expected 0 to 10000",
        ),
        (
            LoaderConfig {
                element: Element::U8,
                augment: Augment { cutout: 2, ..Augment::default() },
                ..config(1)
            },
            "element: is u8, but augment.cutout blanks pixels with the mean, which bytes cannot represent; \
             turn cutout off, or set element to f32, bf16 or f16",
        ),
        (
            LoaderConfig {
                element: Element::U8,
                augment: Augment { rotation: 5.0, ..Augment::default() },
                ..config(1)
            },
            "element: is u8, but augment.rotation blanks pixels with the mean, which bytes cannot represent; \
             turn rotation off, or set element to f32, bf16 or f16",
        ),
        (
            LoaderConfig {
                element: Element::U8,
                augment: Augment { zoom: Some([0.9, 1.1]), ..Augment::default() },
                ..config(1)
            },
            "element: is u8, but augment.zoom blanks pixels with the mean, which bytes cannot represent; \
             turn zoom off, or set element to f32, bf16 or f16",
        ),
        (
            LoaderConfig { element: Element::U8, mix: Mix { mixup: 0.2, ..Mix::default() }, ..config(1) },
            "element: is u8, but mix needs normalised images; turn mix off, or set element \
             to f32, bf16 or f16",
        ),
        (
            LoaderConfig { last: LastBatch::Keep, ..config(usize::MAX / 2) },
            "batch_size: 9223372036854775807 samples in 3 slots exceed the address space",
        ),
        (
            LoaderConfig { start: Position { epoch: 0, batch: 6 }, ..config(2) },
            "start: is batch 6 of an epoch of 5 batches",
        ),
    ] {
        assert_eq!(error(settings), message);
    }
}

/// An epoch of the 10,000 test digits.
#[test]
fn loads_the_mnist_test_set() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/mnist");
    let dataset: Arc<dyn Dataset> =
        open("mnist", &root, Split::Test, &OpenOptions::default()).unwrap().into();
    let settings = LoaderConfig { last: LastBatch::Keep, workers: 2, epochs: Some(1), ..config(1024) };
    let mut loader = Loader::new(dataset, settings).unwrap();
    let (mut samples, mut classes, mut sum) = (0, [0u32; 10], 0f64);
    while let Some(buffer) = loader.next().unwrap() {
        samples += buffer.samples;
        buffer.labels[..buffer.samples].iter().for_each(|&label| classes[label as usize] += 1);
        sum += buffer.images.elements::<f32>().iter().copied().map(f64::from).sum::<f64>();
        loader.recycle(buffer);
    }
    assert_eq!(samples, 10_000);
    assert_eq!(classes, [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]);
    // The test digits are slightly brighter than the training digits, whose mean becomes 0.
    assert!((sum / 7_840_000.0 - 0.006).abs() < 0.002, "{}", sum / 7_840_000.0);
}
