//! Filling rows of a batch: samples are read, cut, changed and converted.

use stratus_base::AlignedBytes;

use super::ring::Part;
use super::{Shared, lock};
use crate::buffer::IGNORED_LABEL;
use crate::datasets::{IGNORED_PIXEL, Sample, Scratch};
use crate::error::DataError;
use crate::transform::augment::Augment;
use crate::transform::colour::Picture;
use crate::transform::frame::{Framed, Framer, Orientation, Region};
use crate::transform::mask::{MaskWriter, StoredMask, greatest_class};
use crate::transform::pixels::PixelOrder;

/// Bytes of pixels that a worker gathers before it converts them: they fit the L1 cache.
const STAGED_BYTES: usize = 16 << 10;
/// Rows of samples that need no more than a copy are shared out in pieces of this size: less is not worth
/// asking for.
const WORTH_SHARING: usize = 256 << 10;

impl Shared {
    /// The fewest rows that a worker takes at a time.
    pub(super) fn least_rows(&self) -> usize {
        if self.as_stored && !self.dataset.masks() {
            WORTH_SHARING.div_ceil(self.sample_bytes.max(1))
        } else {
            1
        }
    }

    /// Fills the rows of a part with the samples `worker.indices`.
    pub(super) fn fill(&self, part: &mut Part, worker: &mut WorkerState) -> Result<(), DataError> {
        let indices = std::mem::take(&mut worker.indices);
        let filled = self.fill_rows(part, &indices, worker);
        worker.indices = indices;
        if let (None, Some(library)) = (self.jpeg.get(), worker.scratch.images.jpeg_library()) {
            self.jpeg.get_or_init(|| library.clone());
        }
        filled
    }

    fn fill_rows(&self, part: &mut Part, indices: &[u32], worker: &mut WorkerState) -> Result<(), DataError> {
        let Part { images, labels, epoch, .. } = part;
        let expected = self.shape.iter().product::<usize>();
        let group = STAGED_BYTES / expected;
        if self.as_stored && group > 1 && !self.dataset.masks() {
            let images = images.chunks_mut(self.sample_bytes * group);
            for ((images, labels), indices) in images.zip(labels.chunks_mut(group)).zip(indices.chunks(group))
            {
                self.fill_gathered(images, labels, indices, *epoch, worker)?;
            }
        } else {
            let images = images.chunks_exact_mut(self.sample_bytes);
            let labels = labels.chunks_exact_mut(self.stored_labels());
            for ((image, labels), &index) in images.zip(labels).zip(indices) {
                if !self.fill_one(image, labels, index, *epoch, worker)? {
                    image.fill(0);
                    labels.fill(IGNORED_LABEL);
                }
            }
        }
        Ok(())
    }

    /// Samples are scattered in memory. Copying a few at a time keeps many more cache misses in flight than
    /// converting one by one.
    fn fill_gathered(
        &self,
        images: &mut [u8],
        labels: &mut [i32],
        indices: &[u32],
        epoch: u32,
        worker: &mut WorkerState,
    ) -> Result<(), DataError> {
        let expected = self.shape.iter().product::<usize>();
        let [_, height, width] = self.shape;
        let Augment { colour, .. } = self.config.augment;
        worker.staged.clear();
        worker.orders.clear();
        for (label, &index) in labels.iter_mut().zip(indices) {
            let read = self.dataset.read(index as usize, &mut worker.scratch);
            let Some(sample) = self.unless_skipped(read, index)? else {
                *label = IGNORED_LABEL;
                worker.orders.push(None);
                worker.staged.resize(worker.staged.len() + expected, 0);
                continue;
            };
            sample.check(self.dataset.as_ref(), index as usize)?;
            *label = self.label_of(&sample, index)?;
            worker.orders.push(Some(sample.order));
            worker.staged.extend_from_slice(sample.pixels);
        }
        let samples =
            images.chunks_exact_mut(self.sample_bytes).zip(worker.staged.chunks_exact_mut(expected));
        for ((image, pixels), (&index, &order)) in samples.zip(indices.iter().zip(&worker.orders)) {
            let Some(order) = order else {
                image.fill(0);
                continue;
            };
            if let Some(changes) = colour.changes(self.config.seed, epoch, index) {
                Picture { pixels, order, shape: self.shape, shown: None }.apply(&changes);
            }
            let placement = self.config.augment.placement(self.config.seed, epoch, index, [height, width]);
            self.converter.write(image, Framed { pixels, order, shown: None }, &placement);
        }
        Ok(())
    }

