//! The numbers of a run besides its weights: running totals, metrics, speed percentiles.

use super::energy::EnergyTotals;
use crate::ResolvedProcess;
use serde::{Deserialize, Serialize};
use stratus_engine::session::{Metrics, PixelMetrics, TargetLossMetrics};
use stratus_run::csv::{EpochRow, Task};
use stratus_run::summary::{FinalMetrics, SpeedPercentiles};

/// Totals that a checkpoint stores, so that the row of an interrupted epoch is the same as without the
/// interruption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::run) struct RunningTotals {
    #[serde(flatten)]
    pub epoch: EpochTotals,
    #[serde(flatten)]
    pub time: TimeTotals,
    /// Energy of the whole run, in all processes so far.
    #[serde(flatten)]
    pub energy: EnergyTotals,
    /// Number of times that the run was resumed.
    pub resumed: u64,
}

/// Totals of the current epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::run) struct EpochTotals {
    /// Total of loss × weight.
    pub loss: f64,
    /// Total of the weights of losses: samples, or the class weights of pixels.
    pub weight: f64,
    /// Samples or pixels whose class was predicted correctly.
    #[serde(rename = "right", alias = "top1")]
    pub correct: f64,
    /// Samples or pixels with a class.
    #[serde(rename = "counted", alias = "samples")]
    pub labelled: f64,
    pub images: f64,
    /// Seconds in iterations.
    #[serde(rename = "epoch_s")]
    pub seconds: f64,
}

/// Seconds of the whole run, in all processes so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::run) struct TimeTotals {
    /// From the start of each process to its last checkpoint.
    pub elapsed_s: f64,
    /// Before the first iteration of each process.
    pub startup_s: f64,
    /// Wall time of iterations.
    pub iteration_s: f64,
    /// Within iterations, attributed to a slot.
    pub attributed_s: f64,
    /// Within iterations, waiting for data.
    pub data_wait_s: f64,
    /// Within iterations, saving checkpoints.
    pub checkpoint_in_iterations_s: f64,
    /// Checkpoints at the end of epochs.
    pub checkpoint_s: f64,
    /// Validation.
    pub validation_s: f64,
}

impl RunningTotals {
    /// Reads the totals of a checkpoint. Earlier versions counted samples only.
    pub fn from_checkpoint(value: &serde_json::Value) -> Option<Self> {
        let mut totals: Self = serde_json::from_value(value.clone()).ok()?;
        let epoch = &mut totals.epoch;
        if epoch.images == 0.0 {
            (epoch.images, epoch.weight) = (epoch.labelled, epoch.labelled);
        }
        Some(totals)
    }
}

impl EpochTotals {
    /// Adds an iteration on a batch of `images`, which took `seconds`.
    pub fn add(&mut self, metrics: &IterationMetrics, images: u64, seconds: f64) {
        self.loss += metrics.loss * metrics.weight;
        self.weight += metrics.weight;
        self.correct += metrics.correct;
        self.labelled += metrics.labelled;
        self.images += images as f64;
        self.seconds += seconds;
    }

    /// Mean loss so far; 0 if all weights are 0.
    pub fn mean_loss(&self) -> f64 {
        if self.weight > 0.0 { self.loss / self.weight } else { 0.0 }
    }

    /// The fraction of correct predictions so far.
    pub fn accuracy(&self) -> f64 {
        self.correct / self.labelled.max(1.0)
    }

    pub fn images_per_second(&self) -> f64 {
        self.images / self.seconds.max(1e-9)
    }
}

/// The metrics of an iteration, of samples or of pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::run) struct IterationMetrics {
    pub loss: f64,
    /// The total weight of the loss: samples, the class weights of pixels, or targets.
    pub weight: f64,
    /// Samples or pixels with a class, or targets that are not missing.
    pub labelled: f64,
    /// Samples or pixels whose class, or labels that were predicted correctly; of numbers, the sum of 1 minus
    /// the squared error of the standardised target.
    pub correct: f64,
    /// Samples whose class was among the five most probable.
    pub top5: Option<f64>,
}

impl IterationMetrics {
    pub fn new(task: Task, metrics: Metrics) -> Self {
        match task {
            Task::Classification => {
                let Metrics { loss, samples, top1, top5 } = metrics;
                Self { loss, weight: samples, labelled: samples, correct: top1, top5: Some(top5) }
            }
            Task::Segmentation => {
                let PixelMetrics { loss, pixels, correct, weight } = metrics.into();
                Self { loss, weight, labelled: pixels, correct, top5: None }
            }
            Task::MultiLabel | Task::Regression => {
                let TargetLossMetrics { loss, targets, score, .. } = metrics.into();
                Self { loss, weight: targets, labelled: targets, correct: score, top5: None }
            }
        }
    }

