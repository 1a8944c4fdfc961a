//! Finds out, while other programs load the CPUs, whether a small team is faster if its other threads are
//! woken for every region, or if they are left asleep where one thread can do all the work.
//!
//! Neither is always faster. Threads that are woken often keep their place on their CPUs: with kernels of
//! microseconds and one competing program per CPU, two threads are faster than one. If kernels take as long
//! as a time slice, or several programs compete for each CPU, a woken thread takes its part and then loses
//! its CPU for milliseconds, for which the others wait. So both ways are tried in turn, and the faster one is
//! kept. The results of kernels do not depend on it.
//!
//! Kernels much shorter than a time slice are not tried without their team: as soon as the other threads are
//! asleep, the system may move a competing program to the CPU of the one that is left, and keep it there.

use std::cell::RefCell;

/// A way to start the other threads of a region while other programs load the CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeUp {
    /// They are woken.
    Always,
    /// They are woken only if the parts of the region may wait for each other.
    IfNeeded,
}

impl WakeUp {
    fn other(self) -> Self {
        match self {
            Self::Always => Self::IfNeeded,
            Self::IfNeeded => Self::Always,
        }
    }
}

/// The shortest period over which one way is measured: several time slices of the system's scheduler.
const MIN_PERIOD_NS: u64 = 200_000_000;
/// The fewest pieces of work in such a period.
const MIN_PIECES: u32 = 8;
/// Mean time of pieces, while other programs load the CPUs, below which threads are always woken: half a time
/// slice of Linux' scheduler.
const MAX_SHORT_PIECE_NS: f64 = 2e6;
/// The periods of the faster way between two of the slower one, if both are about equally fast.
const MIN_PERIODS_BETWEEN_TRIALS: u32 = 16;
/// The same, if the slower one is much slower.
const MAX_PERIODS_BETWEEN_TRIALS: u32 = 64;
/// The weight of a new measurement of a way.
const PERIOD_WEIGHT: f64 = 0.5;
/// The weight of a new measurement of a piece of work.
const PIECE_WEIGHT: f64 = 0.125;

/// The usual time of a piece of work that is done repeatedly, such as a kernel of a network.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsualTime {
    /// Nanoseconds while other programs load the CPUs; 0 before the first measurement.
    ns: f64,
}

impl UsualTime {
    /// Adds a measurement, and returns the usual time before it: the measurement itself, if it is the first.
    fn add(&mut self, ns: f64) -> f64 {
        let before = if self.ns == 0.0 { ns } else { self.ns };
        self.ns = before + PIECE_WEIGHT * (ns - before);
        before
    }
}

/// The comparison of both ways.
struct Trial {
    current: WakeUp,
    /// The time of work, divided by its usual time, by each way; `None` before it was measured.
    slowness: [Option<f64>; 2],
    /// Periods until the slower way is tried again.
    periods_left: u32,
    /// The current period: its start, 0 if there is none; the pieces of work, and their actual and usual
    /// nanoseconds.
    started_ns: u64,
    pieces: u32,
    actual_ns: f64,
    usual_ns: f64,
}

impl Trial {
    const fn new() -> Self {
        Self {
            current: WakeUp::Always,
            slowness: [None; 2],
            periods_left: 0,
            started_ns: 0,
            pieces: 0,
            actual_ns: 0.0,
            usual_ns: 0.0,
        }
    }

    /// Adds a piece of work that ended at `now_ns`.
    fn add(&mut self, now_ns: u64, actual_ns: f64, usual_ns: f64) {
        if self.started_ns == 0 {
            self.started_ns = now_ns;
            return;
        }
        self.pieces += 1;
        self.actual_ns += actual_ns;
        self.usual_ns += usual_ns;
        if now_ns.saturating_sub(self.started_ns) >= MIN_PERIOD_NS && self.pieces >= MIN_PIECES {
            self.end_period();
        }
    }

