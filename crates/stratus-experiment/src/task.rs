//! The task of a network: what it predicts, which follows from the annotations of its images and its loss.
//!
//! | annotation | `cross_entropy` | `binary_cross_entropy` | `squared_error`, `huber` |
//! |---|---|---|---|
//! | one class per image | classification, the default | labels, one applies | regression on class names |
//! | a class per pixel | segmentation, the default | segmentation of two classes with one output | |
//! | labels | | several labels, the default | |
//! | numbers | | | regression; the default is `squared_error` |

use crate::resolve::{DatasetFacts, NetworkFacts};
use crate::{ClassWeighting, EpochMetric, Experiment, ExperimentError, LossFunction, PositiveWeighting};
use stratus_run::csv::Task;

/// The annotation of the images of a data set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Annotation {
    /// One class per image.
    #[default]
    Class,
    /// One class per pixel.
    Mask,
    /// Several labels per image, each of which applies or does not.
    Labels,
    /// Several numbers per image, the targets.
    Numbers,
}

impl Annotation {
    /// The loss of a training that does not set one.
    fn default_loss(self) -> LossFunction {
        match self {
            Self::Class | Self::Mask => LossFunction::CrossEntropy,
            Self::Labels => LossFunction::BinaryCrossEntropy,
            Self::Numbers => LossFunction::SquaredError,
        }
    }

    /// In words, for messages.
    fn describe(self) -> &'static str {
        match self {
            Self::Class => "one class per image",
            Self::Mask => "a class for each pixel",
            Self::Labels => "several labels per image",
            Self::Numbers => "numbers per image",
        }
    }

    /// The losses that learn from this annotation.
    fn losses(self) -> &'static [LossFunction] {
        use LossFunction::{BinaryCrossEntropy, CrossEntropy, Huber, SquaredError};
        match self {
            Self::Class => &[CrossEntropy, BinaryCrossEntropy, SquaredError, Huber],
            Self::Mask => &[CrossEntropy, BinaryCrossEntropy],
            Self::Labels => &[BinaryCrossEntropy],
            Self::Numbers => &[SquaredError, Huber],
        }
    }
}

impl LossFunction {
    /// Every loss.
    const ALL: [Self; 4] = [Self::CrossEntropy, Self::BinaryCrossEntropy, Self::SquaredError, Self::Huber];

    /// The loss of a name; `None` if there is none.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|loss| loss.as_str() == name)
    }

    /// The task of a network for whole images that is trained with this loss.
    #[must_use]
    pub fn task_of_images(self) -> Task {
        match self {
            Self::CrossEntropy => Task::Classification,
            Self::BinaryCrossEntropy => Task::MultiLabel,
            Self::SquaredError | Self::Huber => Task::Regression,
        }
    }
}

/// The task of a network on the images of a data set, and its loss.
///
/// # Errors
/// If data set, network and loss are for different tasks, or an augmentation would make targets wrong.
pub(crate) fn task(
    experiment: &Experiment,
    dataset: &DatasetFacts<'_>,
    network: &NetworkFacts<'_>,
) -> Result<(Task, LossFunction), ExperimentError> {
    let annotation = dataset.annotation;
    let loss = experiment.train.loss.unwrap_or(annotation.default_loss());
    let unsuitable = |problem: String, hint: String| Err(ExperimentError::Unsuitable { problem, hint });
    if !annotation.losses().contains(&loss) {
        let losses: Vec<&str> = annotation.losses().iter().map(|loss| loss.as_str()).collect();
        return unsuitable(
            format!(
                "train.loss = {} cannot be learned from data set `{}`, which has {}",
                loss.as_str(),
                dataset.name,
                annotation.describe()
            ),
            format!("set train.loss to {}, or choose another data set with data.name", losses.join(" or ")),
        );
    }
    let predicts_pixels = network.output_shape.len() == 3;
    let task = match (annotation, predicts_pixels) {
        (Annotation::Mask, true) => Task::Segmentation,
        (Annotation::Mask, false) => {
            return unsuitable(
                format!(
                    "data set `{}` is for segmentation, but network `{}` is for classification",
                    dataset.name, network.name
                ),
                "choose a segmentation network with model.name, or a classification data set with \
                 data.name; `stratus model list` and `stratus data list` list them"
                    .to_owned(),
            );
        }
        (Annotation::Class | Annotation::Labels | Annotation::Numbers, true) => {
            return unsuitable(
                format!(
                    "network `{}` is for segmentation, but data set `{}` has {}",
                    network.name,
                    dataset.name,
                    annotation.describe()
                ),
                "choose a data set with masks, such as camvid, with data.name; `stratus data list` lists \
                 them"
                    .to_owned(),
            );
        }
        (Annotation::Class | Annotation::Labels | Annotation::Numbers, false) => loss.task_of_images(),
    };
    if task == Task::Regression {
        check_augmentation(experiment)?;
        let count = experiment.data.target_mean.as_ref().map(Vec::len);
        if let Some(found) = count.filter(|&found| found != network.classes) {
            return unsuitable(
                format!(
                    "data.target_mean has {found} numbers, but data set `{}` has {} targets",
                    dataset.name, network.classes
                ),
                "set a number for each target, or remove data.target_mean and data.target_std".to_owned(),
            );
        }
    }
    check_weights(experiment, task)?;
    check_views(experiment, task)?;
    Ok((task, loss))
}

