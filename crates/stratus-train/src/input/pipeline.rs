//! The input pipeline: how the loader makes batches of a data set's images, for training and for measuring.

use super::open_options;
use crate::Experiment;
use crate::experiment::{self, Decode, OnBadSample};
use stratus_data::{
    Augment, ColourJitter, Dataset, Decoding, Element, LastBatch, Layout, LoaderConfig, Mix, Normalisation,
    Order, Padding, ResizedCrop, mix,
};
use stratus_engine::ops::{MIXED, MOST_CHANNELS, WHOLE_SHARE};
use stratus_engine::{DType, Plan, Role};

/// The format of a batch's images in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchFormat {
    /// The type of their elements.
    pub element: Element,
    /// The order of their elements.
    pub layout: Layout,
}

impl BatchFormat {
    /// The format that a plan's program reads.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        let images = plan.program.find_role(Role::Images).map(|id| plan.program.value(id));
        let channels_last = plan.external(0).is_some_and(|place| place.layout.tag == "nhwc");
        Self {
            element: match images.map(|value| value.dtype) {
                Some(DType::U8) => Element::U8,
                Some(DType::Bf16) => Element::Bf16,
                Some(DType::F16) => Element::F16,
                _ => Element::F32,
            },
            layout: if channels_last { Layout::Nhwc } else { Layout::Nchw },
        }
    }

    /// Pixels as bytes, which the program normalises.
    const BYTES: Self = Self { element: Element::U8, layout: Layout::Nhwc };
}

/// Per channel the `[scale, offset]` by which a program normalises bytes: `scale * byte + offset`.
pub type ScaleShifts = [[f32; 2]; MOST_CHANNELS];

/// `[C, H, W]` of the images that the network gets: as set, or as stored, or else as the network is published
/// for.
pub(crate) fn image_shape(experiment: &Experiment, set: &dyn Dataset) -> [usize; 3] {
    experiment.shape().or(set.sample_shape()).unwrap_or_else(|| open_options(experiment).shape)
}

/// How an experiment's images become batches.
#[derive(Clone, Debug, PartialEq)]
pub struct InputPipeline {
    /// `[C, H, W]` of the images that the network gets.
    pub shape: [usize; 3],
    /// Mean and standard deviation per channel.
    pub normalisation: Normalisation,
    /// Batches without augmentation, in order.
    measuring: LoaderConfig,
    /// Batches to train on.
    training: LoaderConfig,
    /// The most MiB of batches that are read ahead.
    pub(super) prefetch_mib: Option<usize>,
}

impl InputPipeline {
    /// What the configuration asks for, completed by the data set: the shape of its images, its mean and
    /// deviation.
    #[must_use]
    pub fn new(experiment: &Experiment, set: &dyn Dataset) -> Self {
        let data = &experiment.data;
        let shape = image_shape(experiment, set);
        let own = set.normalisation().for_channels(shape[0]);
        let or_own = |key: &Option<Vec<f64>>, own: Vec<f32>| match key {
            Some(numbers) => numbers.iter().map(|&number| number as f32).collect(),
            None => own,
        };
        let normalisation =
            Normalisation { mean: or_own(&data.mean, own.mean), std: or_own(&data.std, own.std) };
        let measuring = LoaderConfig {
            normalisation: Some(normalisation.clone()),
            order: Order::Sequential,
            last: LastBatch::Keep,
            shape: Some(shape),
            resize: data.resize,
            skip_bad: data.on_bad_sample == OnBadSample::Skip,
            decoding: match data.decode {
                Decode::Exact => Decoding::Exact,
                Decode::Fast => Decoding::Fast,
            },
            workers: data.workers.unwrap_or(1),
            seed: experiment.train.seed,
            ..LoaderConfig::new(experiment.validation_batch_size())
        };
        let training = LoaderConfig {
            batch_size: experiment.train.batch_size,
            order: Order::Shuffled,
            augment: augmentation(&experiment.augment),
            mix: mixing(&experiment.augment),
            last: if data.drop_last { LastBatch::Drop } else { LastBatch::Keep },
            ..measuring.clone()
        };
        Self { shape, normalisation, measuring, training, prefetch_mib: data.prefetch_mib }
    }

