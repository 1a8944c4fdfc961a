//! The input pipeline: configures the loader that makes batches of images for training and evaluation.

use super::open_options;
use std::sync::Arc;
use stratus_data::stats::target_statistics;
use stratus_data::{
    Augment, ColourJitter, Dataset, Decoding, Element, LastBatch, Layout, LoaderConfig, Mix, Normalisation,
    Order, Padding, ResizedCrop, TargetKind, TargetScale, mix,
};
use stratus_engine::ops::{FULL_SHARE, MAX_IMAGE_CHANNELS, MIXED_LABEL_LEN};
use stratus_engine::{DType, Plan, Role};
use stratus_experiment::{self as experiment, Annotation, DatasetFacts, Decode, Experiment, OnBadSample};

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
    pub fn from_plan(plan: &Plan) -> Self {
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

    /// Byte images, which the program normalises.
    const BYTES: Self = Self { element: Element::U8, layout: Layout::Nhwc };
}

/// The `[scale, offset]` per channel by which a program normalises bytes: `scale * byte + offset`.
pub type ScaleShifts = [[f32; 2]; MAX_IMAGE_CHANNELS];

/// The shape `[C, H, W]` of the network's input: as set, else of the data set, else as published for the
/// network.
pub(crate) fn image_shape(experiment: &Experiment, set: &dyn Dataset) -> [usize; 3] {
    experiment.shape().or(set.sample_shape()).unwrap_or_else(|| open_options(experiment).shape)
}

/// The mean and standard deviation per channel: as set, else of the data set.
fn normalisation(experiment: &Experiment, set: &dyn Dataset, [channels, ..]: [usize; 3]) -> Normalisation {
    let of_set = set.normalisation().for_channels(channels);
    let or_default = |key: &Option<Vec<f64>>, default: Vec<f32>| match key {
        Some(numbers) => numbers.iter().map(|&number| number as f32).collect(),
        None => default,
    };
    Normalisation {
        mean: or_default(&experiment.data.mean, of_set.mean),
        std: or_default(&experiment.data.std, of_set.std),
    }
}

/// The facts of a data set that settle keys of an experiment.
pub(crate) fn dataset_facts<'a>(experiment: &Experiment, set: &'a dyn Dataset) -> DatasetFacts<'a> {
    let input_shape = image_shape(experiment, set);
    let Normalisation { mean, std } = normalisation(experiment, set, input_shape);
    let annotation = annotation(set);
    // Those of the training images, which a run records: an evaluation has them.
    let target_scales = match (annotation, &experiment.data.target_mean) {
        (Annotation::Numbers, None) => Some(target_scales(set)),
        _ => None,
    };
    let (name, samples) = (set.name(), set.len());
    DatasetFacts { name, samples, annotation, target_scales, input_shape, mean, std }
}

/// The mean and the standard deviation of each target of a data set with numbers.
fn target_scales(set: &dyn Dataset) -> [Vec<f32>; 2] {
    let targets = target_statistics(set);
    let mean = targets.iter().map(|target| target.mean as f32).collect();
    // A constant target has no deviation: its standardised values are 0.
    let std = |deviation: f64| if deviation > 0.0 { deviation as f32 } else { 1.0 };
    [mean, targets.iter().map(|target| std(target.deviation)).collect()]
}

/// The annotation of the images of a data set.
pub(crate) fn annotation(set: &dyn Dataset) -> Annotation {
    match set.target_kind() {
        Some(TargetKind::Labels) => Annotation::Labels,
        Some(TargetKind::Numbers) => Annotation::Numbers,
        None if set.has_masks() => Annotation::Mask,
        None => Annotation::Class,
    }
}

/// Makes batches of an experiment's images.
#[derive(Clone, Debug, PartialEq)]
pub struct InputPipeline {
    /// The shape `[C, H, W]` of the network's input.
    pub shape: [usize; 3],
    /// Mean and standard deviation per channel.
    pub normalisation: Normalisation,
    /// Configuration of batches in order, without augmentation.
    evaluation: LoaderConfig,
    /// Configuration of training batches.
    training: LoaderConfig,
    /// Maximum MiB of batches that are read ahead.
    pub(super) prefetch_mib: Option<usize>,
}

