//! The configuration of a loader, its checks, and its errors.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::datasets::Dataset;
use crate::decode::JpegLibrary;
use crate::error::DataError;
use crate::transform::augment::Augment;
use crate::transform::frame::shape_text;
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

/// What happens to samples that do not fill the last batch of an epoch.
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
    /// To the pixels that the whole image has.
    #[default]
    Exact,
    /// To a half, a quarter or an eighth of the size, where the window of the image is at least that much
    /// larger than a sample: by libjpeg-turbo alone. Images with masks, and those that are rotated or zoomed,
    /// are decoded exactly.
    Fast,
}

/// A position in the sequence of batches: recorded by checkpoints, where a resumed loader starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The epoch, counted from 0.
    pub epoch: u32,
    /// The batch in the epoch, counted from 0. One past the last batch means the start of the next epoch.
    pub batch: u64,
}

/// The part of every batch that a loader delivers, where several workers share batches out. A batch is cut
/// into `parts` equal parts, and samples are mixed with those of their own part alone: so each part has the
/// same content whoever has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Into how many parts a batch is cut, at least 1.
    pub parts: usize,
    /// The first of this loader's.
    pub first: usize,
    /// How many it has.
    pub count: usize,
}

impl Default for Share {
    fn default() -> Self {
        Self { parts: 1, first: 0, count: 1 }
    }
}

impl Share {
    /// Its rows of a batch of `samples`.
    #[must_use]
    pub fn rows(&self, samples: usize) -> std::ops::Range<usize> {
        let part = samples / self.parts.max(1);
        let first = self.first * part;
        first..first + self.count * part
    }
}

/// Which batches of an epoch a loader delivers, where several workers take turns: from the batch `first` on,
/// every `of`-th. An epoch that ends within a round has batches for the first of them alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The first batch.
    pub first: u64,
    /// How many take turns, at least 1.
    pub of: u64,
}

impl Default for Turn {
    fn default() -> Self {
        Self { first: 0, of: 1 }
    }
}

/// How a data set is made into batches.
#[derive(Clone, Debug, PartialEq)]
pub struct LoaderConfig {
    /// Samples in a batch, at least 1.
    pub batch_size: usize,
    /// Which of them are delivered; all by default.
    pub share: Share,
    /// Which batches are delivered; all by default.
    pub turn: Turn,
    /// Whether another process reads the samples: batches then have their place in the epoch and their
    /// number of samples, no images, and [`IGNORED_LABEL`](crate::buffer::IGNORED_LABEL) for labels. Nothing
    /// is read.
    pub elsewhere: bool,
    /// The order of samples.
    pub order: Order,
    /// The seed of order and augmentation.
    pub seed: u64,
    /// The shape (C, H, W) of images in a batch; `None` takes that of the stored images, which must then be
    /// the same for all.
    pub shape: Option<[usize; 3]>,
    /// The shorter side in pixels that a stored image is resized to before its centre is cropped; with `None`
    /// the largest centred crop of the right aspect ratio is resized.
    pub resize: Option<usize>,
    /// Random changes; none by default.
    pub augment: Augment,
    /// Height and width of the masks in a batch, for networks that answer in coarser maps: each of their
    /// pixels has the class of the image's pixel at its centre. `None`: those of the images.
    pub mask_size: Option<[usize; 2]>,
    /// How samples are mixed with each other; not by default.
    pub mix: Mix,
    /// Whether samples that cannot be decoded are delivered as rows without a sample instead of ending the
    /// loader.
    pub skip_bad: bool,
    /// How JPEG files are decoded.
    pub decoding: Decoding,
    /// Per-channel mean and deviation; where `None`, the data set's own.
    pub normalisation: Option<Normalisation>,
    /// The type of the images' elements. As [`Element::U8`] they are not normalised, and rows without a
    /// sample are zero bytes all the same.
    pub element: Element,
    /// The layout of the images.
    pub layout: Layout,
    /// What becomes of an incomplete last batch.
    pub last: LastBatch,
    /// Worker threads, at least 1.
    pub workers: usize,
    /// Buffers, at least 1: those the consumer holds, those being filled and those ready.
    pub slots: usize,
    /// The position to start at.
    pub start: Position,
    /// The number of epochs; `None` never ends.
    pub epochs: Option<u32>,
}

