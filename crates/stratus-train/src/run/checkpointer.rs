//! Decides when a checkpoint is due and which ones are kept, and saves them.

use super::best::BestCheckpointTracker;
use super::recorder::Recorder;
use super::run_position::RunPosition;
use super::setup::RunSetup;
use crate::TrainError;
use crate::weights::session_state::Snapshot;
use std::time::Instant;
use stratus_data::Position;
use stratus_run::RunDir;
use stratus_run::checkpoint::{BestCheckpoint, Checkpoints, Retention, State};
use stratus_run::csv::EpochRow;

/// Saves the checkpoints of a run.
pub(super) struct Checkpointer {
    checkpoints: Checkpoints,
    /// Seconds between checkpoints within an epoch; 0: only at its end.
    every_s: f64,
    /// Number of newest checkpoints that are kept, besides the best one.
    kept: usize,
    best: BestCheckpointTracker,
    last_saved: Instant,
    /// The iteration of the newest checkpoint of this process.
    saved_iteration: Option<u64>,
    weights_sha256: Option<String>,
}

impl Checkpointer {
    /// The checkpoints of a run that continues from `state`, after the epochs of `rows`.
    pub fn new(
        run: &RunDir,
        setup: &RunSetup,
        state: &State,
        iterations_per_epoch: u64,
        rows: &[EpochRow],
    ) -> Self {
        let settings = setup.resolved.settings();
        Self {
            checkpoints: Checkpoints::new(run.checkpoints()),
            every_s: settings.checkpoint.every_seconds,
            kept: settings.checkpoint.keep,
            best: BestCheckpointTracker::new(settings, iterations_per_epoch, rows),
            last_saved: Instant::now(),
            saved_iteration: None,
            weights_sha256: Some(state.weights_sha256.clone()).filter(|sum| !sum.is_empty()),
        }
    }

    /// Returns whether a checkpoint is due after `iteration`, which does not end an epoch.
    pub fn is_due(&self, iteration: u64) -> bool {
        let every = self.every_s;
        !self.has_saved(iteration) && every > 0.0 && self.last_saved.elapsed().as_secs_f64() >= every
    }

    /// Returns whether there is a checkpoint of `iteration`.
    pub fn has_saved(&self, iteration: u64) -> bool {
        self.saved_iteration == Some(iteration)
    }

    /// Records that there is a checkpoint of `iteration`.
    pub fn mark_saved(&mut self, iteration: u64) {
        self.last_saved = Instant::now();
        self.saved_iteration = Some(iteration);
    }

    /// The best epoch, whose checkpoint is kept.
    pub fn best(&self) -> Option<BestCheckpoint> {
        self.best.best()
    }

    /// The checksum of the weights of the newest checkpoint.
    pub fn weights_sha256(&self) -> Option<&str> {
        self.weights_sha256.as_deref()
    }

    /// Adds the end of an epoch.
    pub fn epoch(&mut self, row: &EpochRow) {
        self.best.add(row);
    }

    /// The state of a checkpoint at `position`, apart from records and loaders.
    pub fn state(&self, setup: &RunSetup, position: RunPosition) -> State {
        let Position { epoch, batch } = position.next_batch();
        State { epoch, iteration: position.iteration, batch, best: self.best(), ..setup.state() }
    }

    /// Saves a checkpoint of the session, and removes old ones. With pipeline stages, requests the values of
    /// the others.
    pub fn save(
        &mut self,
        state: &State,
        setup: &RunSetup,
        recorder: &mut Recorder<'_>,
    ) -> Result<(), TrainError> {
        let RunSetup { compiled, graph, role, .. } = setup;
        let pinned = state.best.as_ref().map(|best| best.iteration);
        let retention = Retention { last: self.kept, pinned };
        let snapshot = Snapshot::new(compiled, role.pipeline(), graph, state.iteration)?;
        let saved = self.checkpoints.save(state, &snapshot.tensors(), &retention);
        role.finish_checkpoint()?;
        let saved = saved?;
        if let Some(problem) = saved.prune_error {
            recorder.log(&format!("cannot remove an old checkpoint: {problem}"))?;
        }
        self.weights_sha256 = Some(saved.weights_sha256);
        self.mark_saved(state.iteration);
        Ok(())
    }
}
