//! Filling rows of a batch: samples are read, cropped, augmented and converted.

use super::config::TargetScale;
use super::ring::RowChunk;
use super::shared::{Shared, lock};
use crate::buffer::IGNORED_LABEL;
use crate::dataset::{IGNORED_PIXEL, Sample, Scratch};
use crate::error::DataError;
use crate::geometry::{Orientation, Region};
use crate::transform::augment::Augment;
use crate::transform::colour::PixelsMut;
use crate::transform::frame::{CropResizer, CroppedPixels};
use crate::transform::mask::{MaskWriter, StoredMask, max_class};
use crate::transform::mix::LastSample;
use crate::transform::pixels::PixelOrder;

/// Bytes of pixels that a worker gathers before converting them: they fit the L1 cache.
const STAGING_BYTES: usize = 16 << 10;

impl Shared {
    /// Fills the rows of a chunk with the samples `worker.indices`.
    pub(super) fn fill(&self, chunk: &mut RowChunk, worker: &mut WorkerState) -> Result<(), DataError> {
        let indices = std::mem::take(&mut worker.indices);
        let filled = self.fill_rows(chunk, &indices, worker);
        worker.indices = indices;
        if let (None, Some(library)) = (self.jpeg.get(), worker.scratch.images.jpeg_library()) {
            self.jpeg.get_or_init(|| library.clone());
        }
        filled
    }

    fn fill_rows(
        &self,
        chunk: &mut RowChunk,
        indices: &[u32],
        worker: &mut WorkerState,
    ) -> Result<(), DataError> {
        let RowChunk { images, labels, epoch, .. } = chunk;
        let expected = self.shape.iter().product::<usize>();
        let group = STAGING_BYTES / expected;
        if self.as_stored && group > 1 && !self.dataset.has_masks() {
            let images = images.chunks_mut(self.sample_bytes * group);
            let labels = labels.chunks_mut(group * self.stored_labels());
            for ((images, labels), indices) in images.zip(labels).zip(indices.chunks(group)) {
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

    /// Fills rows with samples that need no crop. They are scattered in memory: copying a few at a time
    /// before converting them keeps many more cache misses in flight than converting one by one.
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
        for (labels, &index) in labels.chunks_exact_mut(self.stored_labels()).zip(indices) {
            let read = self.dataset.read(index as usize, &mut worker.scratch);
            let Some(sample) = self.skip_if_damaged(read, index)? else {
                labels.fill(IGNORED_LABEL);
                worker.orders.push(None);
                worker.staged.resize(worker.staged.len() + expected, 0);
                continue;
            };
            sample.check(self.dataset.as_ref(), index as usize)?;
            self.write_labels(&sample, index, labels)?;
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
                PixelsMut { pixels, order, shape: self.shape, valid_columns: None }.apply(&changes);
            }
            let placement = self.config.augment.placement(self.config.seed, epoch, index, [height, width]);
            self.converter.write(image, CroppedPixels { pixels, order, valid_columns: None }, &placement);
        }
        Ok(())
    }

    /// Reads, crops and writes one sample and its label or mask; returns false if it cannot be decoded and is
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
        let region = |shape: [usize; 3], orientation| match self.dataset.has_masks() || self.as_stored {
            true => Region::whole(shape),
            false => self.crop_sampler.region(shape, orientation, epoch, index),
        };
        let read = self.dataset.read_region(index as usize, &mut worker.scratch, &region);
        let read = read.and_then(|sample| Ok((sample, self.checked_mask(&sample, index)?)));
        let Some((sample, mask)) = self.skip_if_damaged(read, index)? else { return Ok(false) };
        let ([channels, ..], [stored_height, stored_width]) = (sample.shape, sample.stored_size());
        let rows = region([channels, stored_height, stored_width], sample.orientation).rows.end;
        let rows = rows.div_ceil(sample.dct_scale().denominator());
        sample.check_rows(self.dataset.as_ref(), index as usize, rows)?;
        let view = self.crop_sampler.view(sample.upright_size(), epoch, index);
        let placement = self.config.augment.placement(self.config.seed, epoch, index, [height, width]);
        match mask {
            Some(mask) => {
                let (size, mask_size) = ([height, width], self.config.mask_size.unwrap_or([height, width]));
                worker.mask_writer.write_coarse(labels, mask_size, &mask, view, size, &placement);
            }
            None => self.write_labels(&sample, index, labels)?,
        }
        let mut cropped = if self.as_stored && sample.orientation == Orientation::default() {
            CroppedPixels { pixels: sample.pixels, order: sample.order, valid_columns: None }
        } else {
            worker.crop_resizer.crop_and_resize(&sample, view, self.shape)?
        };
        if let Some(changes) = self.config.augment.colour.changes(self.config.seed, epoch, index) {
            let CroppedPixels { pixels, order, valid_columns } = cropped;
            worker.staged.clear();
            worker.staged.extend_from_slice(pixels);
            PixelsMut { pixels: &mut worker.staged, order, shape: self.shape, valid_columns }.apply(&changes);
            cropped.pixels = &worker.staged;
        }
        self.converter.write(image, cropped, &placement);
        Ok(true)
    }