impl InputPipeline {
    /// The pipeline of an experiment; the data set completes image shape, mean and standard deviation.
    #[must_use]
    pub fn new(experiment: &Experiment, set: &dyn Dataset) -> Self {
        let data = &experiment.data;
        let shape = image_shape(experiment, set);
        let normalisation = normalisation(experiment, set, shape);
        let numbers = |key: &Option<Vec<f64>>| key.clone().unwrap_or_default();
        let scales: Arc<[TargetScale]> = numbers(&data.target_mean)
            .into_iter()
            .zip(numbers(&data.target_std))
            .map(|(mean, deviation)| TargetScale { mean: mean as f32, deviation: deviation as f32 })
            .collect();
        let evaluation = LoaderConfig {
            // Images without annotations, to be predicted, have nothing to standardise.
            target_scales: Some(scales)
                .filter(|scales| set.target_kind() == Some(TargetKind::Numbers) && !scales.is_empty()),
            normalisation: Some(normalisation.clone()),
            order: Order::Sequential,
            last: LastBatch::Keep,
            shape: Some(shape),
            resize: data.resize,
            skip_damaged: data.on_bad_sample == OnBadSample::Skip,
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
            ..evaluation.clone()
        };
        Self { shape, normalisation, evaluation, training, prefetch_mib: data.prefetch_mib }
    }

    /// The same pipeline with masks of this height and width, those of the network's output.
    #[must_use]
    pub fn with_mask_size(mut self, size: [usize; 2]) -> Self {
        let size = Some(size).filter(|size| size[..] != self.shape[1..]);
        (self.evaluation.mask_size, self.training.mask_size) = (size, size);
        self
    }

    /// The same pipeline with other numbers of samples in a training batch and a validation batch.
    #[must_use]
    pub(crate) fn with_batch_sizes(mut self, training: usize, validation: usize) -> Self {
        (self.training.batch_size, self.evaluation.batch_size) = (training, validation);
        self
    }

    /// Batches for evaluation: in order, without augmentation, including a smaller last batch.
    #[must_use]
    pub fn evaluation(&self, format: BatchFormat, batch_size: usize) -> LoaderConfig {
        let BatchFormat { element, layout } = format;
        LoaderConfig { element, layout, batch_size, ..self.evaluation.clone() }
    }

    /// Batches for training: shuffled and augmented, endless from the first epoch.
    #[must_use]
    pub fn training(&self, format: BatchFormat) -> LoaderConfig {
        let BatchFormat { element, layout } = format;
        LoaderConfig { element, layout, ..self.training.clone() }
    }

    /// Returns whether the samples of a training batch are mixed (mixup, cutmix).
    #[must_use]
    pub fn mixes(&self) -> bool {
        self.training.mix.is_on()
    }

    /// The normalisation of bytes in a training program. `None` if the loader has to normalise: some
    /// augmentations work on normalised pixels, and a skipped image becomes a row of the mean, which no byte
    /// represents and which batch norm would see.
    #[must_use]
    pub fn training_scale_shifts(&self) -> Option<ScaleShifts> {
        let config = self.training(BatchFormat::BYTES);
        if config.skip_damaged { None } else { self.scale_shifts(&config) }
    }

    /// The normalisation of bytes in an evaluation program. Skipped images do not matter there, since samples
    /// are independent.
    #[must_use]
    pub fn evaluation_scale_shifts(&self) -> Option<ScaleShifts> {
        self.scale_shifts(&self.evaluation(BatchFormat::BYTES, 1))
    }

    /// `None` also for an invalid normalisation, which the loader reports.
    fn scale_shifts(&self, config: &LoaderConfig) -> Option<ScaleShifts> {
        let [channels, ..] = self.shape;
        let scale_shifts = self.normalisation.scale_shifts();
        let is_possible = config.byte_images_problem().is_none()
            && channels <= MAX_IMAGE_CHANNELS
            && self.normalisation.is_valid(channels)
            && scale_shifts.iter().all(|channel| channel.scale.is_finite() && channel.offset.is_finite());
        let channel = |index: usize| {
            scale_shifts.get(index).map_or([0.0; 2], |channel| [channel.scale, channel.offset])
        };
        is_possible.then(|| std::array::from_fn(channel))
    }
}

// The loader writes mixed labels in the format of the loss.
const _: () = assert!(mix::LABELS_PER_SAMPLE == MIXED_LABEL_LEN && mix::FULL_SHARE == FULL_SHARE);

/// The settings of mixup and cutmix.
fn mixing(settings: &experiment::Augment) -> Mix {
    Mix { mixup: settings.mixup, cutmix: settings.cutmix, probability: settings.mixed_share }
}

/// The augmentation of single images.
fn augmentation(settings: &experiment::Augment) -> Augment {
    // The constraints of the keys fit u16.
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
