//! The best epoch so far by a measure: which checkpoint stays, and whether training ends early.
//!
//! Both follow from the rows of `epochs.csv` alone, so a continued run decides as one that was never
//! interrupted.

use crate::experiment::{EarlyStopping, Experiment, Measure};
use stratus_run::checkpoint::Best;
use stratus_run::csv::EpochRow;
use stratus_run::summary::StoppedEarly;

/// The best epoch so far by a measure.
#[derive(Clone, Copy, Debug, PartialEq)]
struct BestEpoch {
    measure: Measure,
    /// What an epoch must be better by.
    min_delta: f64,
    /// The epoch and its value; 0 and NaN before the first.
    epoch: u32,
    value: f64,
    /// The last epoch that was measured.
    measured: u32,
}

impl BestEpoch {
    fn new(measure: Measure, min_delta: f64) -> Self {
        Self { measure, min_delta, epoch: 0, value: f64::NAN, measured: 0 }
    }

    /// Adds an epoch; returns whether it is the best so far. Of equal ones the first is. A value that is not
    /// finite is never.
    fn add(&mut self, row: &EpochRow) -> bool {
        let Some(value) = self.measure.of(row) else { return false };
        self.measured = row.epoch;
        let gain = self.measure.better().gain(value, self.value);
        let is_best = value.is_finite() && (self.epoch == 0 || gain > self.min_delta);
        if is_best {
            (self.epoch, self.value) = (row.epoch, value);
        }
        is_best
    }
}

/// What the epochs so far say about the checkpoint to keep and the end of training.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BestEpochs {
    kept: Option<BestEpoch>,
    stopping: Option<(u64, BestEpoch)>,
    iterations_per_epoch: u64,
}

impl BestEpochs {
    /// After the epochs of `rows`.
    pub fn new(settings: &Experiment, iterations_per_epoch: u64, rows: &[EpochRow]) -> Self {
        let EarlyStopping { patience, measure, min_delta } = settings.early_stopping;
        let mut epochs = Self {
            kept: settings.checkpoint.keep_best.map(|measure| BestEpoch::new(measure, 0.0)),
            stopping: patience.map(|patience| (patience, BestEpoch::new(measure, min_delta))),
            iterations_per_epoch,
        };
        rows.iter().for_each(|row| epochs.add(row));
        epochs
    }

    /// Adds an epoch.
    pub fn add(&mut self, row: &EpochRow) {
        self.kept.iter_mut().for_each(|kept| {
            kept.add(row);
        });
        self.stopping.iter_mut().for_each(|(_, best)| {
            best.add(row);
        });
    }

    /// The best epoch, whose checkpoint stays; `None` before there is one, or if none is to stay.
    pub fn best(&self) -> Option<Best> {
        let BestEpoch { measure, epoch, value, .. } = self.kept.filter(|kept| kept.epoch > 0)?;
        let iteration = u64::from(epoch) * self.iterations_per_epoch;
        Some(Best { metric: measure.to_string(), value, epoch, iteration })
    }

