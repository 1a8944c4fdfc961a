//! How an experiment's images are fed to its programs: the settings of the loader that follow from the configuration.

use crate::Experiment;
use crate::compile::open_options;
use crate::experiment::{self, OnBadSample};
use stratus_data::{
    Augment, ColourJitter, Dataset, Element, LastBatch, Layout, LoaderConfig, Mix, Normalisation, Order,
    Padding, ResizedCrop, mix,
};
use stratus_engine::ops::{MIXED, WHOLE_SHARE};
use stratus_engine::{DType, Plan};

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
    pub(crate) fn of(plan: &Plan) -> Self {
        let dtype = plan.program.values.iter().find(|value| value.name == "images").map(|value| value.dtype);
        let channels_last = plan.external(0).is_some_and(|place| place.layout.tag == "nhwc");
        Self {
            element: if dtype == Some(DType::Bf16) { Element::Bf16 } else { Element::F32 },
            layout: if channels_last { Layout::Nhwc } else { Layout::Nchw },
        }
    }
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
