//! From what was asked for to what will be done.
//!
//! ```text
//! Experiment   what the configuration asks for; many keys may be unset or "auto"
//! data set     image shape, normalisation, samples, classes
//! network      its number of classes                              ──▶ Resolved
//! device       number formats, threads, caches
//! memory limit how much of the activations may be kept (`compile::fit`)
//! ```
//!
//! A run's `experiment.toml` is its [`Resolved`]; resolving that again gives the same, so a continued run is
//! the run that was interrupted.

use crate::device::OpenDevice;
use crate::experiment::{self, Experiment, Measure};
use crate::input::{InputPipeline, usable_cores, workers_beside};
use crate::{Schedule, TrainError};
use stratus_data::{Dataset, Share, View};
use stratus_engine::{Precision, Stage};
use stratus_graph::Graph;
use stratus_run::csv::Task;
use stratus_run::layout::NETWORK;

/// An experiment with nothing left open: what programs, loaders and the training loop are made from.
/// Immutable.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// Every key, set to what it comes to.
    settings: Experiment,
    input: InputPipeline,
    precision: Precision,
    task: Task,
    /// Samples of the data set.
    samples: usize,
    /// Whether `validation.batch_size` is another than that of training, and does not follow it.
    own_validation_batch: bool,
    tail_batch: Option<usize>,
    place: Place,
    stage: Option<Stage>,
    stage_room: Option<StageRoom>,
}

/// What a stage of a pipeline may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StageRoom {
    /// Bytes, as far as they are known before kernels are.
    pub bytes: usize,
    /// Whether it recomputes its activations, so that it keeps few of the parts that it is ahead.
    pub recomputes: bool,
}

/// Which of the workers that share out batches this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number, from 0.
    pub rank: usize,
    /// How many there are.
    pub workers: usize,
}

impl Place {
    /// A process that trains alone.
    pub const ALONE: Self = Self { rank: 0, workers: 1 };
}

impl Resolved {
    /// Resolves an experiment that trains `graph` on `dataset` with `device`. For one that only measures,
    /// `dataset` is the data set to measure on.
    ///
    /// # Errors
    /// If the device cannot compute in the number format that `train.precision` asks for, or the network's
    /// answers are not of the data set's kind.
    pub fn new(
        experiment: &Experiment,
        dataset: &dyn Dataset,
        graph: &Graph,
        device: &OpenDevice,
    ) -> Result<Self, TrainError> {
        let mut experiment = experiment.clone();
        experiment.data.workers = experiment.data.workers.or_else(|| workers_beside(device));
        let experiment = &experiment;
        let input = InputPipeline::new(experiment, dataset);
        let input = match graph.shape(graph.output).0[..] {
            [_, height, width] => input.with_mask_size([height, width]),
            _ => input,
        };
        let precision = precision(experiment.train.precision, device)?;
        let task = task(dataset, graph)?;
        expect_measures(experiment, task)?;
        let mut settings = experiment.completed();
        settings.train.precision = match precision {
            Precision::F16 => experiment::Precision::F16,
            Precision::Bf16 => experiment::Precision::Bf16,
            Precision::F32 | Precision::F64 => experiment::Precision::F32,
        };
        settings.train.threads = device.backend.threads();
        settings.train.tile_kib.get_or_insert(device.tile_kib);
        settings.model.classes = Some(graph.classes());
        settings.data.shape = Some(input.shape.to_vec());
        let decimals = |values: &[f32]| values.iter().map(|&value| shortest_decimal(value)).collect();
        settings.data.mean.get_or_insert_with(|| decimals(&input.normalisation.mean));
        settings.data.std.get_or_insert_with(|| decimals(&input.normalisation.std));
        let samples = dataset.len();
        let own_validation_batch =
            experiment.validation.batch_size.is_some_and(|batch| batch != experiment.micro_batch_size());
        let resolved = Self {
            settings,
            input,
            precision,
            task,
            samples,
            own_validation_batch,
            tail_batch: None,
            place: Place::ALONE,
            stage: None,
            stage_room: None,
        };
        Ok(resolved.with_tail())
    }

    fn with_tail(self) -> Self {
        let rest = self.samples % self.settings.train.batch_size;
        let tail_batch = (rest > 0 && !self.settings.data.drop_last).then_some(rest);
        Self { tail_batch, ..self }
    }

    /// The same for one of several workers.
    #[must_use]
    pub fn with_place(&self, place: Place) -> Self {
        Self { place, ..self.clone() }
    }

    /// The same for one stage of a pipeline, or for the whole network.
    #[must_use]
    pub fn with_stage(&self, stage: Option<Stage>) -> Self {
        Self { stage, ..self.clone() }
    }

