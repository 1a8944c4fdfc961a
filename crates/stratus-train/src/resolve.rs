//! Resolves an experiment: settles every key for a data set, network and device.
//!
//! ```text
//! Experiment   the configuration; many keys may be unset or "auto"
//! data set     image shape, normalisation, samples, classes
//! network      its number of classes                              ──▶ Resolved
//! device       number formats, threads, caches
//! memory limit the activations that may be kept (`compile::fit`)
//! ```
//!
//! A run's `experiment.toml` is its [`Resolved`]; resolving it again gives the same, so a resumed run equals
//! the interrupted one.

use crate::device::OpenDevice;
use crate::experiment::{self, EpochMetric, Experiment};
use crate::input::{InputPipeline, default_loader_threads, usable_cores};
use crate::{Schedule, TrainError};
use stratus_data::{BatchSlice, Dataset, TtaView};
use stratus_engine::{Precision, Stage};
use stratus_graph::Graph;
use stratus_run::csv::Task;
use stratus_run::layout::NETWORK;

/// An experiment with every key settled, from which programs, loaders and the training loop are made.
/// Immutable.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// Every key with its settled value.
    settings: Experiment,
    input: InputPipeline,
    precision: Precision,
    task: Task,
    /// Number of samples of the data set.
    samples: usize,
    /// True if the validation batch differs from the training micro-batch and stays fixed.
    fixed_validation_batch: bool,
    tail_batch: Option<usize>,
    rank: Rank,
    stage: Option<Stage>,
}

/// The rank of this process among the workers that divide batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// The rank, counted from 0.
    pub rank: usize,
    /// The number of workers.
    pub world_size: usize,
}

impl Rank {
    /// The only worker.
    pub const SINGLE: Self = Self { rank: 0, world_size: 1 };
}

impl Resolved {
    /// Resolves an experiment that trains `graph` on `dataset` with `device`. For evaluation, `dataset` is
    /// the data set to evaluate on.
    ///
    /// # Errors
    /// If the device does not support the number format of `train.precision`, or the network is not for the
    /// task of the data set.
    pub fn new(
        experiment: &Experiment,
        dataset: &dyn Dataset,
        graph: &Graph,
        device: &OpenDevice,
    ) -> Result<Self, TrainError> {
        let mut experiment = experiment.clone();
        experiment.data.workers = experiment.data.workers.or_else(|| default_loader_threads(device));
        let experiment = &experiment;
        let input = InputPipeline::new(experiment, dataset);
        let input = match graph.shape(graph.output).0[..] {
            [_, height, width] => input.with_mask_size([height, width]),
            _ => input,
        };
        let precision = precision(experiment.train.precision, device)?;
        let task = task(dataset, graph)?;
        check_metrics(experiment, task)?;
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
        let fixed_validation_batch =
            experiment.validation.batch_size.is_some_and(|batch| batch != experiment.micro_batch_size());
        let resolved = Self {
            settings,
            input,
            precision,
            task,
            samples,
            fixed_validation_batch,
            tail_batch: None,
            rank: Rank::SINGLE,
            stage: None,
        };
        Ok(resolved.with_tail())
    }

    fn with_tail(self) -> Self {
        let rest = self.samples % self.settings.train.batch_size;
        let tail_batch = (rest > 0 && !self.settings.data.drop_last).then_some(rest);
        Self { tail_batch, ..self }
    }

    /// The same experiment for another worker.
    #[must_use]
    pub fn with_rank(&self, rank: Rank) -> Self {
        Self { rank, ..self.clone() }
    }

    /// The same experiment for one pipeline stage, or for the whole network.
    #[must_use]
    pub fn with_stage(&self, stage: Option<Stage>) -> Self {
        Self { stage, ..self.clone() }
    }

    /// The pipeline stage of this process; `None` without stages.
    #[must_use]
    pub fn stage(&self) -> Option<Stage> {
        self.stage
    }

    /// The rank of this process among the workers.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The number of parts of a batch, at least 1.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.settings.train.parts.max(1)
    }

    /// The parts of every batch that belong to this worker.
    #[must_use]
    pub fn batch_slice(&self) -> BatchSlice {
        let (parts, Rank { rank, world_size: workers }) = (self.parts(), self.rank);
        let count = parts / workers;
        BatchSlice { parts, first: rank * count, count }
    }

    /// The same experiment with another batch size, which is not 0.
    #[must_use]
    pub fn with_batch_size(&self, batch: usize) -> Self {
        let mut resolved = self.clone();
        resolved.settings.train.batch_size = batch.max(1);
        if !resolved.fixed_validation_batch {
            resolved.settings.validation.batch_size = Some(resolved.settings.micro_batch_size().max(1));
        }
        resolved.with_tail()
    }

    /// The same experiment with at most `kib` KiB of activations and gradients alive at once; `None` keeps
    /// all of them.
    #[must_use]
    pub(crate) fn with_activations_kib(&self, kib: Option<usize>) -> Self {
        let mut resolved = self.clone();
        resolved.settings.train.activations_kib = kib;
        resolved
    }

    /// Every configuration key with its settled value.
    #[must_use]
    pub fn settings(&self) -> &Experiment {
        &self.settings
    }

    /// The input pipeline.
    #[must_use]
    pub fn input(&self) -> &InputPipeline {
        &self.input
    }

    /// The maximum number of loader threads: `data.workers`, or the usable cores if training decides.
    #[must_use]
    pub fn max_loader_threads(&self) -> usize {
        self.settings.data.workers.unwrap_or_else(usable_cores)
    }

    /// The number format of activations and gradients.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The task of the network.
    #[must_use]
    pub fn task(&self) -> Task {
        self.task
    }

    /// The number of samples of an epoch.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Samples in an epoch's last batch; `None` if it is whole or dropped.
    #[must_use]
    pub fn tail_batch(&self) -> Option<usize> {
        self.tail_batch
    }

    /// Samples in a validation batch.
    #[must_use]
    pub fn validation_batch(&self) -> usize {
        self.settings.validation_batch_size()
    }

    /// Bytes of cache that a tile of the batch should fit; 0: no tiles.
    #[must_use]
    pub fn tile_bytes(&self) -> usize {
        self.settings.train.tile_kib.unwrap_or(0) << 10
    }

    /// Maximum bytes of parameters, activations and scratch.
    #[must_use]
    pub fn memory_limit(&self) -> usize {
        self.settings.train.memory_limit_mib.map_or(usize::MAX, |mib| mib << 20)
    }

    /// The views of each image that validation averages over; the first is the image itself.
    #[must_use]
    pub fn views(&self) -> Vec<TtaView> {
        validation_views(&self.settings)
    }

    /// The learning rate schedule.
    #[must_use]
    pub fn schedule(&self) -> Schedule {
        Schedule::from_experiment(&self.settings)
    }

    /// The content of a run's `experiment.toml`. It refers to the run's copy of a layer file.
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
pub(crate) fn validation_views(experiment: &Experiment) -> Vec<TtaView> {
    TtaView::all(experiment.validation.mirror, experiment.validation.shift)
}