    /// Why training ends with the last epoch, if it does.
    pub fn stopped_early(&self) -> Option<StoppedEarly> {
        let (patience, best) = self.stopping?;
        let BestEpoch { measure, epoch: best_epoch, value, measured: epoch, .. } = best;
        (u64::from(epoch - best_epoch) >= patience).then(|| StoppedEarly {
            epoch,
            metric: measure.to_string(),
            best: (best_epoch > 0).then_some(value),
            best_epoch: (best_epoch > 0).then_some(best_epoch),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn settings(set: &[(&str, &str)]) -> Experiment {
        Experiment::builtin("digits").unwrap().with_overrides(set).unwrap()
    }

    fn rows(losses: &[f64]) -> Vec<EpochRow> {
        let row = |(i, &loss): (usize, &f64)| EpochRow {
            epoch: i as u32 + 1,
            val_loss: (loss > 0.0).then_some(loss),
            val_accuracy: (loss > 0.0).then_some(1.0 - loss),
            ..EpochRow::default()
        };
        losses.iter().enumerate().map(row).collect()
    }

    /// After which epoch training ends, and the best one.
    fn stops(set: &[(&str, &str)], losses: &[f64]) -> Option<(u32, Option<u32>)> {
        let settings = settings(set);
        let mut epochs = BestEpochs::new(&settings, 10, &[]);
        let rows = rows(losses);
        rows.iter().enumerate().find_map(|(i, row)| {
            epochs.add(row);
            // A continued run has read the rows instead.
            assert_eq!(epochs.kept.is_none(), BestEpochs::new(&settings, 10, &rows[..=i]).kept.is_none());
            let continued = BestEpochs::new(&settings, 10, &rows[..=i]);
            assert_eq!(continued.stopped_early(), epochs.stopped_early());
            assert_eq!(continued.best(), epochs.best());
            epochs.stopped_early().map(|stopped| (stopped.epoch, stopped.best_epoch))
        })
    }

    #[test]
    fn training_ends_after_epochs_without_gain() {
        let patience = ("train.early_stopping.patience", "2");
        assert_eq!(stops(&[], &[0.5; 20]), None);
        assert_eq!(stops(&[patience], &[0.9, 0.8, 0.7, 0.75, 0.6, 0.5]), None);
        assert_eq!(stops(&[patience], &[0.9, 0.8, 0.85, 0.81, 0.1]), Some((4, Some(2))));
        // An equal one is no gain, nor is one that is not finite.
        assert_eq!(stops(&[patience], &[0.9, 0.9, 0.9]), Some((3, Some(1))));
        assert_eq!(stops(&[patience], &[f64::INFINITY; 3]), Some((2, None)));
        // What was not measured decides nothing.
        assert_eq!(stops(&[patience], &[0.9, 0.0, 0.0, 0.8, 0.0, 0.0, 0.85]), Some((7, Some(4))));
        let delta = ("train.early_stopping.min_delta", "0.2");
        assert_eq!(stops(&[patience, delta], &[0.9, 0.75, 0.71]), Some((3, Some(1))));
        assert_eq!(stops(&[patience, delta], &[0.9, 0.75, 0.65, 0.5, 0.5]), Some((5, Some(3))));
        let by_accuracy = ("train.early_stopping.measure", "val_top1");
        assert_eq!(stops(&[patience, by_accuracy], &[0.9, 0.8, 0.85, 0.81]), Some((4, Some(2))));
    }

    #[test]
    fn the_best_checkpoint_is_the_first_of_equals() {
        let best = |measure: &str, losses: &[f64]| {
            let settings = settings(&[("checkpoint.keep_best", measure)]);
            BestEpochs::new(&settings, 10, &rows(losses)).best()
        };
        assert_eq!(best("val_loss", &[]), None);
        assert_eq!(best("val_loss", &[0.0, f64::NAN, f64::INFINITY]), None);
        let expected = |value| Best { metric: "val_loss".to_owned(), value, epoch: 2, iteration: 20 };
        assert_eq!(best("val_loss", &[0.5, 0.25, 0.25, f64::NAN, 0.3]), Some(expected(0.25)));
        let by_accuracy = best("val_top1", &[0.5, 0.25, 0.25, 0.3]).unwrap();
        assert_eq!((by_accuracy.value, by_accuracy.epoch), (0.75, 2));
        assert_eq!(BestEpochs::new(&settings(&[]), 10, &rows(&[0.5])).best(), None);
    }

    #[test]
    fn measures_are_checked() {
        let read = |text: &str| {
            Experiment::from_toml(&format!("model.name = \"digits\"\n{text}"), Path::new("e.toml"))
        };
        let stopping =
            read("[train.early_stopping]\npatience = 3\nmeasure = \"val_top5\"").unwrap().early_stopping;
        assert_eq!((stopping.patience, stopping.measure), (Some(3), Measure::ValTop5));
        let error = read("checkpoint.keep_best = \"val_top2\"").unwrap_err().to_string();
        assert!(
            error.contains("\"train_loss\", \"train_top1\", \"train_accuracy\", \"val_loss\""),
            "{error}"
        );
    }
}
