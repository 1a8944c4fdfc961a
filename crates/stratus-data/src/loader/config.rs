//! The configuration of a loader, its checks, and its errors.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::dataset::Dataset;
use crate::decode::JpegLibrary;
use crate::error::DataError;
use crate::geometry::shape_text;
use crate::transform::augment::Augment;
use crate::transform::mix::{self, Mix};
use crate::transform::pixels::{Element, Layout, Normalisation};

/// The order in which an epoch visits the samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// A new permutation in every epoch, a function of (seed, epoch).
    #[default]
    Shuffled,
    /// As stored.
    Sequential,
}

/// The handling of samples that do not fill the last batch of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LastBatch {
    /// They are dropped in this epoch.
    #[default]
    Drop,
    /// They form a smaller batch.
    Keep,
}

/// How JPEG files are decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decoding {
    /// At full size: the same pixels as the whole image.
    #[default]
    Exact,
    /// At a half, a quarter or an eighth of the size if the crop is at least that much larger than a sample,
    /// by libjpeg-turbo only. Images with masks, and rotated or zoomed images, are decoded exactly.
    Fast,
}

/// A position in the sequence of batches, recorded in checkpoints so that a resumed loader starts there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The epoch, counted from 0.
    pub epoch: u32,
    /// The batch in the epoch, counted from 0. One past the last batch means the start of the next epoch.
    pub batch: u64,
}

/// The slice of every batch that a loader delivers if several workers share batches. A batch is divided into
/// `parts` equal parts, and samples are only mixed within their part: so the content of a part does not
/// depend on its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSlice {
    /// The number of parts of a batch, at least 1.
    pub parts: usize,
    /// The first part of this loader.
    pub first: usize,
    /// The number of parts of this loader.
    pub count: usize,
}

impl Default for BatchSlice {
    fn default() -> Self {
        Self { parts: 1, first: 0, count: 1 }
    }
}

impl BatchSlice {
    /// The rows of this slice in a batch of `samples`.
    #[must_use]
    pub fn rows(&self, samples: usize) -> std::ops::Range<usize> {
        let part = samples / self.parts.max(1);
        let first = self.first * part;
        first..first + self.count * part
    }
}

/// The batches of an epoch that a loader delivers if workers take turns: every `step`-th, starting with batch
/// `first`. If the number of batches is not a multiple of `step`, the first workers get one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchStride {
    /// The first batch.
    pub first: u64,
    /// The distance between batches, at least 1: the number of workers.
    pub step: u64,
}

impl Default for BatchStride {
    fn default() -> Self {
        Self { first: 0, step: 1 }
    }
}

/// The standardisation of a target: a loader writes `(target - mean) / deviation`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetScale {
    /// The number to subtract.
    pub mean: f32,
    /// The number to divide by, above 0.
    pub deviation: f32,
}

/// The conversion of a data set to batches.
#[derive(Clone, Debug, PartialEq)]
pub struct LoaderConfig {
    /// Samples per batch, at least 1.
    pub batch_size: usize,
    /// The part of each batch that is delivered; all by default.
    pub slice: BatchSlice,
    /// The batches that are delivered; all by default.
    pub stride: BatchStride,
    /// True if another process reads the samples. Then nothing is read: batches have their position, their
    /// number of samples and, in sequential order, their indices, but no images, and
    /// [`IGNORED_LABEL`](crate::buffer::IGNORED_LABEL) for labels.
    pub positions_only: bool,
    /// The order of samples.
    pub order: Order,
    /// The seed of order and augmentation.
    pub seed: u64,
    /// The shape (C, H, W) of images in a batch; `None` uses that of the stored images, which must then all
    /// have the same.
    pub shape: Option<[usize; 3]>,
    /// The shorter side in pixels that a stored image is resized to before its centre is cropped; with `None`
    /// the largest centred crop of the right aspect ratio is resized.
    pub resize: Option<usize>,
    /// Augmentation; none by default.
    pub augment: Augment,
    /// Height and width of the masks in a batch, for networks with a coarser output: each mask pixel has the
    /// class of the image pixel at its centre. `None`: the image size.
    pub mask_size: Option<[usize; 2]>,
    /// The standardisation of each target, for data sets with [targets](Dataset::target_kind); `None` writes
    /// them as stored.
    pub target_scales: Option<Arc<[TargetScale]>>,
    /// Mixing of samples; off by default.
    pub mix: Mix,
    /// True if samples that cannot be decoded become rows without a sample instead of an error.
    pub skip_damaged: bool,
    /// How JPEG files are decoded.
    pub decoding: Decoding,
    /// Mean and deviation per channel; `None` uses those of the data set.
    pub normalisation: Option<Normalisation>,
    /// The element type of images. [`Element::U8`] is not normalised; rows without a sample are zero bytes
    /// for every type.
    pub element: Element,
    /// The layout of the images.
    pub layout: Layout,
    /// The handling of an incomplete last batch.
    pub last: LastBatch,
    /// Worker threads, at least 1.
    pub workers: usize,
    /// The number of buffers, at least 1: held by the consumer, being filled, or ready.
    pub slots: usize,
    /// The position to start at.
    pub start: Position,
    /// The number of epochs; `None` never ends.
    pub epochs: Option<u32>,
}