    /// With masks of this height and width, that of the network's answers.
    #[must_use]
    pub fn with_mask_size(mut self, size: [usize; 2]) -> Self {
        let size = Some(size).filter(|size| size[..] != self.shape[1..]);
        (self.measuring.mask_size, self.training.mask_size) = (size, size);
        self
    }

    /// Batches of images as they are stored, resized: in order, the last one however small.
    #[must_use]
    pub fn measuring(&self, format: BatchFormat, batch_size: usize) -> LoaderConfig {
        let BatchFormat { element, layout } = format;
        LoaderConfig { element, layout, batch_size, ..self.measuring.clone() }
    }

    /// Batches to train on: shuffled and augmented, from the first epoch and without end.
    #[must_use]
    pub fn training(&self, format: BatchFormat) -> LoaderConfig {
        let BatchFormat { element, layout } = format;
        LoaderConfig { element, layout, ..self.training.clone() }
    }

    /// Whether the samples of a training batch are mixed (mixup, cutmix).
    #[must_use]
    pub fn mixes(&self) -> bool {
        self.training.mix.is_on()
    }

    /// How a training program normalises bytes. `None` if the loader has to: some augmentations work on
    /// normalised pixels, and a skipped image is a row of the mean, which no byte is, and which batch norm
    /// would see.
    #[must_use]
    pub fn training_scale_shifts(&self) -> Option<ScaleShifts> {
        let config = self.training(BatchFormat::BYTES);
        if config.skip_bad { None } else { self.scale_shifts(&config) }
    }

    /// How an evaluation program normalises bytes. A skipped image changes nothing there: each sample is seen
    /// alone.
    #[must_use]
    pub fn measuring_scale_shifts(&self) -> Option<ScaleShifts> {
        self.scale_shifts(&self.measuring(BatchFormat::BYTES, 1))
    }

    /// `None` also for a normalisation that the loader will refuse: its error says why.
    fn scale_shifts(&self, config: &LoaderConfig) -> Option<ScaleShifts> {
        let [channels, ..] = self.shape;
        let scale_shifts = self.normalisation.scale_shifts();
        let is_possible = config.needs_numbers().is_none()
            && channels <= MOST_CHANNELS
            && self.normalisation.is_valid(channels)
            && scale_shifts.iter().all(|channel| channel.scale.is_finite() && channel.offset.is_finite());
        let of = |index: usize| {
            scale_shifts.get(index).map_or([0.0; 2], |channel| [channel.scale, channel.offset])
        };
        is_possible.then(|| std::array::from_fn(of))
    }
}

// The loader writes mixed labels as the loss reads them.
const _: () = assert!(mix::LABELS == MIXED && mix::WHOLE == WHOLE_SHARE);

/// Mixup and cutmix.
fn mixing(settings: &experiment::Augment) -> Mix {
    Mix { mixup: settings.mixup, cutmix: settings.cutmix, of_samples: settings.mixed_share }
}

/// The random changes of single images.
fn augmentation(settings: &experiment::Augment) -> Augment {
    // The keys' limits fit u16.
    let pixels = |pixels: usize| u16::try_from(pixels).unwrap_or(u16::MAX);
    let range = |numbers: &[f64], default: [f64; 2]| numbers.try_into().unwrap_or(default);
    let crop = ResizedCrop::default();
    let crop =
        ResizedCrop { scale: range(&settings.scale, crop.scale), ratio: range(&settings.ratio, crop.ratio) };
    Augment {
        shift: pixels(settings.shift),
        padding: match settings.padding {
            experiment::Padding::Zero => Padding::Zero,
            experiment::Padding::Reflect => Padding::Reflect,
        },
        flip: settings.flip,
        alternate_flip: settings.alternate_flip,
        cutout: pixels(settings.cutout),
        resized_crop: settings.random_resized_crop.then_some(crop),
        random_crop: settings.random_crop,
        rotation: settings.rotation,
        zoom: settings.zoom.as_deref().map(|zoom| range(zoom, [1.0; 2])),
        colour: ColourJitter {
            brightness: settings.brightness,
            contrast: settings.contrast,
            saturation: settings.saturation,
            hue: settings.hue,
        },
    }
}
