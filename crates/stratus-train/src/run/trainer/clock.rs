//! The clock of an iteration: stamps that divide its wall time among slots.

use super::super::recorder::slots::{FIRST_STEP, IterationTimes};
use std::time::Instant;
use stratus_engine::Clock;

/// Divides the wall time of iterations among slots: data wait, bookkeeping, checkpoint, and each step.
pub(super) struct IterationClock {
    pub stamps: Clock,
    /// When the last iteration ended, or the clock was restarted.
    started: Instant,
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