impl LoaderConfig {
    /// The default configuration: shuffled samples, `f32`, NCHW, no augmentation, from the start, without
    /// end. One worker and three slots: one batch in use, one ready, one being filled.
    #[must_use]
    pub fn new(batch_size: usize) -> Self {
        Self {
            batch_size,
            slice: BatchSlice::default(),
            stride: BatchStride::default(),
            positions_only: false,
            order: Order::default(),
            seed: 0,
            shape: None,
            resize: None,
            augment: Augment::default(),
            mask_size: None,
            target_scales: None,
            mix: Mix::default(),
            skip_damaged: false,
            decoding: Decoding::default(),
            normalisation: None,
            element: Element::default(),
            layout: Layout::default(),
            last: LastBatch::default(),
            workers: 1,
            slots: 3,
            start: Position::default(),
            epochs: None,
        }
    }

    /// The number of rows that are delivered of a complete batch.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.slice.rows(self.batch_size).len()
    }

    /// The normalisation for images of `channels` channels: the configured one, or that of the data set.
    #[must_use]
    pub fn normalisation_for(&self, dataset: &dyn Dataset, channels: usize) -> Normalisation {
        let default = || dataset.normalisation().for_channels(channels);
        self.normalisation.clone().unwrap_or_else(default)
    }

    /// The reason why images cannot be bytes ([`Element::U8`]), if any: an option that writes the mean, or
    /// fractional values.
    #[must_use]
    pub fn byte_images_problem(&self) -> Option<String> {
        if self.mix.is_on() {
            return Some("mix needs normalised images; turn mix off".to_owned());
        }
        self.augment.blanking_option().map(|field| {
            format!(
                "augment.{field} blanks pixels with the mean, which bytes cannot represent; turn {field} off"
            )
        })
    }
}

/// An error of creating a loader or of delivering a batch.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoaderError {
    /// The configuration does not fit the data set.
    #[error("{key}: {problem}")]
    Configuration {
        /// The field of [`LoaderConfig`].
        key: &'static str,
        /// The cause, and the valid values.
        problem: String,
    },
    /// A sample could not be read.
    #[error("batch {} of epoch {}: {cause}", .at.batch, .at.epoch)]
    Data {
        /// The batch of the sample.
        at: Position,
        /// The cause.
        cause: DataError,
    },
    /// A worker panicked.
    #[error(
        "batch {} of epoch {}: a loader thread panicked: {message}; this is a bug",
        .at.batch, .at.epoch
    )]
    Panicked {
        /// The batch that was being filled.
        at: Position,
        /// The panic message.
        message: String,
    },
    /// The consumer holds every buffer, so none can be filled.
    #[error(
        "all {slots} buffers of the loader are in use; recycle one before requesting the next batch, or set \
         more slots"
    )]
    NoFreeBuffer {
        /// The number of buffers.
        slots: usize,
    },
    /// The loader stopped after an earlier error.
    #[error("the loader has stopped after an error")]
    Stopped,
    /// The consumer requested a batch after the last one.
    #[error("all {batches} batches were delivered, but another one was requested; this is a bug")]
    Exhausted {
        /// The number of batches.
        batches: u64,
    },
    /// There is not enough memory for the buffers.
    #[error(
        "cannot allocate {bytes} bytes for {slots} buffers of {batch_size} samples; use fewer or smaller \
         buffers"
    )]
    Memory {
        /// The size of all buffers in bytes.
        bytes: u64,
        /// Samples per buffer.
        batch_size: usize,
        /// The number of buffers.
        slots: usize,
    },
    /// A worker thread cannot be started.
    #[error("cannot start a loader thread: {cause}; set fewer workers")]
    Thread {
        /// The cause.
        cause: std::io::Error,
    },
}