    /// Returns the sample, or `None` after recording that it cannot be decoded and is skipped.
    fn skip_if_damaged<T>(&self, read: Result<T, DataError>, index: u32) -> Result<Option<T>, DataError> {
        match read {
            Ok(sample) => Ok(Some(sample)),
            Err(DataError::BadSample { problem, .. }) if self.config.skip_damaged => {
                lock(&self.skipped).entry(index).or_insert(problem);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Checks the mask of a sample: it must have the size of the image and only existing classes.
    fn checked_mask<'a>(&self, sample: &Sample<'a>, index: u32) -> Result<Option<StoredMask<'a>>, DataError> {
        if !self.dataset.has_masks() {
            return Ok(None);
        }
        let bad_sample =
            |problem| Err(DataError::BadSample { sample: self.dataset.sample_name(index as usize), problem });
        let [_, height, width] = sample.shape;
        let Some(classes) = sample.mask else { return bad_sample("the mask is missing".to_owned()) };
        if Some(classes.len()) != height.checked_mul(width) {
            let problem = format!("the mask has {} pixels, but the image is {height}×{width}", classes.len());
            return bad_sample(problem);
        }
        match max_class(classes) {
            Some(class) if usize::from(class) >= self.dataset.classes() => bad_sample(format!(
                "the mask has class {class}, but classes go from 0 to {}, and {IGNORED_PIXEL} is ignored",
                self.dataset.classes().saturating_sub(1)
            )),
            _ => Ok(Some(StoredMask { classes, size: [height, width], orientation: sample.orientation })),
        }
    }

    /// Writes the class or the targets of a sample without a mask.
    fn write_labels(&self, sample: &Sample<'_>, index: u32, labels: &mut [i32]) -> Result<(), DataError> {
        if self.dataset.target_kind().is_none() {
            labels.fill(self.checked_label(sample, index)?);
            return Ok(());
        }
        let targets = self.dataset.targets(index as usize)?;
        if targets.len() != labels.len() {
            let problem = format!("has {} targets, expected {}", targets.len(), labels.len());
            return Err(DataError::BadSample { sample: self.dataset.sample_name(index as usize), problem });
        }
        let scales = self.config.target_scales.as_deref();
        for (at, (label, &target)) in labels.iter_mut().zip(targets).enumerate() {
            let scaled = match scales.and_then(|scales| scales.get(at)) {
                // In f64, so that no finite target overflows.
                Some(&TargetScale { mean, deviation }) => {
                    ((f64::from(target) - f64::from(mean)) / f64::from(deviation)) as f32
                }
                None => target,
            };
            // One NaN for all missing targets. Its bits are not those of rows without a sample.
            *label = if scaled.is_nan() { f32::NAN } else { scaled }.to_bits().cast_signed();
        }
        Ok(())
    }

    fn checked_label(&self, sample: &Sample<'_>, index: u32) -> Result<i32, DataError> {
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

/// The scratch memory of a worker, kept between samples.
#[derive(Debug, Default)]
pub(super) struct WorkerState {
    /// The data set indices of the samples of the current chunk.
    pub(super) indices: Vec<u32>,
    scratch: Scratch,
    crop_resizer: CropResizer,
    mask_writer: MaskWriter,
    /// The staged pixels of a few samples, or of one whose colours change.
    staged: Vec<u8>,
    /// The pixel orders of the staged samples; `None` for skipped ones.
    orders: Vec<Option<PixelOrder>>,
    /// A sample before mixing.
    pub(super) last: LastSample,
}