impl LoaderConfig {
    /// Batches of `batch_size` shuffled samples, `f32` and NCHW, without augmentation, from the start,
    /// without end. One worker and three slots: one batch in use, one ready, one being filled.
    #[must_use]
    pub fn new(batch_size: usize) -> Self {
        Self {
            batch_size,
            share: Share::default(),
            turn: Turn::default(),
            elsewhere: false,
            order: Order::default(),
            seed: 0,
            shape: None,
            resize: None,
            augment: Augment::default(),
            mask_size: None,
            mix: Mix::default(),
            skip_bad: false,
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

    /// The rows of a whole batch that are delivered.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.share.rows(self.batch_size).len()
    }

    /// The normalisation for images of this many channels: the configured one, or that of the data set.
    #[must_use]
    pub fn normalisation_of(&self, dataset: &dyn Dataset, channels: usize) -> Normalisation {
        let own = || dataset.normalisation().for_channels(channels);
        self.normalisation.clone().unwrap_or_else(own)
    }

    /// Why images cannot be bytes ([`Element::U8`]), and the field that prevents it: it writes the mean, or
    /// values between pixels. `None` where they can.
    #[must_use]
    pub fn needs_numbers(&self) -> Option<String> {
        if self.mix.is_on() {
            return Some("mix works on normalised images, not on bytes; leave mix off".to_owned());
        }
        self.augment.blanks().map(|field| {
            format!(
                "augment.{field} fills parts of an image with the mean, which is not a pixel value; \
                     leave {field} off"
            )
        })
    }
}

/// Why a loader cannot be created or cannot deliver.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoaderError {
    /// The configuration does not fit the data set.
    #[error("{key}: {problem}")]
    Configuration {
        /// The field of [`LoaderConfig`].
        key: &'static str,
        /// What is wrong, and what is possible.
        problem: String,
    },
    /// A sample could not be read.
    #[error("batch {} of epoch {}: {cause}", .at.batch, .at.epoch)]
    Data {
        /// The batch it belongs to.
        at: Position,
        /// Why.
        cause: DataError,
    },
    /// A worker panicked.
    #[error(
        "batch {} of epoch {}: a loader thread panicked: {message}; this is a defect of the program",
        .at.batch, .at.epoch
    )]
    Panicked {
        /// The batch it was filling.
        at: Position,
        /// The message of the panic.
        message: String,
    },
    /// The consumer holds every buffer, so none can be filled.
    #[error(
        "all {slots} buffers of the loader are in use; recycle one before asking for the next, or set more \
         slots"
    )]
    Withheld {
        /// The number of buffers.
        slots: usize,
    },
    /// The loader stopped after an earlier error.
    #[error("the loader has stopped after an error")]
    Stopped,
    /// The consumer requested a batch after the last one.
    #[error(
        "the loader has delivered all {batches} batches of its epochs, and one more was asked for; this is a \
         defect of the program"
    )]
    Exhausted {
        /// The number of batches.
        batches: u64,
    },
    /// There is not enough memory for the buffers.
    #[error(
        "{slots} buffers of {batch_size} samples need {bytes} bytes of memory, which are not available; set \
         fewer or smaller ones"
    )]
    Memory {
        /// Bytes of all buffers.
        bytes: u64,
        /// Samples of a buffer.
        batch_size: usize,
        /// Buffers.
        slots: usize,
    },
    /// The operating system refuses another thread.
    #[error("a loader thread cannot be started: {cause}; set fewer workers")]
    Thread {
        /// Why.
        cause: std::io::Error,
    },
}

