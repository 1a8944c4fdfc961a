//! The network and weights of a run, without its data: for export.

use crate::TrainError;
use crate::infer::sigmoid;
use crate::network::Network;
use std::path::Path;
use std::str::FromStr;
use stratus_base::text::{shell_path, shell_word};
use stratus_experiment::{Experiment, LossFunction};
use stratus_graph::Graph;
use stratus_optimise::{Model, ModelError};
use stratus_run::RunDir;
use stratus_run::checkpoint::{Checkpoint, Checkpoints, State, Tensor, TensorRef, Values};
use stratus_run::remote::RemoteRun;
use stratus_run::summary::{Status, Summary};
use stratus_weights::{NetworkMetadata, OutputScales};

/// A run's network and one of its checkpoints.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainedNetwork {
    /// The network as it was trained, auxiliary outputs included.
    pub graph: Graph,
    /// Its weights and the state of the run.
    pub checkpoint: Checkpoint,
    /// The metadata of images and classes that the run recorded.
    pub metadata: NetworkMetadata,
}

/// A choice among the checkpoints of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckpointChoice {
    /// The newest good checkpoint.
    #[default]
    Newest,
    /// The checkpoint of the best epoch so far, see `checkpoint.keep_best`.
    Best,
    /// The checkpoint after this number of iterations.
    AfterIteration(u64),
}

impl FromStr for CheckpointChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "best" => Ok(Self::Best),
            number => number
                .parse()
                .map(Self::AfterIteration)
                .map_err(|_| "use a number of iterations, or `best`".to_owned()),
        }
    }
}

/// The network of a run with one of its checkpoints. The data set is not needed: the run's configuration
/// records image shape and classes.
///
/// # Errors
/// If the run, its configuration or its checkpoint cannot be read.
pub fn load_trained_network(
    path: &Path,
    choice: CheckpointChoice,
    warn: &mut dyn FnMut(&str),
) -> Result<TrainedNetwork, TrainError> {
    let run = RunDir::open(path)?;
    let experiment = Experiment::load(&run.experiment())?;
    let checkpoint = load_checkpoint(&run, choice, warn)?;
    // A run records both when it is started.
    let (Some(shape), Some(classes)) = (experiment.shape(), experiment.model.classes) else {
        return Err(TrainError::Configuration {
            problem: format!("{} has no data.shape or no model.classes", run.experiment().display()),
            hint: "restore it from a copy".to_owned(),
        });
    };
    let graph = Network::for_images(&experiment, shape, classes)?.graph;
    let metadata = metadata_of_run(&run, &experiment, thresholds_of(&checkpoint.state));
    Ok(TrainedNetwork { graph, checkpoint, metadata })
}

/// The epochs of a run that has finished, or stopped early because it no longer improved.
pub(crate) fn finished_epochs(run: &RunDir) -> Result<u64, TrainError> {
    let path = shell_path(run.path());
    let problem = match Summary::read(&run.summary()) {
        Ok(summary) if summary.status == Status::Completed => return Ok(u64::from(summary.epochs)),
        Ok(summary) => format!("the run {path} is {}", summary.status.name()),
        Err(_) => format!("the run {path} has no summary: it has not finished"),
    };
    let hint = format!("finish it with `stratus train {path}`");
    Err(TrainError::Configuration { problem, hint })
}

/// A network in inference form with those of `tensors` that are its parameters.
///
/// # Errors
/// If one is missing or has another size.
pub(crate) fn model_from_tensors(graph: &Graph, tensors: Vec<Tensor>) -> Result<Model, ModelError> {
    let values = tensors.into_iter().filter_map(|tensor| match tensor.values {
        Values::F32(values) => Some((tensor.name, values)),
        Values::I64(_) => None,
    });
    Model::for_inference(graph, values.collect())
}

/// The tensors of a model, in the order of its parameters.
#[must_use]
pub fn model_tensors(model: &Model) -> Vec<TensorRef<'_>> {
    let parameters = model.graph.parameters.iter();
    let tensors = parameters.filter_map(|parameter| {
        Some(TensorRef::f32(&parameter.name, &parameter.shape, model.values.get(&parameter.name)?))
    });
    tensors.collect()
}

/// The key of the thresholds of labels in a checkpoint's state.
pub(crate) const THRESHOLDS: &str = "thresholds";

