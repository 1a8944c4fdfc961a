//! The position of a run: the iterations and epochs that are done, and those that remain.

use super::time_estimator::RemainingWork;
use stratus_data::Position;
use stratus_experiment::Experiment;

/// The iterations done, and those of the whole training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunPosition {
    /// Iterations done.
    pub iteration: u64,
    pub iterations_per_epoch: u64,
    /// Epochs of the whole training.
    pub epochs: u64,
    /// Epochs from one validation to the next; the last epoch is always validated.
    pub validation_epochs: u64,
}

impl RunPosition {
    pub fn new(settings: &Experiment, iterations_per_epoch: u64, iteration: u64) -> Self {
        let (epochs, validation_epochs) = (settings.train.epochs, settings.validation.every_epochs);
        Self { iteration, iterations_per_epoch, epochs, validation_epochs }
    }

    /// The iterations of the whole training.
    pub fn total(self) -> u64 {
        self.epochs * self.iterations_per_epoch
    }

    pub fn is_complete(self) -> bool {
        self.iteration >= self.total()
    }

    /// Returns whether the last iteration ended an epoch.
    pub fn is_epoch_end(self) -> bool {
        self.iteration.is_multiple_of(self.iterations_per_epoch)
    }

    /// Epochs done.
    pub fn epochs_done(self) -> u64 {
        self.iteration / self.iterations_per_epoch.max(1)
    }

    /// The next batch, and its epoch, counted from 0.
    pub fn next_batch(self) -> Position {
        Position {
            epoch: u32::try_from(self.epochs_done()).unwrap_or(u32::MAX),
            batch: self.iteration % self.iterations_per_epoch,
        }
    }

    /// Returns whether the weights are evaluated after an epoch, counted from 1.
    pub fn validates(self, epoch: u64) -> bool {
        epoch.is_multiple_of(self.validation_epochs) || epoch == self.epochs
    }

    /// The number of the validation after an epoch; both are counted from 1.
    pub fn validation_number(self, epoch: u32) -> u64 {
        u64::from(epoch).div_ceil(self.validation_epochs.max(1))
    }

    /// The work that remains.
    pub fn remaining(self) -> RemainingWork {
        let (epochs, every) = (self.epochs, self.validation_epochs);
        let done = self.epochs_done();
        let last = u64::from(!epochs.is_multiple_of(every) && done < epochs);
        RemainingWork {
            iterations: self.total().saturating_sub(self.iteration),
            validations: epochs / every - done / every + last,
            epochs: epochs.saturating_sub(done),
        }
    }

    /// The work that is done.
    pub fn done(self) -> RemainingWork {
        let (whole, remaining) = (self.whole(), self.remaining());
        RemainingWork {
            iterations: whole.iterations - remaining.iterations,
            validations: whole.validations - remaining.validations,
            epochs: whole.epochs - remaining.epochs,
        }
    }

    /// The work of the whole training.
    pub fn whole(self) -> RemainingWork {
        Self { iteration: 0, ..self }.remaining()
    }
}
