//! Saving the state of a run in progress.

use super::Trainer;
use crate::TrainError;
use std::time::Instant;
use stratus_run::checkpoint::State;

impl Trainer<'_> {
    /// Saves a checkpoint from which training resumes with the next batch.
    pub(super) fn save(&mut self) -> Result<(), TrainError> {
        let started = Instant::now();
        let Self { setup, position, .. } = self;
        setup.role.check_same_state(&setup.compiled.session, position.iteration)?;
        if !setup.role.is_first() {
            // The first worker writes the checkpoint; it requests the values of other stages.
            setup.role.serve_checkpoint(&setup.compiled.session)?;
            self.recorder.sync_as_worker()?;
            self.checkpointer.mark_saved(position.iteration);
            return Ok(());
        }
        let state = self.state()?;
        self.checkpointer.save(&state, &self.setup, &mut self.recorder)?;
        self.stop_policy.estimator.record_checkpoint(started.elapsed().as_secs_f64());
        Ok(())
    }

    /// Saves a checkpoint, unless there is one of this iteration.
    pub(super) fn save_unless_saved(&mut self) -> Result<(), TrainError> {
        if self.checkpointer.has_saved(self.position.iteration) { Ok(()) } else { self.save() }
    }

    /// The state to record in a checkpoint: positions, totals, libraries, loader threads.
    fn state(&mut self) -> Result<State, TrainError> {
        let Self { setup, batches, evaluator, recorder, checkpointer, .. } = self;
        let mut state = checkpointer.state(setup, self.position);
        recorder.sync(&mut state)?;
        let library = batches.loader().jpeg_library().or(evaluator.loader().jpeg_library());
        recorder.jpeg_decoder(library, setup.resolved.settings().data.decode, &mut state)?;
        if let Some(text) = batches.record_threads(&mut state) {
            recorder.log(&text)?;
        }
        Ok(state)
    }
}
