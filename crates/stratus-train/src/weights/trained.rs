//! The network and weights of a run, without its data: for export.

use crate::network::Network;
use crate::{Experiment, TrainError};
use std::path::Path;
use stratus_graph::Graph;
use stratus_run::RunDir;
use stratus_run::checkpoint::{Checkpoint, Checkpoints};

/// A run's network and one of its checkpoints.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainedNetwork {
    /// The network as it was trained, auxiliary outputs included.
    pub graph: Graph,
    /// Its weights and the state of the run.
    pub checkpoint: Checkpoint,
}

/// The network of a run with its newest good checkpoint, or that after `iteration` iterations. The data set
/// is not needed: the run's configuration records image shape and classes.
///
/// # Errors
/// If the run, its configuration or its checkpoint cannot be read.
pub fn trained_network(
    path: &Path,
    iteration: Option<u64>,
    warn: &mut dyn FnMut(&str),
) -> Result<TrainedNetwork, TrainError> {
    let run = RunDir::open(path)?;
    let experiment = Experiment::load(&run.experiment())?;
    let checkpoint = load_checkpoint(&run, iteration, warn)?;
    // A run records both when it begins.
    let (Some(shape), Some(classes)) = (experiment.shape(), experiment.model.classes) else {
        return Err(TrainError::Configuration {
            problem: format!("{} has no data.shape or no model.classes", run.experiment().display()),
            hint: "restore it from a copy".to_owned(),
        });
    };
    let graph = Network::for_images(&experiment, shape, classes)?.graph;
    Ok(TrainedNetwork { graph, checkpoint })
}

/// A run's newest good checkpoint, or that after `iteration` iterations.
///
/// # Errors
/// If there is none, or it cannot be read.
pub(crate) fn load_checkpoint(
    run: &RunDir,
    iteration: Option<u64>,
    warn: &mut dyn FnMut(&str),
) -> Result<Checkpoint, TrainError> {
    let checkpoints = Checkpoints::new(run.checkpoints());
    if let Some(iteration) = iteration {
        return Ok(checkpoints.load(iteration)?);
    }
    let recovery = checkpoints.load_latest()?;
    for damage in &recovery.damaged {
        warn(&format!("checkpoint {} is damaged: {}", damage.path.display(), damage.reason));
    }
    recovery.checkpoint.ok_or_else(|| TrainError::Checkpoint {
        checkpoint: run.checkpoints().display().to_string(),
        problem: format!("none can be used; continue the run with `stratus train {}`", run.path().display()),
    })
}