/// The logit from which each label applies, as chosen by the last validation before a checkpoint; `None` for
/// a label that had no positives there. Empty if there was no validation.
pub(crate) fn logit_thresholds(state: &State) -> Vec<Option<f32>> {
    let recorded = state.extra.get(THRESHOLDS).cloned();
    recorded.and_then(|recorded| serde_json::from_value(recorded).ok()).unwrap_or_default()
}

/// The probabilities of [`logit_thresholds`].
pub(crate) fn thresholds_of(state: &State) -> Vec<Option<f64>> {
    let probability = |logit: Option<f32>| logit.map(|logit| sigmoid(f64::from(logit)));
    logit_thresholds(state).into_iter().map(probability).collect()
}

/// The metadata of images and outputs that a run recorded, with the thresholds of its labels.
pub(crate) fn metadata_of_run(
    run: &RunDir,
    experiment: &Experiment,
    thresholds: Vec<Option<f64>>,
) -> NetworkMetadata {
    let loss = experiment.train.loss.filter(|&loss| loss != LossFunction::CrossEntropy);
    let numbers = |key: &Option<Vec<f64>>| key.clone().unwrap_or_default();
    NetworkMetadata {
        loss: loss.map(|loss| loss.as_str().to_owned()),
        outputs: OutputScales {
            thresholds,
            target_mean: numbers(&experiment.data.target_mean),
            target_std: numbers(&experiment.data.target_std),
        },
        class_names: stratus_run::classes::read_names(&run.classes()).unwrap_or_default(),
        mean: experiment.data.mean.clone().unwrap_or_default(),
        std: experiment.data.std.clone().unwrap_or_default(),
        input_shape: experiment.data.shape.clone().unwrap_or_default(),
        resize: experiment.data.resize,
    }
}

/// Loads one of a run's checkpoints.
///
/// # Errors
/// If there is none, or it cannot be read.
pub(crate) fn load_checkpoint(
    run: &RunDir,
    choice: CheckpointChoice,
    warn: &mut dyn FnMut(&str),
) -> Result<Checkpoint, TrainError> {
    let checkpoints = Checkpoints::new(run.checkpoints());
    if let CheckpointChoice::AfterIteration(iteration) = choice {
        return load_after_iteration(&checkpoints, run, iteration);
    }
    let recovery = checkpoints.load_latest()?;
    for damage in &recovery.skipped {
        warn(&format!("checkpoint {} is damaged: {}", damage.path.display(), damage.reason));
    }
    let unusable = |problem: String| TrainError::Checkpoint {
        checkpoint: run.checkpoints().display().to_string(),
        problem,
    };
    let newest = recovery.checkpoint.ok_or_else(|| {
        unusable(match RemoteRun::read(&run.remote()) {
            Ok(Some(remote)) => {
                format!(
                    "none is usable; fetch the run with `stratus launch fetch {}`",
                    shell_word(&remote.launch)
                )
            }
            _ => format!("none is usable; resume the run with `stratus train {}`", shell_path(run.path())),
        })
    })?;
    match (choice, &newest.state.best) {
        (CheckpointChoice::Best, None) => {
            Err(unusable("there is no best checkpoint; train with checkpoint.keep_best".to_owned()))
        }
        (CheckpointChoice::Best, Some(best)) if best.iteration != newest.state.iteration => {
            load_after_iteration(&checkpoints, run, best.iteration)
        }
        _ => Ok(newest),
    }
}

/// Maximum number of checkpoints that a message lists.
const MAX_LISTED_CHECKPOINTS: usize = 8;

/// Loads the checkpoint after a number of iterations.
///
/// # Errors
/// If there is none, with those that there are, or it cannot be read.
fn load_after_iteration(
    checkpoints: &Checkpoints,
    run: &RunDir,
    iteration: u64,
) -> Result<Checkpoint, TrainError> {
    let known = checkpoints.list()?;
    if known.contains(&iteration) {
        return Ok(checkpoints.load(iteration)?);
    }
    // The newest ones are listed.
    let listed: Vec<String> =
        known.iter().rev().take(MAX_LISTED_CHECKPOINTS).rev().map(u64::to_string).collect();
    let whose = match (&listed[..], known.len()) {
        ([], _) => "which has no checkpoints".to_owned(),
        ([one], _) => format!("which has only checkpoint {one}"),
        (_, all) if all > listed.len() => format!("whose last checkpoints are {}", listed.join(", ")),
        _ => format!("which has checkpoints {}", listed.join(", ")),
    };
    let problem = format!("not in {}, {whose}", shell_path(run.path()));
    Err(TrainError::Checkpoint { checkpoint: iteration.to_string(), problem })
}
