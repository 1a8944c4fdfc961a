//! The network and weights of a run, without its data: for export.

use crate::network::Network;
use crate::{Experiment, TrainError};
use std::path::Path;
use std::str::FromStr;
use stratus_graph::Graph;
use stratus_run::RunDir;
use stratus_run::checkpoint::{Checkpoint, Checkpoints};
use stratus_weights::NetworkMetadata;

/// A run's network and one of its checkpoints.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainedNetwork {
    /// The network as it was trained, auxiliary outputs included.
    pub graph: Graph,
    /// Its weights and the state of the run.
    pub checkpoint: Checkpoint,
    /// How it wants its images, and what its classes are called, as the run recorded it.
    pub metadata: NetworkMetadata,
}

/// Which checkpoint of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckpointChoice {
    /// The newest good one.
    #[default]
    Newest,
    /// That of the best epoch so far, see `checkpoint.keep_best`.
    Best,
    /// That after so many iterations.
    After(u64),
}

impl FromStr for CheckpointChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "best" => Ok(Self::Best),
            number => number
                .parse()
                .map(Self::After)
                .map_err(|_| "give a number of iterations, or `best`".to_owned()),
        }
    }
}

/// The network of a run with one of its checkpoints. The data set is not needed: the run's configuration
/// records image shape and classes.
///
/// # Errors
/// If the run, its configuration or its checkpoint cannot be read.
pub fn trained_network(
    path: &Path,
    choice: CheckpointChoice,
    warn: &mut dyn FnMut(&str),
) -> Result<TrainedNetwork, TrainError> {
    let run = RunDir::open(path)?;
    let experiment = Experiment::load(&run.experiment())?;
    let checkpoint = load_checkpoint(&run, choice, warn)?;
    // A run records both when it begins.
    let (Some(shape), Some(classes)) = (experiment.shape(), experiment.model.classes) else {
        return Err(TrainError::Configuration {
            problem: format!("{} has no data.shape or no model.classes", run.experiment().display()),
            hint: "restore it from a copy".to_owned(),
        });
    };
    let graph = Network::for_images(&experiment, shape, classes)?.graph;
    let metadata = metadata_of_run(&run, &experiment);
    Ok(TrainedNetwork { graph, checkpoint, metadata })
}

/// What a run recorded of its images and classes.
pub(crate) fn metadata_of_run(run: &RunDir, experiment: &Experiment) -> NetworkMetadata {
    NetworkMetadata {
        class_names: stratus_run::classes::read_names(&run.classes()).unwrap_or_default(),
        mean: experiment.data.mean.clone().unwrap_or_default(),
        std: experiment.data.std.clone().unwrap_or_default(),
        input_shape: experiment.data.shape.clone().unwrap_or_default(),
        resize: experiment.data.resize,
    }
}

/// One of a run's checkpoints.
///
/// # Errors
/// If there is none, or it cannot be read.
pub(crate) fn load_checkpoint(
    run: &RunDir,
    choice: CheckpointChoice,
    warn: &mut dyn FnMut(&str),
) -> Result<Checkpoint, TrainError> {
    let checkpoints = Checkpoints::new(run.checkpoints());
    if let CheckpointChoice::After(iteration) = choice {
        return Ok(checkpoints.load(iteration)?);
    }
    let recovery = checkpoints.load_latest()?;
    for damage in &recovery.damaged {
        warn(&format!("checkpoint {} is damaged: {}", damage.path.display(), damage.reason));
    }
    let unusable = |problem: String| TrainError::Checkpoint {
        checkpoint: run.checkpoints().display().to_string(),
        problem,
    };
    let newest = recovery.checkpoint.ok_or_else(|| {
        unusable(format!("none can be used; continue the run with `stratus train {}`", run.path().display()))
    })?;
    match (choice, &newest.state.best) {
        (CheckpointChoice::Best, None) => {
            Err(unusable("none is known as the best; train with checkpoint.keep_best set".to_owned()))
        }
        (CheckpointChoice::Best, Some(best)) if best.iteration != newest.state.iteration => {
            Ok(checkpoints.load(best.iteration)?)
        }
        _ => Ok(newest),
    }
}