    /// A count as a fraction of the labelled samples or pixels; `None` without any.
    pub fn fraction(&self, count: f64) -> Option<f64> {
        (self.labelled > 0.0).then(|| count / self.labelled)
    }
}

/// The kind of a run's validation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ValidationKind {
    pub task: Task,
    /// Number of views of each image that are averaged; `None` if it is only the image itself.
    pub views: Option<u64>,
    /// The decay of the averaged weights that are evaluated, if there are any.
    pub ema_decay: Option<f64>,
}

impl ValidationKind {
    pub fn from_resolved(resolved: &ResolvedProcess) -> Self {
        let views = Some(resolved.views().len() as u64).filter(|&views| views > 1);
        Self { task: resolved.task(), views, ema_decay: resolved.settings().train.ema_decay }
    }
}

/// The metrics at the end of an epoch, by its row; without a validation, its metrics stay as in `before`.
pub(super) fn final_metrics(
    row: &EpochRow,
    validation: ValidationKind,
    before: FinalMetrics,
) -> FinalMetrics {
    if row.val_loss.is_none() {
        return FinalMetrics { train_loss: Some(row.train_loss), ..before };
    }
    let accuracy_of = |task: Task| row.val_accuracy.filter(|_| validation.task == task);
    FinalMetrics {
        train_loss: Some(row.train_loss),
        val_loss: row.val_loss,
        val_top1: accuracy_of(Task::Classification),
        val_top5: row.val_top5,
        val_accuracy: accuracy_of(Task::Segmentation),
        val_mean_accuracy: row.val_mean_accuracy,
        val_miou: row.val_miou,
        val_bf: row.val_bf,
        val_label_accuracy: accuracy_of(Task::MultiLabel),
        labels: row.labels,
        val_r2: accuracy_of(Task::Regression),
        numbers: row.numbers,
        val_views: validation.views,
        val_ema_decay: validation.ema_decay,
    }
}

/// Median, 10th and 90th percentile of images per second.
pub(super) fn percentiles(rates: &[f32]) -> SpeedPercentiles {
    // This runs after every epoch on all iterations so far: selecting is linear, sorting is not.
    let mut rates = rates.to_vec();
    let mut at = |fraction: f64| {
        let last = rates.len().checked_sub(1)?;
        let position = (last as f64 * fraction).round() as usize;
        Some(f64::from(*rates.select_nth_unstable_by(position, f32::total_cmp).1))
    };
    SpeedPercentiles { median: at(0.5), p10: at(0.1), p90: at(0.9) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_ordered() {
        let rates: Vec<f32> = (0..=100).rev().map(|i| i as f32).collect();
        let speeds = percentiles(&rates);
        assert_eq!((speeds.p10, speeds.median, speeds.p90), (Some(10.0), Some(50.0), Some(90.0)));
        assert_eq!(percentiles(&[]).median, None);
    }

    #[test]
    fn totals_survive_json_bit_identical() {
        let epoch =
            EpochTotals { loss: 0.1 + 0.2, correct: 1.0 / 3.0, images: 7.0, ..EpochTotals::default() };
        let time = TimeTotals { elapsed_s: 0.1 + 0.7, ..TimeTotals::default() };
        let energy = EnergyTotals { cpu_joules: Some(0.1 + 0.3), gpu_joules: None };
        let totals = RunningTotals { epoch, time, energy, resumed: 3 };
        let back = RunningTotals::from_checkpoint(&serde_json::to_value(totals).unwrap()).unwrap();
        assert_eq!(back, totals);
    }

    #[test]
    fn totals_keep_their_names_in_checkpoints() {
        let value = serde_json::to_value(RunningTotals::default()).unwrap();
        let names: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        let expected = "attributed_s checkpoint_in_iterations_s checkpoint_s counted cpu_energy_j \
                        data_wait_s elapsed_s epoch_s gpu_energy_j images iteration_s loss \
                        resumed right startup_s validation_s weight";
        assert_eq!(names.join(" "), expected);
    }

    #[test]
    fn reads_totals_of_earlier_versions() {
        let value = serde_json::json!({"loss": 6.0, "top1": 3.0, "samples": 4.0});
        let totals = RunningTotals::from_checkpoint(&value).unwrap();
        assert_eq!(totals.energy, EnergyTotals::default(), "not measured");
        let epoch = totals.epoch;
        assert_eq!((epoch.mean_loss(), epoch.accuracy(), epoch.images), (1.5, 0.75, 4.0));
    }

    #[test]
    fn accuracy_without_labels_is_none() {
        let metrics = IterationMetrics::new(Task::Segmentation, Metrics::default());
        assert_eq!((metrics.fraction(metrics.correct), metrics.top5), (None, None));
        assert_eq!(EpochTotals::default().mean_loss(), 0.0);
    }
}
