//! A run's network and what it has learnt, without its data: for those who take it elsewhere.

use crate::compile::Plans;
use crate::network::Network;
use crate::{Experiment, TrainError};
use std::path::Path;
use stratus_engine::{Phase, Role};
use stratus_graph::Graph;
use stratus_run::checkpoint::{Checkpoint, Checkpoints};
use stratus_run::{RunDir, atomic};

/// A run's network and one of its checkpoints.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained {
    /// The network as it was trained, auxiliary outputs included.
    pub graph: Graph,
    /// Its weights, and where the run stood.
    pub checkpoint: Checkpoint,
}

/// The network of a run with its newest good checkpoint, or that after `iteration` iterations. The data set is not needed: what images and
/// classes there were stands in the run's plan.
///
/// # Errors
/// Where the run, its plan or its checkpoint cannot be read.
pub fn of_run(
    path: &Path,
    iteration: Option<u64>,
    warn: &mut dyn FnMut(&str),
) -> Result<Trained, TrainError> {
    let run = RunDir::open(path)?;
    let experiment = Experiment::load(&run.experiment())?;
    let checkpoint = checkpoint(&run, iteration, warn)?;
    let plans: Plans = atomic::read_json(&run.plan())?;
    let program = &plans.evaluate.program;
    let images = program.values.iter().find(|value| value.role == Role::Images);
    let loss = program.steps.iter().find(|step| step.phase == Phase::Loss);
    let logits = loss.and_then(|step| program.values.get(step.inputs.first()?.0));
    let (Some(&[_, channels, height, width]), Some(&[_, classes])) =
        (images.map(|value| value.shape.as_slice()), logits.map(|value| value.shape.as_slice()))
    else {
        return Err(TrainError::Configuration {
            problem: format!("{} has no program that measures images", run.plan().display()),
            hint: "restore it from a copy".to_owned(),
        });
    };
    let graph = Network::for_images(&experiment, [channels, height, width], classes)?.graph;
    Ok(Trained { graph, checkpoint })
}

/// A run's newest good checkpoint, or that after `iteration` iterations.
///
/// # Errors
/// Where there is none, or it cannot be read.
pub(crate) fn checkpoint(
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
