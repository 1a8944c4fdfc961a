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

    /// Whether it looks at the time.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Gives the time since the last stamp to several slots, as a device measured them, and what is left of
    /// it to `rest`. What a device says beyond that time is cut off: its clock may be another one.
    pub fn share(&mut self, measured: &[(usize, u64)], rest: usize) {
        if self.enabled {
            let now = Instant::now();
            let mut left = now.duration_since(self.last).as_nanos() as u64;
            for &(slot, nanoseconds) in measured {
                let taken = nanoseconds.min(left);
                self.slots[slot] += taken;
                left -= taken;
            }
            self.slots[rest] += left;
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

    #[test]
    fn what_a_device_measured_and_the_rest_are_all_the_time() {
        let mut clock = Clock::new(3);
        let start = clock.last();
        std::thread::sleep(std::time::Duration::from_millis(1));
        clock.share(&[(0, 1_000), (1, 2_000), (0, 3_000)], 2);
        let total = clock.last().duration_since(start).as_nanos() as u64;
        assert_eq!((clock.slots()[0], clock.slots()[1]), (4_000, 2_000));
        assert_eq!(clock.slots().iter().sum::<u64>(), total);
        // More than there was: the sum is still what passed.
        let before = clock.last();
        clock.begin_iteration();
        clock.share(&[(0, u64::MAX), (1, 5)], 2);
        let passed = clock.last().duration_since(before).as_nanos() as u64;
        assert_eq!(clock.slots(), [passed, 0, 0]);
    }
}