    /// The same with stages that are to need no more than this.
    #[must_use]
    pub(crate) fn with_stage_room(&self, room: StageRoom) -> Self {
        Self { stage_room: Some(room), ..self.clone() }
    }

    /// What a stage may need.
    #[must_use]
    pub(crate) fn stage_room(&self) -> StageRoom {
        self.stage_room.unwrap_or(StageRoom { bytes: self.memory_limit(), recomputes: false })
    }

    /// Which stage of a pipeline this process is.
    #[must_use]
    pub fn stage(&self) -> Option<Stage> {
        self.stage
    }

    /// Which of the workers this process is.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place
    }

    /// Into how many parts a batch is cut, at least 1.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.settings.train.parts.max(1)
    }

    /// The parts of every batch that this worker has.
    #[must_use]
    pub fn share(&self) -> Share {
        let (parts, Place { rank, workers }) = (self.parts(), self.place);
        let count = parts / workers;
        Share { parts, first: rank * count, count }
    }

    /// The same in batches of another size, which is not 0.
    #[must_use]
    pub fn with_batch_size(&self, batch: usize) -> Self {
        let mut resolved = self.clone();
        resolved.settings.train.batch_size = batch.max(1);
        if !resolved.own_validation_batch {
            resolved.settings.validation.batch_size = Some(resolved.settings.micro_batch_size().max(1));
        }
        resolved.with_tail()
    }

    /// The same with at most `kib` KiB of activations and gradients alive at once; `None` keeps all of them.
    #[must_use]
    pub(crate) fn with_activations_kib(&self, kib: Option<usize>) -> Self {
        let mut resolved = self.clone();
        resolved.settings.train.activations_kib = kib;
        resolved
    }

    /// Every configuration key, set to what it comes to.
    #[must_use]
    pub fn settings(&self) -> &Experiment {
        &self.settings
    }

    /// How images become batches.
    #[must_use]
    pub fn input(&self) -> &InputPipeline {
        &self.input
    }

    /// The most loader threads: `data.workers`, or where training decides, the usable cores.
    #[must_use]
    pub fn most_workers(&self) -> usize {
        self.settings.data.workers.unwrap_or_else(usable_cores)
    }

    /// The number format of activations and gradients.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// What the network learns to say of an image.
    #[must_use]
    pub fn task(&self) -> Task {
        self.task
    }

    /// Samples of an epoch.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Samples in an epoch's last batch; `None` if it is a whole one, or dropped.
    #[must_use]
    pub fn tail_batch(&self) -> Option<usize> {
        self.tail_batch
    }

    /// Samples in a batch of validation.
    #[must_use]
    pub fn validation_batch(&self) -> usize {
        self.settings.validation_batch_size()
    }

    /// Bytes of cache that a tile of the batch should fit; 0: no tiles.
    #[must_use]
    pub fn tile_bytes(&self) -> usize {
        self.settings.train.tile_kib.unwrap_or(0) << 10
    }

    /// Bytes that parameters, activations and scratch may take.
    #[must_use]
    pub fn memory_limit(&self) -> usize {
        self.settings.train.memory_limit_mib.map_or(usize::MAX, |mib| mib << 20)
    }

    /// Bytes of activations and gradients that may be alive at once; more are recomputed in the backward
    /// pass.
    #[must_use]
    pub fn activations_limit(&self) -> usize {
        self.settings.train.activations_kib.map_or(usize::MAX, |kib| kib << 10)
    }

    /// The views of each image that validation averages over; the first is the image as it is.
    #[must_use]
    pub fn views(&self) -> Vec<View> {
        validation_views(&self.settings)
    }

    /// How the learning rate moves.
    #[must_use]
    pub fn schedule(&self) -> Schedule {
        Schedule::of(&self.settings)
    }

    /// The content of a run's `experiment.toml`. A layer file is named as the copy beside it.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut recorded = self.settings.clone();
        if recorded.layer_file().is_some() {
            recorded.model.name = NETWORK.to_owned();
        }
        recorded.to_toml()
    }
}

/// The views of each image that validation averages over.
pub(crate) fn validation_views(experiment: &Experiment) -> Vec<View> {
    View::all(experiment.validation.mirror, experiment.validation.shift)
}

/// What `graph` can learn to say of the images of `dataset`.
fn task(dataset: &dyn Dataset, graph: &Graph) -> Result<Task, TrainError> {
    let of_data = if dataset.masks() { Task::Segmentation } else { Task::Classification };
    let of_network = match graph.shape(graph.output).0.len() {
        3 => Task::Segmentation,
        _ => Task::Classification,
    };
    let (problem, hint) = match (of_data, of_network) {
        (Task::Segmentation, Task::Classification) => (
            format!(
                "data set `{}` has a class for every pixel, but network `{}` gives one answer for an image",
                dataset.name(),
                graph.name
            ),
            "choose a segmentation network with model.name, or a data set with a class for every image with \
             data.name; `stratus model list` and `stratus data list` name them",
        ),
        (Task::Classification, Task::Segmentation) => (
            format!(
                "network `{}` gives a class for every pixel, but data set `{}` has one class for an image",
                graph.name,
                dataset.name()
            ),
            "choose a data set with masks, such as camvid, with data.name; `stratus data list` names them",
        ),
        _ => return Ok(of_data),
    };
    Err(TrainError::Configuration { problem, hint: hint.to_owned() })
}

