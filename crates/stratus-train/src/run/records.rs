//! What a run records beside its weights: running totals, the timeline's slots, the spread of its speed.

use crate::Resolved;
use serde::{Deserialize, Serialize};
use stratus_engine::session::{DeviceSlot, Metrics, PixelMetrics};
use stratus_engine::{Phase, Session};
use stratus_run::csv::{EpochRow, Task};
use stratus_run::summary::{FinalMetrics, Spread};
use stratus_run::timeline::{self, Purpose, Slot};

/// Slots of the clock before those of the steps: waiting for data,
pub(super) const DATA_WAIT: usize = 0;
/// writing rows, timeline and progress,
pub(super) const BOOKKEEPING: usize = 1;
/// saving checkpoints within an epoch.
pub(super) const CHECKPOINT: usize = 2;
/// The slot of the first step.
pub(super) const FIRST_STEP: usize = 3;

/// Totals that a checkpoint keeps, so that an interrupted epoch's row is the same as without the
/// interruption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RunningTotals {
    /// This epoch: the sum of loss times weight,
    pub loss: f64,
    /// the weight of losses: samples, or the class weights of pixels,
    pub weight: f64,
    /// samples or pixels whose class was predicted,
    #[serde(alias = "top1")]
    pub right: f64,
    /// samples or pixels with a class,
    #[serde(alias = "samples")]
    pub counted: f64,
    /// images,
    pub images: f64,
    /// seconds in iterations.
    pub epoch_s: f64,
    /// The whole run, in seconds: the time of all processes so far;
    pub elapsed_s: f64,
    /// before the first iteration of each;
    pub startup_s: f64,
    /// wall time of iterations;
    pub iteration_s: f64,
    /// of that: attributed to a slot,
    pub attributed_s: f64,
    /// waiting for data,
    pub data_wait_s: f64,
    /// saving checkpoints;
    pub checkpoint_in_iterations_s: f64,
    /// checkpoints at the end of epochs;
    pub checkpoint_s: f64,
    /// validation.
    pub validation_s: f64,
    /// How often the run was resumed.
    pub resumed: u64,
}

impl RunningTotals {
    /// As a checkpoint has them; earlier versions counted samples alone.
    pub fn of_checkpoint(value: &serde_json::Value) -> Option<Self> {
        let mut totals: Self = serde_json::from_value(value.clone()).ok()?;
        if totals.images == 0.0 {
            (totals.images, totals.weight) = (totals.counted, totals.counted);
        }
        Some(totals)
    }

    /// Adds an iteration on a batch of `images`.
    pub fn add(&mut self, measured: &Measured, images: usize) {
        self.loss += measured.loss * measured.weight;
        self.weight += measured.weight;
        self.right += measured.right;
        self.counted += measured.counted;
        self.images += images as f64;
    }

    /// Mean loss of the epoch so far; 0 where nothing weighed anything.
    pub fn mean_loss(&self) -> f64 {
        if self.weight > 0.0 { self.loss / self.weight } else { 0.0 }
    }

    /// The share of right answers in the epoch so far.
    pub fn accuracy(&self) -> f64 {
        self.right / self.counted.max(1.0)
    }

    /// Begins an epoch.
    pub fn begin_epoch(&mut self) {
        *self = Self { loss: 0.0, weight: 0.0, right: 0.0, counted: 0.0, images: 0.0, epoch_s: 0.0, ..*self };
    }
}

/// What an iteration measured, of samples or of pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    pub loss: f64,
    /// What the loss is a mean over: samples, or the class weights of pixels.
    pub weight: f64,
    /// Samples or pixels with a class.
    pub counted: f64,
    /// Those of them whose class was predicted.
    pub right: f64,
    /// Samples whose class was among the best five.
    pub top5: Option<f64>,
}

impl Measured {
    pub fn of(task: Task, metrics: Metrics) -> Self {
        match task {
            Task::Classification => {
                let Metrics { loss, samples, top1, top5 } = metrics;
                Self { loss, weight: samples, counted: samples, right: top1, top5: Some(top5) }
            }
            Task::Segmentation => {
                let PixelMetrics { loss, pixels, right, weight } = metrics.into();
                Self { loss, weight, counted: pixels, right, top5: None }
            }
        }
    }

    /// A count as a share of what counted; none where nothing did.
    pub fn share(&self, count: f64) -> Option<f64> {
        (self.counted > 0.0).then(|| count / self.counted)
    }
}

/// What a run's validation measures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ValidationKind {
    pub task: Task,
    /// Views of each image that are averaged; `None` if it is the image alone.
    pub views: Option<u64>,
    /// The decay of the averaged weights that it takes, if there are such.
    pub ema_decay: Option<f64>,
}

