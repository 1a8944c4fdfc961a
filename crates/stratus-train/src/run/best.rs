//! Tracks the best epoch so far by a metric, which decides which checkpoint is kept and when training stops
//! early.
//!
//! Both depend only on the rows of `epochs.csv`, so a resumed run decides like one that was never
//! interrupted.

use stratus_experiment::{EarlyStopping, EpochMetric, Experiment};
use stratus_run::checkpoint::BestCheckpoint;
use stratus_run::csv::EpochRow;
use stratus_run::summary::StoppedEarly;

/// The best epoch so far by a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
struct BestEpoch {
    metric: EpochMetric,
    /// Minimum improvement over the best epoch so far.
    min_delta: f64,
    /// The best epoch; 0 before there is one.
    epoch: u32,
    /// Its value; NaN before there is one.
    value: f64,
    /// The last epoch that has a value.
    last_epoch: u32,
}

impl BestEpoch {
    fn new(metric: EpochMetric, min_delta: f64) -> Self {
        Self { metric, min_delta, epoch: 0, value: f64::NAN, last_epoch: 0 }
    }

    /// Adds an epoch; returns whether it is the best so far. The first of equal epochs is the best; an epoch
    /// with a non-finite value never is.
    fn add(&mut self, row: &EpochRow) -> bool {
        let Some(value) = self.metric.value_in(row) else { return false };
        self.last_epoch = row.epoch;
        let improvement = self.metric.direction().improvement(value, self.value);
        let is_best = value.is_finite() && (self.epoch == 0 || improvement > self.min_delta);
        if is_best {
            (self.epoch, self.value) = (row.epoch, value);
        }
        is_best
    }
}

/// Tracks the epoch whose checkpoint is kept (`checkpoint.keep_best`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BestCheckpointTracker {
    /// `None` without `checkpoint.keep_best`.
    best: Option<BestEpoch>,
    iterations_per_epoch: u64,
}

impl BestCheckpointTracker {
    /// The state after the epochs of `rows`.
    pub fn new(settings: &Experiment, iterations_per_epoch: u64, rows: &[EpochRow]) -> Self {
        let best = settings.checkpoint.keep_best.map(|metric| BestEpoch::new(metric, 0.0));
        let mut tracker = Self { best, iterations_per_epoch };
        rows.iter().for_each(|row| tracker.add(row));
        tracker
    }

    /// Adds an epoch.
    pub fn add(&mut self, row: &EpochRow) {
        if let Some(best) = &mut self.best {
            best.add(row);
        }
    }

    /// The best epoch; `None` before there is one, or without `checkpoint.keep_best`.
    pub fn best(&self) -> Option<BestCheckpoint> {
        let BestEpoch { metric, epoch, value, .. } = self.best.filter(|best| best.epoch > 0)?;
        let iteration = u64::from(epoch) * self.iterations_per_epoch;
        Some(BestCheckpoint { metric: metric.to_string(), value, epoch, iteration })
    }
}

/// Tracks the epochs since the last improvement (`train.early_stopping`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct EarlyStoppingTracker {
    /// The patience in epochs and the best epoch; `None` without early stopping.
    best: Option<(u64, BestEpoch)>,
}

impl EarlyStoppingTracker {
    /// The state after the epochs of `rows`.
    pub fn new(settings: &Experiment, rows: &[EpochRow]) -> Self {
        let EarlyStopping { patience, measure, min_delta } = settings.early_stopping;
        let mut tracker =
            Self { best: patience.map(|patience| (patience, BestEpoch::new(measure, min_delta))) };
        rows.iter().for_each(|row| tracker.add(row));
        tracker
    }

    /// Adds an epoch.
    pub fn add(&mut self, row: &EpochRow) {
        if let Some((_, best)) = &mut self.best {
            best.add(row);
        }
    }