/// The reason why this library does not support the decoding, if any.
fn decoding_problem(decoding: Decoding, library: &JpegLibrary) -> Option<String> {
    let possible = decoding == Decoding::Exact || matches!(library, JpegLibrary::Turbo(_));
    (!possible).then(|| {
        format!(
            "`fast` needs libjpeg-turbo, but {library} is in use; set it to exact, or install libjpeg-turbo \
             (`stratus doctor` lists the searched locations)"
        )
    })
}

/// The reason why the targets of a data set cannot be written with these scales, if any.
fn target_problem(dataset: &dyn Dataset, scales: Option<&[TargetScale]>) -> Option<String> {
    let (name, targets) = (dataset.name(), dataset.classes());
    if dataset.target_kind().is_none() {
        return scales.map(|_| format!("are set, but `{name}` has no targets; remove them"));
    }
    if targets == 0 {
        return Some(format!("`{name}` has no targets, expected at least one"));
    }
    let scales = scales?;
    if scales.len() != targets {
        return Some(format!("are {}, but `{name}` has {targets} targets", scales.len()));
    }
    let is_invalid = |scale: &TargetScale| {
        !scale.mean.is_finite() || !scale.deviation.is_finite() || scale.deviation <= 0.0
    };
    scales.iter().position(is_invalid).map(|target| {
        format!(
            "of target `{}` are mean {} and deviation {}, expected a finite mean and a positive deviation",
            dataset.class_name(target),
            scales[target].mean,
            scales[target].deviation
        )
    })
}

/// Values derived from configuration and data set.
pub(super) struct Plan {
    /// The shape of an image in a batch.
    pub(super) shape: [usize; 3],
    /// Bytes of one image in a batch.
    pub(super) sample_bytes: usize,
    /// Bytes of all images of a batch.
    pub(super) image_bytes: usize,
    /// Labels per sample: 1; [`mix::LABELS_PER_SAMPLE`] if samples are mixed; one per pixel with masks; the
    /// number of targets.
    pub(super) label_len: usize,
    /// Labels of a batch.
    pub(super) label_count: usize,
    pub(super) batches_per_epoch: u64,
    /// Batches from the start to the end.
    pub(super) batches: u64,
}