impl ValidationKind {
    pub fn of(resolved: &Resolved) -> Self {
        let views = Some(resolved.views().len() as u64).filter(|&views| views > 1);
        Self { task: resolved.task(), views, ema_decay: resolved.settings().train.ema_decay }
    }
}

/// The metrics at the end of an epoch, by its row; what was not measured stays as it was `before`.
pub(super) fn final_metrics(
    row: &EpochRow,
    validation: ValidationKind,
    before: FinalMetrics,
) -> FinalMetrics {
    if row.val_loss.is_none() {
        return FinalMetrics { train_loss: Some(row.train_loss), ..before };
    }
    let (is_pixels, share) = (validation.task == Task::Segmentation, row.val_accuracy);
    FinalMetrics {
        train_loss: Some(row.train_loss),
        val_loss: row.val_loss,
        val_top1: share.filter(|_| !is_pixels),
        val_top5: row.val_top5,
        val_accuracy: share.filter(|_| is_pixels),
        val_mean_accuracy: row.val_mean_accuracy,
        val_miou: row.val_miou,
        val_bf: row.val_bf,
        val_views: validation.views,
        val_ema_decay: validation.ema_decay,
    }
}

/// The timeline's description of a program: the fixed slots, the steps, and a device's copies and idle time.
pub(super) fn timeline_program(name: &str, session: &Session, program: usize) -> timeline::Program {
    let (plan, device_slots) = (session.plan(program), session.device_slots());
    let device = if device_slots.is_empty() { "cpu" } else { plan.backend.as_str() };
    let fixed = |phase: timeline::Phase| Slot {
        layers: Vec::new(),
        kind: phase.name().to_owned(),
        phase,
        device: device.to_owned(),
    };
    let mut slots = vec![
        fixed(timeline::Phase::DataWait),
        fixed(timeline::Phase::Bookkeeping),
        fixed(timeline::Phase::Checkpoint),
    ];
    slots.extend(plan.program.steps.iter().map(|step| Slot {
        layers: step.layers.iter().map(|&layer| plan.program.layers[layer].name.clone()).collect(),
        kind: plan.program.layer_kind(step),
        phase: match step.phase {
            Phase::Forward => timeline::Phase::Forward,
            Phase::Loss => timeline::Phase::Loss,
            Phase::BackwardData => timeline::Phase::BackwardData,
            Phase::BackwardWeights => timeline::Phase::BackwardWeights,
            Phase::Update => timeline::Phase::Update,
            Phase::Layout => timeline::Phase::Layout,
            Phase::Communication => timeline::Phase::Communication,
        },
        device: device.to_owned(),
    }));
    slots.extend(device_slots.iter().map(|slot| match slot {
        DeviceSlot::Copies => fixed(timeline::Phase::Copy),
        DeviceSlot::Idle => fixed(timeline::Phase::Idle),
    }));
    let batch_size = plan.program.batch as u64;
    timeline::Program { name: name.to_owned(), purpose: Purpose::Train, batch_size, slots }
}

/// Median, 10th and 90th percentile of images per second.
pub(super) fn spread(rates: &[f32]) -> Spread {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f32::total_cmp);
    let at = |share: f64| {
        let last = sorted.len().checked_sub(1)?;
        sorted.get((last as f64 * share).round() as usize).map(|&rate| f64::from(rate))
    };
    Spread { median: at(0.5), p10: at(0.1), p90: at(0.9) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_ordered() {
        let rates: Vec<f32> = (0..=100).rev().map(|i| i as f32).collect();
        let spread = spread(&rates);
        assert_eq!((spread.p10, spread.median, spread.p90), (Some(10.0), Some(50.0), Some(90.0)));
        assert_eq!(super::spread(&[]).median, None);
    }

    #[test]
    fn sums_survive_json_bit_by_bit() {
        let sums =
            RunningTotals { loss: 0.1 + 0.2, right: 1.0 / 3.0, images: 7.0, ..RunningTotals::default() };
        let back = RunningTotals::of_checkpoint(&serde_json::to_value(sums).unwrap()).unwrap();
        assert_eq!(back, sums);
    }

    #[test]
    fn totals_of_earlier_versions_counted_samples() {
        let value = serde_json::json!({"loss": 6.0, "top1": 3.0, "samples": 4.0});
        let totals = RunningTotals::of_checkpoint(&value).unwrap();
        assert_eq!((totals.mean_loss(), totals.accuracy(), totals.images), (1.5, 0.75, 4.0));
    }

    #[test]
    fn what_is_not_measured_is_not_zero() {
        let measured = Measured::of(Task::Segmentation, Metrics::default());
        assert_eq!((measured.share(measured.right), measured.top5), (None, None));
        assert_eq!(RunningTotals::default().mean_loss(), 0.0);
    }
}