    /// The reason to stop training after the last epoch, if there is one.
    pub fn stopped_early(&self) -> Option<StoppedEarly> {
        let (patience, best) = self.best?;
        let BestEpoch { metric, epoch: best_epoch, value, last_epoch: epoch, .. } = best;
        (u64::from(epoch - best_epoch) >= patience).then(|| StoppedEarly {
            epoch,
            metric: metric.to_string(),
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

    /// The epoch after which training stops, and the best one.
    fn stops(set: &[(&str, &str)], losses: &[f64]) -> Option<(u32, Option<u32>)> {
        let settings = settings(set);
        let mut stopping = EarlyStoppingTracker::new(&settings, &[]);
        let mut checkpoint = BestCheckpointTracker::new(&settings, 10, &[]);
        let rows = rows(losses);
        rows.iter().enumerate().find_map(|(i, row)| {
            stopping.add(row);
            checkpoint.add(row);
            // A resumed run reads the rows instead.
            let resumed = BestCheckpointTracker::new(&settings, 10, &rows[..=i]);
            assert_eq!(checkpoint.best.is_none(), resumed.best.is_none());
            assert_eq!(resumed.best(), checkpoint.best());
            let resumed = EarlyStoppingTracker::new(&settings, &rows[..=i]);
            assert_eq!(resumed.stopped_early(), stopping.stopped_early());
            stopping.stopped_early().map(|stopped| (stopped.epoch, stopped.best_epoch))
        })
    }

    #[test]
    fn stops_after_epochs_without_improvement() {
        let patience = ("train.early_stopping.patience", "2");
        assert_eq!(stops(&[], &[0.5; 20]), None);
        assert_eq!(stops(&[patience], &[0.9, 0.8, 0.7, 0.75, 0.6, 0.5]), None);
        assert_eq!(stops(&[patience], &[0.9, 0.8, 0.85, 0.81, 0.1]), Some((4, Some(2))));
        // Neither equal nor non-finite values are an improvement.
        assert_eq!(stops(&[patience], &[0.9, 0.9, 0.9]), Some((3, Some(1))));
        assert_eq!(stops(&[patience], &[f64::INFINITY; 3]), Some((2, None)));
        // Epochs without a value are ignored.
        assert_eq!(stops(&[patience], &[0.9, 0.0, 0.0, 0.8, 0.0, 0.0, 0.85]), Some((7, Some(4))));
        let delta = ("train.early_stopping.min_delta", "0.2");
        assert_eq!(stops(&[patience, delta], &[0.9, 0.75, 0.71]), Some((3, Some(1))));
        assert_eq!(stops(&[patience, delta], &[0.9, 0.75, 0.65, 0.5, 0.5]), Some((5, Some(3))));
        let by_accuracy = ("train.early_stopping.measure", "val_top1");
        assert_eq!(stops(&[patience, by_accuracy], &[0.9, 0.8, 0.85, 0.81]), Some((4, Some(2))));
    }

    #[test]
    fn keeps_the_first_of_equal_epochs() {
        let best = |metric: &str, losses: &[f64]| {
            let settings = settings(&[("checkpoint.keep_best", metric)]);
            BestCheckpointTracker::new(&settings, 10, &rows(losses)).best()
        };
        assert_eq!(best("val_loss", &[]), None);
        assert_eq!(best("val_loss", &[0.0, f64::NAN, f64::INFINITY]), None);
        let expected =
            |value| BestCheckpoint { metric: "val_loss".to_owned(), value, epoch: 2, iteration: 20 };
        assert_eq!(best("val_loss", &[0.5, 0.25, 0.25, f64::NAN, 0.3]), Some(expected(0.25)));
        let by_accuracy = best("val_top1", &[0.5, 0.25, 0.25, 0.3]).unwrap();
        assert_eq!((by_accuracy.value, by_accuracy.epoch), (0.75, 2));
        assert_eq!(BestCheckpointTracker::new(&settings(&[]), 10, &rows(&[0.5])).best(), None);
    }

    #[test]
    fn rejects_unknown_metrics() {
        let read = |text: &str| {
            Experiment::from_toml(&format!("model.name = \"digits\"\n{text}"), Path::new("e.toml"))
        };
        let stopping =
            read("[train.early_stopping]\npatience = 3\nmeasure = \"val_top5\"").unwrap().early_stopping;
        assert_eq!((stopping.patience, stopping.measure), (Some(3), EpochMetric::ValTop5));
        let error = read("checkpoint.keep_best = \"val_top2\"").unwrap_err().to_string();
        assert!(
            error.contains("\"train_loss\", \"train_top1\", \"train_accuracy\", \"train_label_accuracy\""),
            "{error}"
        );
    }
}