/// The task of `graph` on the images of `dataset`.
///
/// # Errors
/// If they are for different tasks.
fn task(dataset: &dyn Dataset, graph: &Graph) -> Result<Task, TrainError> {
    let data_task = if dataset.has_masks() { Task::Segmentation } else { Task::Classification };
    let network_task = match graph.shape(graph.output).0.len() {
        3 => Task::Segmentation,
        _ => Task::Classification,
    };
    let (problem, hint) = match (data_task, network_task) {
        (Task::Segmentation, Task::Classification) => (
            format!(
                "data set `{}` is for segmentation, but network `{}` is for classification",
                dataset.name(),
                graph.name
            ),
            "choose a segmentation network with model.name, or a classification data set with data.name; \
             `stratus model list` and `stratus data list` list them",
        ),
        (Task::Classification, Task::Segmentation) => (
            format!(
                "network `{}` is for segmentation, but data set `{}` is for classification",
                graph.name,
                dataset.name()
            ),
            "choose a data set with masks, such as camvid, with data.name; `stratus data list` lists them",
        ),
        _ => return Ok(data_task),
    };
    Err(TrainError::Configuration { problem, hint: hint.to_owned() })
}

/// Checks that the metrics of an experiment's settings are metrics of its task.
fn check_metrics(experiment: &Experiment, task: Task) -> Result<(), TrainError> {
    let stopping = &experiment.early_stopping;
    let metrics = [
        ("train.early_stopping.measure", stopping.patience.map(|_| stopping.measure)),
        ("checkpoint.keep_best", experiment.checkpoint.keep_best),
    ];
    for (key, metric) in metrics {
        if let Some(metric) = metric.filter(|metric| !metric.applies_to(task)) {
            return Err(TrainError::Configuration {
                problem: format!("{key}: this run does not record {metric}"),
                hint: format!("choose one of: {}", EpochMetric::names(task).join(", ")),
            });
        }
    }
    Ok(())
}

/// The number format for `train.precision` on a device.
///
/// # Errors
/// If the device does not support it.
pub(crate) fn precision(key: experiment::Precision, device: &OpenDevice) -> Result<Precision, TrainError> {
    let precision = match key {
        experiment::Precision::F32 => Precision::F32,
        experiment::Precision::Bf16 => Precision::Bf16,
        experiment::Precision::F16 => Precision::F16,
        experiment::Precision::Auto if device.has_native_bf16 => Precision::Bf16,
        experiment::Precision::Auto => Precision::F32,
    };
    let supported = device.backend.precisions();
    if supported.contains(&precision) {
        return Ok(precision);
    }
    let supported: Vec<String> = supported.iter().map(ToString::to_string).collect();
    let hint = match precision {
        Precision::F16 => "use a GPU with --set train.device=cuda, or another number format",
        _ => "set train.precision to one of these",
    };
    Err(TrainError::Configuration {
        problem: format!(
            "train.precision = {precision} is not supported: {} computes in {} on this machine",
            device.backend.name(),
            supported.join(", ")
        ),
        hint: hint.to_owned(),
    })
}

/// The shortest decimal that parses to the same `f32`, as an `f64`: 0.1307, not 0.13070000708.
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
        let graph = Network::for_dataset(experiment, set.as_ref()).unwrap().graph;
        let device = OpenDevice::new(Box::new(ReferenceBackend));
        Resolved::new(experiment, set.as_ref(), &graph, &device).unwrap()
    }

    #[test]
    fn settles_every_key() {
        let resolved = resolve(&experiment(&[]));
        let Experiment { data, model, train, validation, .. } = resolved.settings();
        assert_eq!(data.shape.as_deref(), Some(&resolved.input().shape[..]));
        assert!(data.path.is_some() && data.mean.is_some() && data.std.is_some());
        assert_eq!((model.classes, train.precision), (Some(10), experiment::Precision::F32));
        assert_eq!((train.threads, train.tile_kib, validation.batch_size), (1, Some(0), Some(8)));
        assert_eq!(resolved.tail_batch(), Some(22 % 8));
    }

    #[test]
    fn resolving_twice_gives_the_same() {
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
