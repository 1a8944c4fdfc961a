//! The one clock of an iteration: contiguous stamps, so that no nanosecond is counted twice or lost.

use std::time::Instant;

/// Nanoseconds per slot. Each stamp gives all the time since the previous one to its slot.
#[derive(Debug)]
pub struct Clock {
    last: Instant,
    slots: Vec<u64>,
    enabled: bool,
}

impl Clock {
    /// A clock with `slots` slots, started now.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self { last: Instant::now(), slots: vec![0; slots], enabled: true }
    }

    /// A clock that does not look at the time: what stamping costs is the difference.
    #[must_use]
    pub fn disabled(slots: usize) -> Self {
        Self { enabled: false, ..Self::new(slots) }
    }

    /// Clears the slots; time continues from the last stamp.
    pub fn begin_iteration(&mut self) {
        self.slots.fill(0);
    }

    /// Forgets the time since the last stamp: it belongs to no iteration.
    pub fn restart(&mut self) {
        self.last = Instant::now();
    }

    /// Gives the time since the last stamp to `slot`.
    #[inline]
    pub fn stamp(&mut self, slot: usize) {
        if self.enabled {
            let now = Instant::now();
            self.slots[slot] += now.duration_since(self.last).as_nanos() as u64;
            self.last = now;
        }
    }

    /// When the last stamp was made.
    #[must_use]
    pub fn last(&self) -> Instant {
        self.last
    }

    /// Nanoseconds per slot since [`Clock::begin_iteration`].
    #[must_use]
    pub fn slots(&self) -> &[u64] {
        &self.slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_contiguous() {
        let mut clock = Clock::new(3);
        let start = clock.last();
        clock.stamp(1);
        clock.stamp(0);
        clock.stamp(1);
        let total: u64 = clock.slots().iter().sum();
        assert_eq!(total, clock.last().duration_since(start).as_nanos() as u64);
        clock.begin_iteration();
        assert_eq!(clock.slots(), [0, 0, 0]);
    }
}
