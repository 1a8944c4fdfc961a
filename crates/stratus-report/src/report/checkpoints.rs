//! The checkpoints of a run.

use serde::Serialize;
use stratus_base::time::timestamp;
use stratus_run::RunDir;
use stratus_run::checkpoint::{BestCheckpoint, CheckpointInfo, Checkpoints};
use stratus_run::layout::CHECKPOINTS;

/// A checkpoint of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckpointRow {
    /// Its iteration.
    pub iteration: u64,
    /// Completed epochs, if it can be read.
    pub epochs: Option<u32>,
    /// Completed batches of the next epoch.
    pub batches: Option<u64>,
    /// The length of its files in bytes.
    pub bytes: Option<u64>,
    /// The time at which it was saved, in UTC.
    pub saved: Option<String>,
    /// True for the newest one, from which the run continues.
    pub is_last: bool,
    /// True for that of the best epoch.
    pub is_best: bool,
    /// The reason why it cannot be used.
    pub problem: Option<String>,
}

/// The checkpoints of a run, ascending.
///
/// # Errors
/// If their folder cannot be listed.
pub(super) fn read(run: &RunDir, best: Option<&BestCheckpoint>) -> stratus_run::Result<Vec<CheckpointRow>> {
    let infos = Checkpoints::new(run.path().join(CHECKPOINTS)).describe()?;
    let last = infos.iter().rev().find(|info| info.problem.is_none()).map(|info| info.iteration);
    let row = |info: CheckpointInfo| CheckpointRow {
        iteration: info.iteration,
        epochs: info.progress.map(|(epochs, _)| epochs),
        batches: info.progress.map(|(_, batches)| batches),
        bytes: info.bytes,
        saved: info.saved.map(timestamp),
        is_last: last == Some(info.iteration),
        is_best: best.is_some_and(|best| best.iteration == info.iteration),
        problem: info.problem,
    };
    Ok(infos.into_iter().map(row).collect())
}
