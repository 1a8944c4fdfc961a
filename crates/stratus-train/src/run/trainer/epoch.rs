//! The end of an epoch: validation, its row, and a checkpoint.

use super::Trainer;
use crate::evaluate::Scores;
use crate::weights::session_state::swap_averages;
use crate::{Observer, TrainError};
use std::time::Instant;
use stratus_run::summary::Status;

impl Trainer<'_> {
    /// Ends an epoch: evaluates the weights if that is due, writes the epoch's row, and saves a checkpoint.
    pub(super) fn end_epoch(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let position = self.position;
        let started = Instant::now();
        let scores = match position.validates(position.epochs_done()) {
            true => Some(self.evaluate()?),
            false => None,
        };
        let validation_s = started.elapsed().as_secs_f64();
        if let Some(scores) = &scores {
            self.stop_policy.estimator.record_validation(validation_s);
            if !scores.loss.is_finite() {
                let text = format!(
                    "the validation loss after epoch {} is {}: the network's outputs are not finite, so the \
                     epoch has no other validation metrics",
                    position.epochs_done(),
                    scores.loss
                );
                self.recorder.log(&text)?;
                observer.warn(&text);
            }
        }
        let (row, images_per_second) = self.recorder.epoch(position, scores.as_ref(), validation_s)?;
        self.stop_policy.epoch(&row);
        self.checkpointer.epoch(&row);
        let started = Instant::now();
        self.save()?;
        self.recorder.epoch_checkpoint(started.elapsed().as_secs_f64());
        self.write_summary(Status::Running)?;
        observer.epoch(&self.recorder.epoch_result(position, &row, images_per_second));
        self.report_time_limit(observer)?;
        // Validation and checkpoint belong to no iteration.
        self.clock.restart();
        Ok(())
    }

    /// Evaluates the weights on the validation data: their moving average, if there is one. Records what they
    /// got wrong.
    fn evaluate(&mut self) -> Result<Scores, TrainError> {
        let Self { setup, evaluator, recorder, position, .. } = self;
        swap_averages(&mut setup.compiled)?;
        evaluator.set_loader_threads(self.batches.loader_threads());
        let scores = evaluator.run_shared(&mut setup.compiled.session, setup.role.workers())?;
        swap_averages(&mut setup.compiled)?;
        recorder.validation(*position, &scores, evaluator.take_predictions(), setup)?;
        Ok(scores)
    }
}
