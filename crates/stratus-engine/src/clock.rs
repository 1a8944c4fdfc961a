//! The single clock of an iteration: stamps are contiguous, so that no nanosecond is counted twice or lost.

use std::time::Instant;

/// Nanoseconds per slot. Each stamp adds the time since the previous one to its slot.
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

    /// A clock that never reads the time, to measure the cost of stamping.
    #[must_use]
    pub fn disabled(slots: usize) -> Self {
        Self { enabled: false, ..Self::new(slots) }
    }

    /// Clears the slots; time continues from the last stamp.
    pub fn begin_iteration(&mut self) {
        self.slots.fill(0);
    }

    /// Drops the time since the last stamp, which belongs to no iteration.
    pub fn restart(&mut self) {
        self.last = Instant::now();
    }

    /// Adds the time since the last stamp to `slot`.
    #[inline]
    pub fn stamp(&mut self, slot: usize) {
        if self.enabled {
            let now = Instant::now();
            self.slots[slot] += now.duration_since(self.last).as_nanos() as u64;
            self.last = now;
        }
    }

    /// Returns whether it reads the time.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Divides the time since the last stamp among slots as a device measured it; the remainder counts to
    /// `rest`. Measured time beyond the elapsed time is cut off, because the device has another clock.
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

    /// The time of the last stamp.
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
    fn device_time_and_remainder_sum_to_the_elapsed_time() {
        let mut clock = Clock::new(3);
        let start = clock.last();
        std::thread::sleep(std::time::Duration::from_millis(1));
        clock.share(&[(0, 1_000), (1, 2_000), (0, 3_000)], 2);
        let total = clock.last().duration_since(start).as_nanos() as u64;
        assert_eq!((clock.slots()[0], clock.slots()[1]), (4_000, 2_000));
        assert_eq!(clock.slots().iter().sum::<u64>(), total);
        // A device that measures more than the elapsed time does not change the sum.
        let before = clock.last();
        clock.begin_iteration();
        clock.share(&[(0, u64::MAX), (1, 5)], 2);
        let passed = clock.last().duration_since(before).as_nanos() as u64;
        assert_eq!(clock.slots(), [passed, 0, 0]);
    }
}
