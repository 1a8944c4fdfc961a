//! How an experiment's images are fed to its programs: the settings of the loader that follow from the configuration.

use crate::Experiment;
use crate::compile::open_options;
use crate::experiment::{self, OnBadSample};
use stratus_data::{
    Augment, ColourJitter, Dataset, Element, LastBatch, Layout, LoaderConfig, Mix, Normalisation, Order,
    Padding, ResizedCrop, mix,
};
use stratus_engine::ops::{MIXED, MOST_CHANNELS, WHOLE_SHARE};
use stratus_engine::{DType, Plan, Role};

/// Channels, height and width of the images that the network gets of a data set.
#[must_use]
pub fn image_shape(experiment: &Experiment, set: &dyn Dataset) -> [usize; 3] {
    experiment.shape().or(set.sample_shape()).unwrap_or_else(|| open_options(experiment).shape)
}

/// What a batch's images look like in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// The type of their elements.
    pub element: Element,
    /// The order of their elements.
    pub layout: Layout,
}

impl Form {
    /// As the program of a plan reads them.
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
}

/// Scale and offset of the pixels of each channel, as a program normalises them that takes images as bytes.
pub type Lines = [[f32; 2]; MOST_CHANNELS];

/// Images as bytes.
const BYTES: Form = Form { element: Element::U8, layout: Layout::Nhwc };

/// How a program normalises the images that an experiment trains on, where they can be handed to it as bytes: where nothing that is done to them at
/// random needs them to be normalised before.
#[must_use]
pub fn training_lines(experiment: &Experiment, set: &dyn Dataset) -> Option<Lines> {
    let config = training(experiment, image_shape(experiment, set), BYTES);
    // The row of an image that is left out holds zeros, the mean: as pixels they would be black, and batch norms would see it.
    if config.skip_bad { None } else { lines(&config, set) }
}

/// The same of images that are measured. There a row without an image changes nothing: each sample is seen alone.
#[must_use]
pub fn measuring_lines(experiment: &Experiment, set: &dyn Dataset) -> Option<Lines> {
    lines(&measuring(experiment, image_shape(experiment, set), BYTES, 1), set)
}

/// What a loader would normalise by. What it would refuse is left to it, as it says why.
fn lines(config: &LoaderConfig, set: &dyn Dataset) -> Option<Lines> {
    let [channels, ..] = config.shape?;
    let normalisation = config.normalisation_of(set, channels);
    let lines = normalisation.lines();
    let is_possible = config.needs_numbers().is_none()
        && channels <= MOST_CHANNELS
        && normalisation.is_valid(channels)
        && lines.iter().all(|line| line.scale.is_finite() && line.offset.is_finite());
    let of = |channel: usize| lines.get(channel).map_or([0.0; 2], |line| [line.scale, line.offset]);
    is_possible.then(|| std::array::from_fn(of))
}

/// Batches of images as they are stored, but for their size: in order, the last one however small.
#[must_use]
pub fn measuring(experiment: &Experiment, shape: [usize; 3], form: Form, batch_size: usize) -> LoaderConfig {
    LoaderConfig {
        normalisation: match (&experiment.data.mean, &experiment.data.std) {
            (Some(mean), Some(std)) => Some(Normalisation {
                mean: mean.iter().map(|&m| m as f32).collect(),
                std: std.iter().map(|&s| s as f32).collect(),
            }),
            _ => None,
        },
        order: Order::Sequential,
        last: LastBatch::Keep,
        element: form.element,
        layout: form.layout,
        shape: Some(shape),
        resize: experiment.data.resize,
        skip_bad: experiment.data.on_bad_sample == OnBadSample::Skip,
        workers: experiment.data.workers,
        seed: experiment.train.seed,
        ..LoaderConfig::new(batch_size)
    }
}

/// Batches to train on: shuffled and changed at random, from the beginning and without end.
#[must_use]
pub fn training(experiment: &Experiment, shape: [usize; 3], form: Form) -> LoaderConfig {
    LoaderConfig {
        order: Order::Shuffled,
        augment: augmentation(&experiment.augment),
        mix: mixing(&experiment.augment),
        last: if experiment.data.drop_last { LastBatch::Drop } else { LastBatch::Keep },
        ..measuring(experiment, shape, form, experiment.train.batch_size)
    }
}

// What the loader writes is what the loss reads.
const _: () = assert!(mix::LABELS == MIXED && mix::WHOLE == WHOLE_SHARE);

/// How the configuration asks for images to be mixed.
pub(crate) fn mixing(settings: &experiment::Augment) -> Mix {
    Mix { mixup: settings.mixup, cutmix: settings.cutmix, of_samples: settings.mixed_share }
}

/// The random changes that the configuration asks for.
fn augmentation(settings: &experiment::Augment) -> Augment {
    // Keys are limited to what fits.
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
