//! The slots that an iteration's clock divides its time among, and their description in the timeline.

use std::time::Duration;
use stratus_engine::session::DeviceSlot;
use stratus_engine::{Phase, Session};
use stratus_run::timeline::{self, Purpose, Slot};

/// Clock slot: waiting for data.
pub(in crate::run) const DATA_WAIT: usize = 0;
/// Clock slot: writing rows, timeline and progress.
pub(in crate::run) const BOOKKEEPING: usize = 1;
/// Clock slot: checkpoints within an epoch.
pub(in crate::run) const CHECKPOINT: usize = 2;
/// Clock slot of the first step.
pub(in crate::run) const FIRST_STEP: usize = 3;

/// Describes a program for the timeline: the fixed slots, the steps, and a device's copies and idle time.
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
            Phase::Teacher => timeline::Phase::Teacher,
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

/// The times of an iteration.
#[derive(Clone, Copy)]
pub(in super::super) struct IterationTimes<'a> {
    pub wall_ns: u64,
    /// Nanoseconds by slot. The remainder of the wall time is attributed to no slot.
    pub slots: &'a [u64],
}

impl IterationTimes<'_> {
    pub fn wall(self) -> Duration {
        Duration::from_nanos(self.wall_ns)
    }

    pub fn wall_s(self) -> f64 {
        seconds(self.wall_ns)
    }

    /// Seconds of all slots.
    pub fn attributed_s(self) -> f64 {
        seconds(self.slots.iter().sum())
    }

    pub fn data_wait(self) -> Duration {
        Duration::from_nanos(self.slots[DATA_WAIT])
    }

    pub fn data_wait_s(self) -> f64 {
        seconds(self.slots[DATA_WAIT])
    }

    pub fn checkpoint_s(self) -> f64 {
        seconds(self.slots[CHECKPOINT])
    }

    /// Seconds of the steps.
    pub fn steps_s(self) -> f64 {
        seconds(self.slots[FIRST_STEP..].iter().sum())
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 * 1e-9
}
