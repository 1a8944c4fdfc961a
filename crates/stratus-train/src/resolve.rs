//! The configuration of one process of a run: the resolved experiment, its input pipeline, and its share of
//! batches and stages.
//!
//! ```text
//! Experiment, data set, network, device ──stratus-experiment──▶ ResolvedExperiment
//! ResolvedExperiment, data set          ──InputPipeline──▶ batches       ──▶ ResolvedProcess
//! worker, pipeline stage                ──▶ share of a batch
//! ```

use crate::TrainError;
use crate::device::OpenDevice;
use crate::input::{InputPipeline, dataset_facts, usable_cores};
use crate::teacher::Teacher;
use std::ops::Deref;
use std::sync::Arc;
use stratus_data::{BatchSlice, Dataset, TtaView};
use stratus_engine::{Precision, Stage};
use stratus_experiment::{Experiment, NetworkFacts, ResolvedExperiment};
use stratus_graph::Graph;

/// A resolved experiment with its input pipeline and the share of this process, from which programs, loaders
/// and the training loop are made. Immutable; it has all properties of its [`ResolvedExperiment`].
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedProcess {
    experiment: ResolvedExperiment,
    input: InputPipeline,
    rank: Rank,
    stage: Option<Stage>,
    teacher: Option<Arc<Teacher>>,
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

impl Deref for ResolvedProcess {
    type Target = ResolvedExperiment;

    fn deref(&self) -> &ResolvedExperiment {
        &self.experiment
    }
}

impl ResolvedProcess {
    /// Resolves an experiment that trains `graph` on `dataset` with `device`, for the only process of a run.
    ///
    /// # Errors
    /// As [`Self::new`], and if the teacher cannot be opened or does not fit.
    pub fn for_training(
        experiment: &Experiment,
        dataset: &dyn Dataset,
        graph: &Graph,
        device: &OpenDevice,
    ) -> Result<Self, TrainError> {
        let resolved = Self::resolve(experiment, dataset, graph, device)?;
        let teacher = Teacher::open(experiment)?;
        if let Some(teacher) = &teacher {
            teacher.check_network(graph)?;
            teacher.check_data(resolved.settings(), dataset)?;
        }
        Ok(Self { teacher, ..resolved })
    }

    /// Resolves an experiment without its teacher: for evaluation on `dataset`, and for training steps
    /// without distillation.
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
        experiment.train.teacher = None;
        Self::resolve(&experiment, dataset, graph, device)
    }

    /// Resolves an experiment for a teacher that is already open. Its data are not compared.
    ///
    /// # Errors
    /// As [`Self::new`], and if the teacher has images of another size or other outputs.
    pub(crate) fn with_open_teacher(
        experiment: &Experiment,
        dataset: &dyn Dataset,
        graph: &Graph,
        device: &OpenDevice,
        teacher: Option<&Arc<Teacher>>,
    ) -> Result<Self, TrainError> {
        teacher.map_or(Ok(()), |teacher| teacher.check_network(graph))?;
        let resolved = Self::resolve(experiment, dataset, graph, device)?;
        Ok(Self { teacher: teacher.cloned(), ..resolved })
    }

    fn resolve(
        experiment: &Experiment,
        dataset: &dyn Dataset,
        graph: &Graph,
        device: &OpenDevice,
    ) -> Result<Self, TrainError> {
        let output_shape = &graph.shape(graph.output).0[..];
        let network = NetworkFacts { name: &graph.name, output_shape, classes: graph.classes() };
        let dataset_facts = dataset_facts(experiment, dataset);
        let experiment = ResolvedExperiment::new(experiment, &dataset_facts, &network, &device.facts())?;
        let input = InputPipeline::new(experiment.settings(), dataset);
        let input = match *output_shape {
            [_, height, width] => input.with_mask_size([height, width]),
            _ => input,
        };
        Ok(Self { experiment, input, rank: Rank::SINGLE, stage: None, teacher: None })
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

    /// The same experiment with another batch size, which is not 0.
    #[must_use]
    pub fn with_batch_size(&self, batch: usize) -> Self {
        let experiment = self.experiment.with_batch_size(batch);
        let (training, validation) = (experiment.settings().train.batch_size, experiment.validation_batch());
        let input = self.input.clone().with_batch_sizes(training, validation);
        Self { experiment, input, ..self.clone() }
    }

    /// The same experiment with at most `kib` KiB of activations and gradients alive at once; `None` keeps
    /// all of them.
    #[must_use]
    pub(crate) fn with_activations_kib(&self, kib: Option<usize>) -> Self {
        Self { experiment: self.experiment.with_activations_kib(kib), ..self.clone() }
    }

    /// The pipeline stage of this process; `None` without stages.
    #[must_use]
    pub fn stage(&self) -> Option<Stage> {
        self.stage
    }

    /// The network whose outputs training follows besides the labels.
    #[must_use]
    pub fn teacher(&self) -> Option<&Teacher> {
        self.teacher.as_deref()
    }

    /// The rank of this process among the workers.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The parts of every batch that belong to this worker.
    #[must_use]
    pub fn batch_slice(&self) -> BatchSlice {
        let (parts, Rank { rank, world_size: workers }) = (self.parts(), self.rank);
        let count = parts / workers;
        BatchSlice { parts, first: rank * count, count }
    }

    /// The input pipeline.
    #[must_use]
    pub fn input(&self) -> &InputPipeline {
        &self.input
    }

    /// The maximum number of loader threads: `data.workers`, or the usable cores if training decides.
    #[must_use]
    pub fn max_loader_threads(&self) -> usize {
        self.settings().data.workers.unwrap_or_else(usable_cores)
    }

    /// The number format of activations and gradients.
    #[must_use]
    pub fn precision(&self) -> Precision {
        engine_precision(self.settings().train.precision)
    }

    /// The views of each image that validation averages over; the first is the image itself.
    #[must_use]
    pub fn views(&self) -> Vec<TtaView> {
        validation_views(self.settings())
    }
}

/// The views of each image that validation averages over.
pub(crate) fn validation_views(experiment: &Experiment) -> Vec<TtaView> {
    TtaView::all(experiment.validation.mirror, experiment.validation.shift)
}

/// The engine's number format for a settled `train.precision`, which is not "auto".
pub(crate) fn engine_precision(settled: stratus_experiment::Precision) -> Precision {
    match settled {
        stratus_experiment::Precision::F16 => Precision::F16,
        stratus_experiment::Precision::Bf16 => Precision::Bf16,
        stratus_experiment::Precision::F32 | stratus_experiment::Precision::Auto => Precision::F32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::BatchFormat;
    use crate::network::Network;
    use std::path::Path;
    use std::sync::Arc;
    use stratus_data::{Element, Layout, Split, open};
    use stratus_engine::reference::ReferenceBackend;

    fn experiment(keys: &[(&str, &str)]) -> Experiment {
        let set = [("data.name", "synthetic"), ("data.synthetic.images", "22"), ("train.batch_size", "8")];
        let keys: Vec<_> = set.iter().chain(keys).copied().collect();
        Experiment::builtin("digits").unwrap().with_overrides(&keys).unwrap()
    }

    fn resolve(experiment: &Experiment) -> ResolvedProcess {
        let options = crate::input::open_options(experiment);
        let set = open("synthetic", Path::new(""), Split::Train, &options).unwrap();
        let set: Arc<dyn Dataset> = Arc::from(set);
        let graph = Network::for_dataset(experiment, set.as_ref()).unwrap().graph;
        let device = OpenDevice::new(Box::new(ReferenceBackend));
        ResolvedProcess::new(experiment, set.as_ref(), &graph, &device).unwrap()
    }

    #[test]
    fn settles_every_key() {
        let resolved = resolve(&experiment(&[]));
        let Experiment { data, model, train, validation, .. } = resolved.settings();
        assert_eq!(data.shape.as_deref(), Some(&resolved.input().shape[..]));
        assert!(data.path.is_some() && data.mean.is_some() && data.std.is_some());
        assert_eq!((model.classes, train.precision), (Some(10), stratus_experiment::Precision::F32));
        assert_eq!((train.threads, train.tile_kib, validation.batch_size), (1, Some(0), Some(8)));
        assert_eq!(resolved.tail_batch(), Some(22 % 8));
    }

    #[test]
    fn another_batch_size_is_resolved_as_if_it_was_configured() {
        for keys in [&[][..], &[("validation.batch_size", "4")]] {
            let with = |batch| {
                let batch: &[(&str, &str)] = &[("train.batch_size", batch)];
                resolve(&experiment(&[batch, keys].concat()))
            };
            let resolved = with("2").with_batch_size(11);
            assert_eq!(resolved, with("11"), "{keys:?}");
            let format = BatchFormat { element: Element::F32, layout: Layout::Nchw };
            assert_eq!(resolved.input().training(format).batch_size, 11);
        }
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
