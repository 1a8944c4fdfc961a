//! The end of an epoch: validation, its row, and a checkpoint.

use super::super::records::{ValidationKind, final_metrics};
use super::Trainer;
use crate::evaluate::{Scores, TaskMetrics};
use crate::weights::session_state::swap_averages;
use crate::{EpochResult, Observer, TrainError, ValidationResult};
use std::time::Instant;
use stratus_run::csv::EpochRow;
use stratus_run::summary::Status;

impl Trainer<'_> {
    /// Ends an epoch: evaluates the weights if that is due, writes the epoch's row, and saves a checkpoint.
    pub(super) fn end_epoch(
        &mut self,
        epoch: u64,
        epoch_started_s: &mut f64,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let settings = self.setup.resolved.settings();
        let is_due = epoch.is_multiple_of(settings.validation.every_epochs) || epoch == settings.train.epochs;
        let epochs = settings.train.epochs;
        let validation_started = Instant::now();
        let scores = if is_due { Some(self.evaluate()?) } else { None };
        let validation_s = validation_started.elapsed().as_secs_f64();
        self.totals.validation_s += validation_s;
        if is_due {
            self.time_estimator.record_validation(validation_s);
        }
        let (train_loss, train_accuracy) = (self.totals.mean_loss(), self.totals.accuracy());
        let images_per_second = self.totals.images / self.totals.epoch_s.max(1e-9);
        let row = EpochRow {
            epoch: u32::try_from(epoch).unwrap_or(u32::MAX),
            train_loss,
            train_accuracy,
            train_s: self.totals.epoch_s,
            val_s: validation_s,
            elapsed_s: self.elapsed_s(),
            ..scores.as_ref().map(validation_row).unwrap_or_default()
        };
        let validation = ValidationKind::from_resolved(&self.setup.resolved);
        self.final_metrics = final_metrics(&row, validation, self.final_metrics);
        if let Some(scores) = &scores {
            self.classes = scores.classes().to_vec();
            stratus_run::classes::write(&self.run.classes(), &self.classes)?;
        }
        self.epochs.append(&row)?;
        if let Some(tensorboard) = &mut self.tensorboard {
            tensorboard.epoch(self.iteration, &row)?;
        }
        self.best_epochs.add(&row);
        self.totals.begin_epoch();
        let save_started = Instant::now();
        self.save(epoch, 0)?;
        self.totals.checkpoint_s += save_started.elapsed().as_secs_f64();
        self.summary(Status::Running).write(&self.run.summary())?;
        let elapsed_s = self.elapsed_s();
        observer.epoch(&EpochResult {
            epoch,
            epochs,
            train_loss,
            train_accuracy,
            task: validation.task,
            validation: row.val_loss.map(|loss| ValidationResult {
                loss,
                accuracy: row.val_accuracy,
                miou: row.val_miou,
            }),
            images_per_second,
            seconds: elapsed_s - *epoch_started_s,
        });
        *epoch_started_s = elapsed_s;
        self.report_time_limit(observer)?;
        // Validation and checkpoint belong to no iteration.
        self.restart_clock();
        Ok(())
    }

    /// Evaluates the weights on the validation data: their moving average, if there is one.
    fn evaluate(&mut self) -> Result<Scores, TrainError> {
        swap_averages(&mut self.setup.compiled)?;
        self.evaluator.set_loader_threads(self.loader_threads.active());
        let workers = self.group.workers();
        let scores = self.evaluator.run_shared(&mut self.setup.compiled.session, workers)?;
        swap_averages(&mut self.setup.compiled)?;
        Ok(scores)
    }
}

/// The columns of an epoch's row that the validation fills.
fn validation_row(scores: &Scores) -> EpochRow {
    let row =
        EpochRow { val_loss: Some(scores.loss), val_accuracy: scores.accuracy(), ..EpochRow::default() };
    match &scores.metrics {
        TaskMetrics::Classification(measures) => EpochRow { val_top5: measures.top5, ..row },
        TaskMetrics::Segmentation(measures) => EpochRow {
            val_mean_accuracy: measures.mean_accuracy,
            val_miou: measures.miou,
            val_bf: measures.bf,
            ..row
        },
    }
}
