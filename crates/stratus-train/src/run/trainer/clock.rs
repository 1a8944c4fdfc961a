//! The clock of an iteration: stamps that divide its wall time among slots.

use super::super::recorder::slots::{CHECKPOINT, DATA_WAIT, FIRST_STEP};
use std::time::{Duration, Instant};
use stratus_engine::Clock;

/// Divides the wall time of iterations among slots: data wait, bookkeeping, checkpoint, and each step.
pub(super) struct IterationClock {
    pub stamps: Clock,
    /// When the last iteration ended, or the clock was restarted.
    started: Instant,
}

/// The times of an iteration.
#[derive(Clone, Copy)]
pub(in super::super) struct IterationTimes<'a> {
    pub wall_ns: u64,
    /// Nanoseconds by slot. The remainder of the wall time is attributed to no slot.
    pub slots: &'a [u64],
}

impl IterationClock {
    /// A clock for programs of at most `steps` steps.
    pub fn new(steps: usize) -> Self {
        Self { stamps: Clock::new(FIRST_STEP + steps), started: Instant::now() }
    }

    /// Adds the time since the last stamp to `slot`.
    pub fn stamp(&mut self, slot: usize) {
        self.stamps.stamp(slot);
    }

    /// Drops the time since the last stamp, which belongs to no iteration.
    pub fn restart(&mut self) {
        self.stamps.begin_iteration();
        self.stamps.restart();
        self.started = Instant::now();
    }

    /// Ends an iteration of `steps` steps. Its slots stay until [`Self::begin_iteration`].
    pub fn end_iteration(&mut self, steps: usize) -> IterationTimes<'_> {
        let end = Instant::now();
        let wall_ns = end.duration_since(self.started).as_nanos() as u64;
        self.started = end;
        IterationTimes { wall_ns, slots: &self.stamps.slots()[..FIRST_STEP + steps] }
    }

    /// Clears the slots; time continues from the last stamp.
    pub fn begin_iteration(&mut self) {
        self.stamps.begin_iteration();
    }
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