impl Plan {
    pub(super) fn new(
        dataset: &dyn Dataset,
        config: &LoaderConfig,
    ) -> Result<(Self, Normalisation), LoaderError> {
        let invalid = |key, problem| Err(LoaderError::Configuration { key, problem });
        for (key, value) in
            [("batch_size", config.batch_size), ("workers", config.workers), ("slots", config.slots)]
        {
            if value == 0 {
                return invalid(key, "is 0, expected at least 1".to_owned());
            }
        }
        let len = dataset.len();
        if len == 0 || u32::try_from(len).is_err() {
            return invalid(
                "dataset",
                format!("`{}` has {len} samples, expected 1 to {}", dataset.name(), u32::MAX),
            );
        }
        if config.last == LastBatch::Drop && config.batch_size > len {
            let problem = format!(
                "is {}, but `{}` has only {len} samples; set at most {len}",
                config.batch_size,
                dataset.name()
            );
            return invalid("batch_size", problem);
        }
        let BatchSlice { parts, first, count } = config.slice;
        if parts == 0 || count == 0 || first.checked_add(count).is_none_or(|end| end > parts) {
            return invalid("slice", format!("is {count} parts starting at {first}, but there are {parts}"));
        }
        let last = if config.last == LastBatch::Keep { len % config.batch_size } else { 0 };
        if let Some(size) = [config.batch_size, last].into_iter().find(|size| !size.is_multiple_of(parts)) {
            return invalid(
                "slice",
                format!("a batch of {size} samples cannot be divided into {parts} equal parts"),
            );
        }
        let Some(shape) = config.shape.or(dataset.sample_shape()) else {
            let problem = format!("must be set, because the images of `{}` differ in size", dataset.name());
            return invalid("shape", problem);
        };
        let [channels, height, width] = shape;
        if channels == 0 || height == 0 || width == 0 {
            return invalid("shape", format!("is {}, expected at least 1 each", shape_text(shape)));
        }
        let stored_channels = dataset.sample_shape().map(|[channels, ..]| channels);
        let possible = match stored_channels {
            Some(stored) => stored == channels || stored == 1 || (stored == 3 && channels == 1),
            None => channels == 1 || channels == 3,
        };
        if !possible {
            let problem = format!(
                "is {}, but the images of `{}` cannot be converted to {channels} channels",
                shape_text(shape),
                dataset.name()
            );
            return invalid("shape", problem);
        }
        if config.resize.is_some_and(|side| side < height.max(width)) {
            let problem = format!(
                "is {}, smaller than the crop {height}×{width}; set at least {}",
                config.resize.unwrap_or_default(),
                height.max(width)
            );
            return invalid("resize", problem);
        }
        let normalisation = config.normalisation_for(dataset, channels);
        if !normalisation.is_valid(channels) {
            let problem = format!(
                "must have a mean and a positive deviation for each of the {channels} channels of `{}`",
                dataset.name()
            );
            return invalid("normalisation", problem);
        }
        if let Some(problem) = decoding_problem(config.decoding, JpegLibrary::for_process()) {
            return invalid("data.decode", problem);
        }
        if let Some(problem) = config.augment.validate([height, width]) {
            return invalid("augment", problem);
        }
        if let Some(problem) = config.mix.validate() {
            return invalid("mix", problem);
        }
        if config.mix.is_on() && dataset.has_masks() {
            let problem = format!(
                "is on, but `{}` has masks; only samples with a single class can be mixed",
                dataset.name()
            );
            return invalid("mix", problem);
        }
        if config.mask_size.is_some_and(|size| size.contains(&0)) {
            return invalid("mask_size", "is empty, expected at least 1×1".to_owned());
        }
        if config.element == Element::U8
            && let Some(reason) = config.byte_images_problem()
        {
            return invalid("element", format!("is u8, but {reason}, or set element to f32, bf16 or f16"));
        }
        if let Some(problem) = target_problem(dataset, config.target_scales.as_deref()) {
            return invalid("target_scales", problem);
        }
        let label_len = if dataset.has_masks() {
            let [height, width] = config.mask_size.unwrap_or([height, width]);
            height.checked_mul(width)
        } else if dataset.target_kind().is_some() {
            Some(dataset.classes())
        } else if config.mix.is_on() {
            Some(mix::LABELS_PER_SAMPLE)
        } else {
            Some(1)
        };
        let element_bytes = if config.positions_only { 0 } else { config.element.bytes() };
        let sample_bytes = [channels, height, width].into_iter().try_fold(element_bytes, usize::checked_mul);
        // Elements per batch; `None` if all slots together exceed `isize::MAX / 2` bytes.
        let batch_elements = |per_sample: Option<usize>, bytes: usize| {
            let count = per_sample?.checked_mul(config.rows())?;
            let total = count.checked_mul(bytes)?.checked_mul(config.slots)?;
            (total <= isize::MAX as usize / 2).then_some(count)
        };
        let (Some(sample_bytes), Some(image_bytes), Some(label_len), Some(label_count)) = (
            sample_bytes,
            batch_elements(sample_bytes, 1),
            label_len,
            batch_elements(label_len, size_of::<i32>()),
        ) else {
            let problem =
                format!("{} samples in {} slots exceed the address space", config.rows(), config.slots);
            return invalid("batch_size", problem);
        };
        let batches_per_epoch = match config.last {
            LastBatch::Drop => len / config.batch_size,
            LastBatch::Keep => len.div_ceil(config.batch_size),
        } as u64;
        let BatchStride { first, step } = config.stride;
        if step == 0 || first >= step || step > 1 && config.start != Position::default() {
            return invalid(
                "stride",
                format!("first batch {first} must be below the step {step}; start must be epoch 0, batch 0"),
            );
        }
        let batches_per_epoch = batches_per_epoch.saturating_sub(first).div_ceil(step);
        if config.start.batch > batches_per_epoch {
            let problem =
                format!("is batch {} of an epoch of {batches_per_epoch} batches", config.start.batch);
            return invalid("start", problem);
        }
        let epochs = u64::from(config.epochs.unwrap_or(u32::MAX).saturating_sub(config.start.epoch));
        // Both factors have 32 bits.
        let batches = (epochs * batches_per_epoch).saturating_sub(config.start.batch);
        let plan =
            Self { shape, sample_bytes, image_bytes, label_len, label_count, batches_per_epoch, batches };
        Ok((plan, normalisation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_fast_decoding_without_libjpeg_turbo() {
        assert_eq!(decoding_problem(Decoding::Exact, &JpegLibrary::Zune), None);
        assert_eq!(
            decoding_problem(Decoding::Fast, &JpegLibrary::Zune).unwrap(),
            "`fast` needs libjpeg-turbo, but zune-jpeg 0.5 is in use; set it to exact, or install \
             libjpeg-turbo (`stratus doctor` lists the searched locations)"
        );
    }
}