    /// Ends a period: the way of the next one follows.
    fn end_period(&mut self) {
        let measured = self.actual_ns / self.usual_ns.max(1.0);
        let is_short = self.actual_ns / f64::from(self.pieces.max(1)) < MAX_SHORT_PIECE_NS;
        let slowness = &mut self.slowness[self.current as usize];
        *slowness = Some(slowness.map_or(measured, |before| before + PERIOD_WEIGHT * (measured - before)));
        (self.started_ns, self.pieces, self.actual_ns, self.usual_ns) = (0, 0, 0.0, 0.0);
        if self.current == WakeUp::Always && is_short {
            return;
        }
        let [Some(always), Some(if_needed)] = self.slowness else {
            self.current = self.current.other();
            return;
        };
        let faster = if always <= if_needed { WakeUp::Always } else { WakeUp::IfNeeded };
        if self.current != faster {
            let ratio = (always / if_needed).max(if_needed / always);
            let periods = f64::from(MIN_PERIODS_BETWEEN_TRIALS) * ratio.powi(3);
            self.periods_left = (periods as u32).min(MAX_PERIODS_BETWEEN_TRIALS);
            self.current = faster;
            return;
        }
        self.periods_left = self.periods_left.saturating_sub(1);
        if self.periods_left == 0 {
            self.current = faster.other();
        }
    }
}

thread_local! {
    static TRIAL: RefCell<Trial> = const { RefCell::new(Trial::new()) };
}

/// The way for the next region of the calling thread.
pub fn wake_up() -> WakeUp {
    TRIAL.with_borrow(|trial| trial.current)
}

/// Adds a piece of work of the calling thread, which took from `started_ns` to `now_ns`.
pub fn add(usual: &mut UsualTime, started_ns: u64, now_ns: u64) {
    let actual = now_ns.saturating_sub(started_ns) as f64;
    let usual = usual.add(actual);
    TRIAL.with_borrow_mut(|trial| trial.add(now_ns, actual, usual));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does `iterations` iterations of ten kernels, whose milliseconds in each way are given, and returns the
    /// iterations in each way.
    fn train(trial: &mut Trial, kernels: &mut [UsualTime], iterations: u32, ms: [f64; 2]) -> [u32; 2] {
        let mut counts = [0; 2];
        let mut now = 1e9;
        for _ in 0..iterations {
            counts[trial.current as usize] += 1;
            for (size, usual) in (1..).zip(&mut *kernels) {
                let actual = f64::from(size) * 1e6 * ms[trial.current as usize];
                now += actual;
                let usual = usual.add(actual);
                trial.add(now as u64, actual, usual);
            }
        }
        counts
    }

    #[test]
    fn the_faster_way_is_used_nearly_always() {
        for (ms, faster) in [([1.0, 2.0], 0), ([2.0, 1.0], 1), ([1.0, 1.2], 0), ([30.0, 20.0], 1)] {
            let (mut trial, mut kernels) = (Trial::new(), [UsualTime::default(); 10]);
            let counts = train(&mut trial, &mut kernels, 2000, ms);
            let share = f64::from(counts[faster]) / 2000.0;
            assert!((0.85..1.0).contains(&share), "{ms:?}: {share}");
        }
    }

    #[test]
    fn the_team_of_short_kernels_is_always_woken() {
        let (mut trial, mut kernels) = (Trial::new(), [UsualTime::default(); 10]);
        assert_eq!(train(&mut trial, &mut kernels, 2000, [0.2, 0.1]), [2000, 0]);
    }

    #[test]
    fn a_way_that_becomes_slower_is_left() {
        let (mut trial, mut kernels) = (Trial::new(), [UsualTime::default(); 10]);
        train(&mut trial, &mut kernels, 500, [1.0, 1.5]);
        let counts = train(&mut trial, &mut kernels, 2000, [3.0, 1.5]);
        assert!(counts[1] > 1500, "{counts:?}");
    }

    #[test]
    fn kernels_of_different_lengths_are_compared_with_their_usual_times() {
        // The second way gets a kernel that takes a hundred times as long, and is faster.
        let (mut trial, usual, actual) = (Trial::new(), [3e6, 3e8], [4.5e6, 2.4e8]);
        let mut now = 1e9;
        for _ in 0..5000 {
            let way = trial.current as usize;
            now += actual[way];
            trial.add(now as u64, actual[way], usual[way]);
        }
        let slowness = trial.slowness.map(Option::unwrap);
        assert!((slowness[0] - 1.5).abs() < 1e-9 && (slowness[1] - 0.8).abs() < 1e-9, "{slowness:?}");
        assert_eq!(trial.current, WakeUp::IfNeeded);
    }
}
