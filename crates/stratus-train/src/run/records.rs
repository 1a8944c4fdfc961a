//! What a run records beside its weights: running totals, the timeline's slots, the spread of its speed.

use serde::{Deserialize, Serialize};
use stratus_engine::session::DeviceSlot;
use stratus_engine::{Phase, Session};
use stratus_run::summary::Spread;
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
    /// This epoch: the sum of loss times samples,
    pub loss: f64,
    /// samples classified correctly,
    pub top1: f64,
    /// samples,
    pub samples: f64,
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
        let sums = RunningTotals { loss: 0.1 + 0.2, top1: 1.0 / 3.0, ..RunningTotals::default() };
        let back: RunningTotals = serde_json::from_value(serde_json::to_value(sums).unwrap()).unwrap();
        assert_eq!(back, sums);
    }
}
