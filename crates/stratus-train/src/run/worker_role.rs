//! The role of this process among the workers that train a run, and the decisions that all workers make
//! together.
//!
//! Worker 0 writes the run directory. Decisions that depend on time are made by worker 0, or by a worker that
//! is asked to stop, and shared with all workers before the next iteration.

use super::pipeline::{PipelineState, forward_labels, metrics_of_last_stage};
use crate::TrainError;
use std::sync::Arc;
use stratus_base::checksum::sha256_hex;
use stratus_engine::session::Metrics;
use stratus_engine::{Role, Session, Stage};
use stratus_exchange::WorkerGroup;

/// The decisions before the next iteration, which the workers combine as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    /// A worker was asked to stop.
    pub stop: bool,
    /// A checkpoint is due.
    pub save: bool,
    /// The next iteration could exceed the deadline or the budget.
    pub limit: bool,
    /// Early stopping ends the run.
    pub early: bool,
}

impl Decision {
    fn bits(self) -> u64 {
        let flags = [self.stop, self.save, self.limit, self.early];
        flags.iter().enumerate().map(|(bit, &flag)| u64::from(flag) << bit).sum()
    }

    fn from_bits(bits: u64) -> Self {
        let [stop, save, limit, early] = [0, 1, 2, 3].map(|bit| bits >> bit & 1 != 0);
        Self { stop, save, limit, early }
    }
}

/// The role of this process.
pub(super) enum WorkerRole {
    /// The only process of the run.
    Alone,
    /// A worker that trains the whole network on its parts of each batch.
    DataParallel(Arc<WorkerGroup>),
    /// A worker that trains one stage of the network, on the parts of its pipeline.
    Stage(PipelineStage),
}

/// A pipeline stage and its communication with the others.
pub(super) struct PipelineStage {
    pub stage: Stage,
    pub workers: Arc<WorkerGroup>,
    /// The stage of each value that a checkpoint stores.
    pub state: PipelineState,
}

impl WorkerRole {
    /// The communication with the other workers; `None` without any.
    pub fn workers(&self) -> Option<&WorkerGroup> {
        match self {
            Self::Alone => None,
            Self::DataParallel(workers) | Self::Stage(PipelineStage { workers, .. }) => Some(workers),
        }
    }

    /// The stages of all values, and the communication to request them; `None` without stages.
    pub fn pipeline(&self) -> Option<(&PipelineState, &WorkerGroup)> {
        match self {
            Self::Stage(PipelineStage { workers, state, .. }) => Some((state, workers)),
            Self::Alone | Self::DataParallel(_) => None,
        }
    }

    /// Returns whether this worker writes the run directory, and makes the decisions that depend on time.
    pub fn is_first(&self) -> bool {
        self.workers().is_none_or(|workers| workers.rank() == 0)
    }

    /// Combines the decisions of all workers: each does what any of them decided.
    pub fn agree(&self, decision: Decision) -> Result<Decision, TrainError> {
        match self.workers() {
            None => Ok(decision),
            Some(workers) => Ok(Decision::from_bits(workers.all_reduce_or(decision.bits())?)),
        }
    }

    /// Sends the labels of a batch from the first stage, which reads them, to the last, which computes the
    /// loss.
    pub fn forward_labels(&self, labels: &mut [i32]) -> Result<(), TrainError> {
        match self {
            Self::Stage(PipelineStage { stage, workers, .. }) => Ok(forward_labels(workers, *stage, labels)?),
            Self::Alone | Self::DataParallel(_) => Ok(()),
        }
    }

    /// The metrics of an iteration: those of the last stage, which has the loss.
    pub fn metrics(&self, session: &Session) -> Result<Metrics, TrainError> {
        match self {
            Self::Stage(PipelineStage { workers, .. }) => {
                Ok(metrics_of_last_stage(workers, session.metrics())?)
            }
            Self::Alone | Self::DataParallel(_) => Ok(session.metrics()),
        }
    }

    /// Checks that the parameters and statistics of all workers of the same stage are bit-identical.
    /// Different stages have none in common.
    ///
    /// # Errors
    /// If they differ; names the first worker that differs from the first with its stage, and the first
    /// tensor.
    pub fn check_same_state(&self, session: &Session, iteration: u64) -> Result<(), TrainError> {
        let (workers, stage) = match self {
            Self::Alone => return Ok(()),
            Self::DataParallel(workers) => (workers, Stage { index: 0, count: 1 }),
            Self::Stage(PipelineStage { workers, stage, .. }) => (workers, *stage),
        };
        if workers.size() == stage.count {
            return Ok(());
        }
        let mut names = Vec::new();
        let mut sums = String::new();
        for value in session.state().filter(|value| value.role != Role::Frozen) {
            names.push(value.name);
            sums += &sha256_hex([bytemuck::cast_slice(&session.read(value.name)?)]);
        }
        let sum_len = (sums.len() / names.len().max(1)).max(1);
        let all = workers.all_gatherv(sums.into_bytes())?;
        for (rank, other) in all.iter().enumerate().skip(stage.index).step_by(stage.count) {
            let first = all[stage.index].chunks(sum_len);
            let differs = other.chunks(sum_len).zip(first).position(|(theirs, first)| theirs != first);
            if let Some(name) = differs.and_then(|at| names.get(at)) {
                let (first, tensor) = (stage.index, (*name).to_owned());
                return Err(TrainError::WorkersDiffer { rank, first, tensor, iteration });
            }
        }
        Ok(())
    }

    /// Serves the values of this stage to the first one, until it has written its checkpoint. Does nothing
    /// without stages.
    pub fn serve_checkpoint(&self, session: &Session) -> Result<(), TrainError> {
        self.pipeline().map_or(Ok(()), |(state, workers)| state.serve(workers, session))
    }

    /// Tells the other stages that the checkpoint is written or abandoned.
    pub fn finish_checkpoint(&self) -> Result<(), TrainError> {
        Ok(self.pipeline().map_or(Ok(()), |(state, workers)| state.finish(workers))?)
    }
}
