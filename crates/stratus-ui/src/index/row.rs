//! A row of the table of runs.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use stratus_report::report::Score as ScoreMetric;

use super::facts::{RowLabels, Settings};
use super::find::ItemId;
use crate::actions::{Offer, Progress as ActionProgress};

/// A row of the table of runs, as pages get it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunRow {
    /// The id of the run.
    pub id: ItemId,
    /// Its path in the folders.
    pub label: String,
    /// `running`, `completed`, `interrupted`, `failed`, or `unreadable`.
    pub state: &'static str,
    /// Damaged or missing files, in one sentence.
    pub problem: Option<String>,
    /// The experiment's name.
    pub experiment: String,
    /// The network.
    pub network: String,
    /// The data set.
    pub data: String,
    /// The compute device.
    pub device: String,
    /// Name, tags, note, commit.
    #[serde(flatten)]
    pub labels: RowLabels,
    /// The time of the start.
    pub started: Option<String>,
    /// Epochs and time.
    #[serde(flatten)]
    pub progress: Progress,
    /// The validation metric.
    #[serde(flatten)]
    pub score: Score,
    /// The action that it permits.
    pub offer: Offer,
    /// The progress of the last action.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<ActionProgress>,
}

/// A run, as the last scan saw it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The row of the table.
    pub row: Arc<RunRow>,
    /// The configuration.
    pub settings: Option<Arc<Settings>>,
    /// The run directory.
    pub path: PathBuf,
    /// The revision of the last change.
    pub revision: u64,
    /// The revision of the last change other than new iterations.
    pub content: u64,
    /// The position in the table.
    pub position: usize,
}

/// How far a run is.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Progress {
    /// Completed epochs.
    pub epochs: u32,
    /// Configured epochs.
    pub of_epochs: Option<u64>,
    /// The last recorded iteration.
    pub iteration: Option<u64>,
    /// The part of the run that is done, in percent.
    pub percent: Option<f64>,
    /// Estimated seconds left, from the epochs that are done; `None` unless the run is training.
    pub left_s: Option<f64>,
    /// Seconds since the start, at the end of the last epoch.
    pub elapsed_s: Option<f64>,
    /// Median images per second.
    pub images_per_second: Option<f64>,
    /// The price of the elapsed time, if the run has a price per hour.
    pub price: Option<f64>,
    /// The currency of the price, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
}

/// The validation metric of a run over its epochs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Score {
    /// The metric, as its name.
    pub score: Option<ScoreMetric>,
    /// `%` if its values are fractions, to be shown in percent; else nothing.
    pub score_unit: &'static str,
    /// Its best value.
    pub best: Option<f64>,
    /// Its values over the epochs, a bounded number of them.
    pub curve: Vec<f64>,
    /// The training loss of the last epoch.
    pub train_loss: Option<f64>,
}

/// The figures of a run in the tables of sweeps and launches; unknown ones if it is not in the folders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RunFigures<'a> {
    /// The id of the run.
    pub run: Option<&'a str>,
    /// Completed epochs.
    pub epochs: Option<u64>,
    /// Configured epochs.
    pub of_epochs: Option<u64>,
    /// The best validation metric.
    pub best: Option<f64>,
    /// `%` if it is a fraction, to be shown in percent; else nothing.
    pub score_unit: &'static str,
    /// Median images per second.
    pub images_per_second: Option<f64>,
    /// Seconds since the start, at the end of the last epoch.
    pub elapsed_s: Option<f64>,
}

impl<'a> RunFigures<'a> {
    /// The figures of a row.
    pub fn of(row: Option<&'a RunRow>) -> Self {
        row.map_or_else(Self::default, |row| Self {
            run: Some(row.id.as_str()),
            epochs: Some(row.progress.epochs.into()),
            of_epochs: row.progress.of_epochs,
            best: row.score.best,
            score_unit: row.score.score_unit,
            images_per_second: row.progress.images_per_second,
            elapsed_s: row.progress.elapsed_s,
        })
    }
}

/// Epochs and iterations, from which progress and time follow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Completed epochs.
    pub epochs: u32,
    /// Configured epochs.
    pub of_epochs: Option<u64>,
    /// Seconds since the start at the end of the first and of the last completed epoch.
    pub ends_s: Option<(f64, f64)>,
    /// Iterations at the end of the last completed epoch.
    pub epoch_iterations: Option<u64>,
    /// The last recorded iteration.
    pub iteration: Option<u64>,
}

impl Pace {
    /// Completed epochs with the completed part of the current one.
    fn epochs_done(&self) -> f64 {
        let done = f64::from(self.epochs);
        match (self.epoch_iterations, self.iteration) {
            (Some(at_end), Some(now)) if at_end > 0 && self.epochs > 0 && now > at_end => {
                let per_epoch = at_end as f64 / done;
                done + ((now - at_end) as f64 / per_epoch).min(1.0)
            }
            _ => done,
        }
    }

    /// The part of the run that is done, in percent.
    pub fn percent(&self) -> Option<f64> {
        let all = self.of_epochs.filter(|all| *all > 0)?;
        Some((100.0 * self.epochs_done() / all as f64).min(100.0))
    }

    /// Estimated seconds left.
    pub fn left_s(&self) -> Option<f64> {
        let (first, last) = self.ends_s.filter(|_| self.epochs > 0)?;
        // Startup belongs to the first epoch only.
        let per_epoch = match self.epochs {
            1 => last,
            epochs => (last - first) / f64::from(epochs - 1),
        };
        let left = self.of_epochs? as f64 - self.epochs_done();
        Some((left * per_epoch).max(0.0)).filter(|left| left.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_counts_the_iterations_of_the_current_epoch() {
        let pace = Pace {
            epochs: 2,
            of_epochs: Some(10),
            ends_s: Some((30.0, 50.0)),
            epoch_iterations: Some(200),
            iteration: Some(250),
        };
        assert_eq!(pace.percent(), Some(25.0));
        assert_eq!(pace.left_s(), Some(150.0), "7.5 epochs of 20 seconds, without the startup");
        assert_eq!(Pace { iteration: Some(9999), ..pace }.percent(), Some(30.0));
        assert_eq!(Pace { iteration: None, ..pace }.percent(), Some(20.0));
        assert_eq!(Pace { of_epochs: Some(2), iteration: None, ..pace }.left_s(), Some(0.0));
        assert_eq!(Pace { epochs: 1, ..pace }.left_s(), Some((10.0 - 1.25) * 50.0));
        let young = Pace { of_epochs: Some(10), iteration: Some(5), ..Pace::default() };
        assert_eq!((young.percent(), young.left_s()), (Some(0.0), None));
        assert_eq!(Pace { of_epochs: Some(0), ..pace }.percent(), None);
    }
}