/// Checks that the measures that an experiment goes by are those of its task.
fn expect_measures(experiment: &Experiment, task: Task) -> Result<(), TrainError> {
    let stopping = &experiment.early_stopping;
    let measures = [
        ("train.early_stopping.measure", stopping.patience.map(|_| stopping.measure)),
        ("checkpoint.keep_best", experiment.checkpoint.keep_best),
    ];
    for (key, measure) in measures {
        if let Some(measure) = measure.filter(|measure| !measure.is_of(task)) {
            return Err(TrainError::Configuration {
                problem: format!("{key} is {measure}, which this run does not measure"),
                hint: format!("choose one that it measures: {}", Measure::names(task).join(", ")),
            });
        }
    }
    Ok(())
}

/// The number format that `train.precision` comes to.
pub(crate) fn precision(key: experiment::Precision, device: &OpenDevice) -> Result<Precision, TrainError> {
    let precision = match key {
        experiment::Precision::F32 => Precision::F32,
        experiment::Precision::Bf16 => Precision::Bf16,
        experiment::Precision::F16 => Precision::F16,
        experiment::Precision::Auto if device.fast_bf16 => Precision::Bf16,
        experiment::Precision::Auto => Precision::F32,
    };
    let possible = device.backend.precisions();
    if possible.contains(&precision) {
        return Ok(precision);
    }
    let possible: Vec<String> = possible.iter().map(ToString::to_string).collect();
    let hint = match precision {
        Precision::F16 => "take a GPU with --set train.device=cuda, or a number format that is possible here",
        _ => "set train.precision to one of these",
    };
    Err(TrainError::Configuration {
        problem: format!(
            "train.precision is {precision}; {} computes in {} on this machine",
            device.backend.name(),
            possible.join(", ")
        ),
        hint: hint.to_owned(),
    })
}

/// The shortest decimal that reads as the same `f32`, as an `f64`: 0.1307, not 0.13070000708.
fn shortest_decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Network;
    use std::path::Path;
    use std::sync::Arc;
    use stratus_data::{Split, open};
    use stratus_engine::reference::ReferenceBackend;

    fn experiment(keys: &[(&str, &str)]) -> Experiment {
        let set = [("data.name", "synthetic"), ("data.synthetic.images", "22"), ("train.batch_size", "8")];
        let keys: Vec<_> = set.iter().chain(keys).copied().collect();
        Experiment::builtin("digits").unwrap().with_overrides(&keys).unwrap()
    }

    fn resolve(experiment: &Experiment) -> Resolved {
        let options = crate::input::open_options(experiment);
        let set = open("synthetic", Path::new(""), Split::Train, &options).unwrap();
        let set: Arc<dyn Dataset> = Arc::from(set);
        let graph = Network::of(experiment, set.as_ref()).unwrap().graph;
        let device = OpenDevice::new(Box::new(ReferenceBackend));
        Resolved::new(experiment, set.as_ref(), &graph, &device).unwrap()
    }

    #[test]
    fn nothing_is_left_open() {
        let resolved = resolve(&experiment(&[]));
        let Experiment { data, model, train, validation, .. } = resolved.settings();
        assert_eq!(data.shape.as_deref(), Some(&resolved.input().shape[..]));
        assert!(data.path.is_some() && data.mean.is_some() && data.std.is_some());
        assert_eq!((model.classes, train.precision), (Some(10), experiment::Precision::F32));
        assert_eq!((train.threads, train.tile_kib, validation.batch_size), (1, Some(0), Some(8)));
        assert_eq!(resolved.tail_batch(), Some(22 % 8));
    }

    #[test]
    fn what_was_resolved_resolves_to_itself() {
        for keys in [
            &[][..],
            &[("data.mean", "[0.25]")],
            &[("data.std", "[0.3]"), ("train.tile_kib", "64"), ("train.activations_kib", "100")],
            &[("train.micro_batches", "2"), ("data.drop_last", "true")],
        ] {
            let resolved = resolve(&experiment(keys));
            let recorded = Experiment::from_toml(&resolved.to_toml(), Path::new("experiment.toml")).unwrap();
            assert_eq!(recorded, *resolved.settings(), "{keys:?}");
            assert_eq!(resolve(&recorded), resolved, "{keys:?}");
        }
    }
}