/// Checks that the settings of the loss have a meaning for the task.
fn check_weights(experiment: &Experiment, task: Task) -> Result<(), ExperimentError> {
    let train = &experiment.train;
    let positive = train.positive_weights.is_some() || train.positive_weighting != PositiveWeighting::None;
    let is_numbers = task == Task::Regression;
    let settings = [
        ("train.label_smoothing", is_numbers && train.label_smoothing > 0.0),
        ("train.class_weighting", is_numbers && train.class_weighting != ClassWeighting::None),
        ("train.positive_weights", positive && task != Task::MultiLabel),
        ("data.target_mean", experiment.data.target_mean.is_some() && !is_numbers),
    ];
    let Some((key, _)) = settings.into_iter().find(|(_, is_wrong)| *is_wrong) else { return Ok(()) };
    let (problem, hint) = match key {
        "train.positive_weights" => (
            "train.positive_weights, train.positive_weighting: only multi-label training has positive \
             weights",
            "remove them, or weight classes with train.class_weights",
        ),
        "data.target_mean" => (
            "data.target_mean, data.target_std: only numbers are standardised",
            "remove them, or set train.loss to squared_error or huber",
        ),
        "train.class_weighting" => {
            ("train.class_weighting: numbers have no frequency", "weight them with train.class_weights")
        }
        _ => ("train.label_smoothing: has no meaning for regression", "remove it"),
    };
    Err(ExperimentError::Unsuitable { problem: problem.to_owned(), hint: hint.to_owned() })
}

/// Checks that augmentation keeps numbers true.
fn check_augmentation(experiment: &Experiment) -> Result<(), ExperimentError> {
    let augment = &experiment.augment;
    if augment.cutmix > 0.0 {
        return Err(ExperimentError::Unsuitable {
            problem: "data.augment.cutmix: the number of a pasted rectangle is unknown".to_owned(),
            hint: "remove it, or use data.augment.mixup".to_owned(),
        });
    }
    let changes = [
        ("flip", augment.flip),
        ("alternate_flip", augment.alternate_flip),
        ("rotation", augment.rotation > 0.0),
        ("zoom", augment.zoom.is_some()),
        ("random_crop", augment.random_crop),
        ("random_resized_crop", augment.random_resized_crop),
        ("shift", augment.shift > 0),
        ("cutout", augment.cutout > 0),
    ];
    let changed: Vec<&str> = changes.into_iter().filter(|(_, is_on)| *is_on).map(|(key, _)| key).collect();
    let [first, ..] = changed[..] else { return Ok(()) };
    if augment.keeps_targets {
        return Ok(());
    }
    let keys: Vec<String> = changed.iter().map(|key| format!("data.augment.{key}")).collect();
    Err(ExperimentError::Unsuitable {
        problem: format!(
            "{} may change the numbers of an image, such as an angle or a count",
            keys.join(", ")
        ),
        hint: format!(
            "turn it off, such as with --set data.augment.{first}=false; or, if the numbers stay true, set \
             data.augment.keeps_targets=true"
        ),
    })
}

/// Checks that a validation of several views is possible: only probabilities of classes are averaged.
fn check_views(experiment: &Experiment, task: Task) -> Result<(), ExperimentError> {
    let validation = &experiment.validation;
    if matches!(task, Task::Classification | Task::Segmentation)
        || !(validation.mirror || validation.shift > 0)
    {
        return Ok(());
    }
    Err(ExperimentError::Unsuitable {
        problem: "validation.mirror, validation.shift: views are averaged only for one class per image"
            .to_owned(),
        hint: "remove them".to_owned(),
    })
}

/// Checks that the metrics of an experiment's settings are metrics of its task.
pub(crate) fn check_metrics(experiment: &Experiment, task: Task) -> Result<(), ExperimentError> {
    let stopping = &experiment.early_stopping;
    let metrics = [
        ("train.early_stopping.measure", stopping.patience.map(|_| stopping.measure)),
        ("checkpoint.keep_best", experiment.checkpoint.keep_best),
    ];
    for (key, metric) in metrics {
        if let Some(metric) = metric.filter(|metric| !metric.applies_to(task)) {
            return Err(ExperimentError::Unsuitable {
                problem: format!("{key}: this run does not record {metric}"),
                hint: format!("choose one of: {}", EpochMetric::names(task).join(", ")),
            });
        }
    }
    Ok(())
}
