//! What is done at the end of an epoch.

use super::super::records::{ValidationKind, final_metrics};
use super::Trainer;
use crate::evaluate::{Measures, Scores};
use crate::weights::session_state::swap_averages;
use crate::{EpochResult, Observer, TrainError, Validated};
use std::time::Instant;
use stratus_run::csv::EpochRow;
use stratus_run::summary::Status;

impl Trainer<'_> {
    /// Ends an epoch: measures the weights where that is due, writes its row, and saves.
    pub(super) fn end_epoch(
        &mut self,
        epoch: u64,
        epoch_begun: &mut f64,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let settings = self.setup.resolved.settings();
        let due = epoch.is_multiple_of(settings.validation.every_epochs) || epoch == settings.train.epochs;
        let epochs = settings.train.epochs;
        let validation_begun = Instant::now();
        let scores = if due { Some(self.evaluate()?) } else { None };
        let validation_s = validation_begun.elapsed().as_secs_f64();
        self.sums.validation_s += validation_s;
        if due {
            self.outlook.validated(validation_s);
        }
        let (train_loss, train_accuracy) = (self.sums.mean_loss(), self.sums.accuracy());
        let images_per_second = self.sums.images / self.sums.epoch_s.max(1e-9);
        let row = EpochRow {
            epoch: u32::try_from(epoch).unwrap_or(u32::MAX),
            train_loss,
            train_accuracy,
            train_s: self.sums.epoch_s,
            val_s: validation_s,
            elapsed_s: self.elapsed_s(),
            ..scores.as_ref().map(validated).unwrap_or_default()
        };
        let validation = ValidationKind::of(&self.setup.resolved);
        self.last = final_metrics(&row, validation, self.last);
        if let Some(scores) = &scores {
            self.classes = scores.classes().to_vec();
            stratus_run::classes::write(&self.run.classes(), &self.classes)?;
        }
        self.epochs.append(&row)?;
        if let Some(board) = &mut self.board {
            board.epoch(self.iteration, &row)?;
        }
        self.best.add(&row);
        self.sums.begin_epoch();
        let saving = Instant::now();
        self.save(epoch, 0)?;
        self.sums.checkpoint_s += saving.elapsed().as_secs_f64();
        self.summary(Status::Running).write(&self.run.summary())?;
        let elapsed_s = self.elapsed_s();
        observer.epoch(&EpochResult {
            epoch,
            epochs,
            train_loss,
            train_accuracy,
            task: validation.task,
            validation: row.val_loss.map(|loss| Validated {
                loss,
                accuracy: row.val_accuracy,
                miou: row.val_miou,
            }),
            images_per_second,
            seconds: elapsed_s - *epoch_begun,
        });
        *epoch_begun = elapsed_s;
        self.say_outlook(observer)?;
        // Validation and checkpoint belong to no iteration.
        self.restart_clock();
        Ok(())
    }

    /// Measures the weights on the validation data: their moving average, if there is one.
    fn evaluate(&mut self) -> Result<Scores, TrainError> {
        swap_averages(&mut self.setup.compiled)?;
        self.evaluator.set_workers(self.workers.active());
        let workers = self.group.workers();
        let scores = self.evaluator.run_shared(&mut self.setup.compiled.session, workers)?;
        swap_averages(&mut self.setup.compiled)?;
        Ok(scores)
    }
}

/// The validation's part of an epoch's row.
fn validated(scores: &Scores) -> EpochRow {
    let row =
        EpochRow { val_loss: Some(scores.loss), val_accuracy: scores.accuracy(), ..EpochRow::default() };
    match &scores.measures {
        Measures::Classification(measures) => EpochRow { val_top5: measures.top5, ..row },
        Measures::Segmentation(measures) => EpochRow {
            val_mean_accuracy: measures.mean_accuracy,
            val_miou: measures.miou,
            val_bf: measures.bf,
            ..row
        },
    }
}