/// Why JPEG files cannot be decoded so by this library.
fn decoding_problem(decoding: Decoding, library: &JpegLibrary) -> Option<String> {
    let possible = decoding == Decoding::Exact || matches!(library, JpegLibrary::Turbo(_));
    (!possible).then(|| {
        format!(
            "is fast, but {library} decodes JPEG files here, which cannot reduce them; set it to exact, or \
             install libjpeg-turbo (`stratus doctor` says where it is looked for)"
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
    /// Labels per sample: 1; [`mix::LABELS`] where samples are mixed; one per pixel with masks.
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
        let wrong = |key, problem| Err(LoaderError::Configuration { key, problem });
        for (key, value) in
            [("batch_size", config.batch_size), ("workers", config.workers), ("slots", config.slots)]
        {
            if value == 0 {
                return wrong(key, "is 0, but must be at least 1".to_owned());
            }
        }
        let len = dataset.len();
        if len == 0 || u32::try_from(len).is_err() {
            return wrong(
                "dataset",
                format!("`{}` has {len} samples; 1 to {} are possible", dataset.name(), u32::MAX),
            );
        }
        if config.last == LastBatch::Drop && config.batch_size > len {
            let problem = format!(
                "is {}, but `{}` has only {len} samples, so that no batch would be whole; set at most {len}",
                config.batch_size,
                dataset.name()
            );
            return wrong("batch_size", problem);
        }
        let Share { parts, first, count } = config.share;
        if parts == 0 || count == 0 || first.checked_add(count).is_none_or(|end| end > parts) {
            return wrong("share", format!("is {count} parts from {first} on, of {parts}"));
        }
        let last = if config.last == LastBatch::Keep { len % config.batch_size } else { 0 };
        if let Some(odd) = [config.batch_size, last].into_iter().find(|size| !size.is_multiple_of(parts)) {
            return wrong(
                "share",
                format!("cuts batches into {parts} equal parts, and one has {odd} samples"),
            );
        }
        let Some(shape) = config.shape.or(dataset.sample_shape()) else {
            let problem = format!("is not set, but the images of `{}` have no common size", dataset.name());
            return wrong("shape", problem);
        };
        let [channels, height, width] = shape;
        if channels == 0 || height == 0 || width == 0 {
            return wrong("shape", format!("is {}; each must be at least 1", shape_text(shape)));
        }
        let stored_channels = dataset.sample_shape().map(|[channels, ..]| channels);
        let possible = match stored_channels {
            Some(stored) => stored == channels || stored == 1 || (stored == 3 && channels == 1),
            None => channels == 1 || channels == 3,
        };
        if !possible {
            let problem = format!(
                "is {}, but the images of `{}` cannot be given {channels} channels",
                shape_text(shape),
                dataset.name()
            );
            return wrong("shape", problem);
        }
        if config.resize.is_some_and(|side| side < height.max(width)) {
            let problem = format!(
                "is {} pixels, of which {height}×{width} cannot be cut out; set at least {}",
                config.resize.unwrap_or_default(),
                height.max(width)
            );
            return wrong("resize", problem);
        }
        let normalisation = config.normalisation_of(dataset, channels);
        if !normalisation.is_valid(channels) {
            let problem = format!(
                "must have a mean and a deviation above 0 for each of the {channels} channels of `{}`",
                dataset.name()
            );
            return wrong("normalisation", problem);
        }
        if let Some(problem) = decoding_problem(config.decoding, JpegLibrary::of_process()) {
            return wrong("data.decode", problem);
        }
        if let Some(problem) = config.augment.problem([height, width]) {
            return wrong("augment", problem);
        }
        if let Some(problem) = config.mix.problem() {
            return wrong("mix", problem);
        }
        if config.mix.is_on() && dataset.masks() {
            let problem = format!(
                "is on, but `{}` has a class for every pixel; only samples of one class can be mixed",
                dataset.name()
            );
            return wrong("mix", problem);
        }
        if config.mask_size.is_some_and(|size| size.contains(&0)) {
            return wrong("mask_size", "is empty; it must be at least 1×1".to_owned());
        }
        if config.element == Element::U8
            && let Some(reason) = config.needs_numbers()
        {
            return wrong("element", format!("is u8, but {reason}, or set element to f32, bf16 or f16"));
        }
        let label_len = match (dataset.masks(), config.mix.is_on()) {
            (true, _) => {
                let [height, width] = config.mask_size.unwrap_or([height, width]);
                height.checked_mul(width)
            }
            (false, true) => Some(mix::LABELS),
            (false, false) => Some(1),
        };
        let element_bytes = if config.elsewhere { 0 } else { config.element.bytes() };
        let sample_bytes = [channels, height, width].into_iter().try_fold(element_bytes, usize::checked_mul);
        // How much a batch has of what a sample has `each` of, `bytes` long, where the slots hold less than
        // half of all addresses of it.
        let of_batch = |each: Option<usize>, bytes: usize| {
            let count = each?.checked_mul(config.rows())?;
            let total = count.checked_mul(bytes)?.checked_mul(config.slots)?;
            (total <= isize::MAX as usize / 2).then_some(count)
        };
        let (Some(sample_bytes), Some(image_bytes), Some(label_len), Some(label_count)) =
            (sample_bytes, of_batch(sample_bytes, 1), label_len, of_batch(label_len, size_of::<i32>()))
        else {
            let problem =
                format!("{} samples in {} slots exceed the address space", config.rows(), config.slots);
            return wrong("batch_size", problem);
        };
        let batches_per_epoch = match config.last {
            LastBatch::Drop => len / config.batch_size,
            LastBatch::Keep => len.div_ceil(config.batch_size),
        } as u64;
        let Turn { first, of } = config.turn;
        if of == 0 || first >= of || of > 1 && config.start != Position::default() {
            let from = "from the start of an epoch";
            return wrong(
                "turn",
                format!("is number {first} of {of} that take turns; it is below {of}, {from}"),
            );
        }
        let batches_per_epoch = batches_per_epoch.saturating_sub(first).div_ceil(of);
        if config.start.batch > batches_per_epoch {
            let problem =
                format!("is batch {} of an epoch, but an epoch has {batches_per_epoch}", config.start.batch);
            return wrong("start", problem);
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
    fn what_cannot_reduce_images_is_not_asked_to() {
        assert_eq!(decoding_problem(Decoding::Exact, &JpegLibrary::Zune), None);
        assert_eq!(
            decoding_problem(Decoding::Fast, &JpegLibrary::Zune).unwrap(),
            "is fast, but zune-jpeg 0.5 decodes JPEG files here, which cannot reduce them; set it to exact, \
             or install libjpeg-turbo (`stratus doctor` says where it is looked for)"
        );
    }
}