    /// Reads, crops and writes one sample and its label or mask; false where it cannot be decoded and is
    /// skipped.
    fn fill_one(
        &self,
        image: &mut [u8],
        labels: &mut [i32],
        index: u32,
        epoch: u32,
        worker: &mut WorkerState,
    ) -> Result<bool, DataError> {
        let [_, height, width] = self.shape;
        let region = |shape: [usize; 3], orientation| match self.dataset.masks() || self.as_stored {
            true => Region::of(shape),
            false => self.framing.region(shape, orientation, epoch, index),
        };
        let read = self.dataset.read_region(index as usize, &mut worker.scratch, &region);
        let read = read.and_then(|sample| Ok((sample, self.mask_of(&sample, index)?)));
        let Some((sample, mask)) = self.unless_skipped(read, index)? else { return Ok(false) };
        let ([channels, ..], [stored_height, stored_width]) = (sample.shape, sample.stored_size());
        let rows = region([channels, stored_height, stored_width], sample.orientation).rows.end;
        let rows = rows.div_ceil(sample.reduction().by());
        sample.check_rows(self.dataset.as_ref(), index as usize, rows)?;
        let view = self.framing.view(sample.upright_size(), epoch, index);
        let placement = self.config.augment.placement(self.config.seed, epoch, index, [height, width]);
        match mask {
            Some(mask) => {
                let (size, wanted) = ([height, width], self.config.mask_size.unwrap_or([height, width]));
                worker.mask_writer.write_coarse(labels, wanted, &mask, view, size, &placement);
            }
            None => labels.fill(self.label_of(&sample, index)?),
        }
        let mut cut = if self.as_stored && sample.orientation == Orientation::default() {
            Framed { pixels: sample.pixels, order: sample.order, shown: None }
        } else {
            worker.framer.cut(&sample, view, self.shape)?
        };
        if let Some(changes) = self.config.augment.colour.changes(self.config.seed, epoch, index) {
            let Framed { pixels, order, shown } = cut;
            worker.staged.clear();
            worker.staged.extend_from_slice(pixels);
            Picture { pixels: &mut worker.staged, order, shape: self.shape, shown }.apply(&changes);
            cut.pixels = &worker.staged;
        }
        self.converter.write(image, cut, &placement);
        Ok(true)
    }

    /// The sample, or `None` where it cannot be decoded and is skipped, which is recorded.
    fn unless_skipped<T>(&self, read: Result<T, DataError>, index: u32) -> Result<Option<T>, DataError> {
        match read {
            Ok(sample) => Ok(Some(sample)),
            Err(DataError::BadSample { problem, .. }) if self.config.skip_bad => {
                lock(&self.skipped).entry(index).or_insert(problem);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Checks the mask of a sample: its size is that of the image, and its classes exist.
    fn mask_of<'a>(&self, sample: &Sample<'a>, index: u32) -> Result<Option<StoredMask<'a>>, DataError> {
        if !self.dataset.masks() {
            return Ok(None);
        }
        let bad =
            |problem| Err(DataError::BadSample { sample: self.dataset.sample_name(index as usize), problem });
        let [_, height, width] = sample.shape;
        let Some(classes) = sample.mask else { return bad("it has no mask".to_owned()) };
        if Some(classes.len()) != height.checked_mul(width) {
            let problem = format!("its mask has {} pixels, but its image {height}×{width}", classes.len());
            return bad(problem);
        }
        match greatest_class(classes) {
            Some(class) if usize::from(class) >= self.dataset.classes() => bad(format!(
                "a pixel of its mask has class {class}, but classes go from 0 to {}, and {IGNORED_PIXEL} is \
                 for no class",
                self.dataset.classes().saturating_sub(1)
            )),
            _ => Ok(Some(StoredMask { classes, size: [height, width], orientation: sample.orientation })),
        }
    }

    fn label_of(&self, sample: &Sample<'_>, index: u32) -> Result<i32, DataError> {
        let classes = self.dataset.classes();
        let class = i32::try_from(sample.label).ok().filter(|_| (sample.label as usize) < classes);
        class.ok_or_else(|| DataError::LabelOutOfRange {
            origin: self.dataset.name().to_owned(),
            index: index as usize,
            label: sample.label,
            classes,
        })
    }
}

/// A worker's scratch memory, kept between samples.
#[derive(Debug, Default)]
pub(super) struct WorkerState {
    /// The samples of the part at hand, as numbers of the data set.
    pub(super) indices: Vec<u32>,
    scratch: Scratch,
    framer: Framer,
    mask_writer: MaskWriter,
    /// The staged pixels of a few samples, or of one whose colours change, and their pixel orders (`None`: no
    /// sample).
    staged: Vec<u8>,
    orders: Vec<Option<PixelOrder>>,
    /// An image before it was mixed.
    pub(super) last: AlignedBytes,
}
