//! Measures, while other programs load the CPUs, whether a small team is faster if its other threads are
//! woken for every region, or if they are left asleep where one thread can do all the work.
//!
//! Neither is always faster. Threads that are woken often keep their place on their CPUs: with kernels of
//! microseconds and one competing program per CPU, two threads are faster than one. If kernels take as long
//! as a time slice, or several programs compete for each CPU, a woken thread takes its part and then loses
//! its CPU for milliseconds, for which the others wait. So both policies are tried in turn, and the faster
//! one is kept. The results of kernels do not depend on it.
//!
//! Kernels much shorter than a time slice are not tried without their team: as soon as the other threads are
//! asleep, the system may move a competing program to the CPU of the one that is left, and keep it there.
//!
//! A policy is measured over a period: consecutive tasks, each usually one kernel. Different periods have
//! different kernels, so the time of each task is compared with the usual time of the same task, its moving
//! average. Each thread that opens regions has a trial of its own, as it has its own team.

use std::cell::RefCell;

/// The policy for waking the other threads of a region while other programs load the CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakePolicy {
    /// They are woken.
    Always,
    /// They are woken only if the parts of the region may wait for each other.
    IfNeeded,
}

impl WakePolicy {
    fn other(self) -> Self {
        match self {
            Self::Always => Self::IfNeeded,
            Self::IfNeeded => Self::Always,
        }
    }
}

/// The minimum time of the tasks of a period: several time slices of the system's scheduler.
const MIN_PERIOD_NS: f64 = 2e8;
/// The minimum number of tasks in a period.
const MIN_PERIOD_TASKS: u32 = 8;
/// The mean time of the tasks of a period below which threads are always woken: half a time slice of Linux'
/// scheduler.
const MAX_SHORT_TASK_NS: f64 = 2e6;
/// The number of periods of the faster policy between two of the slower one, if both are about equally fast.
const MIN_PERIODS_BETWEEN_TRIALS: u32 = 16;
/// The same, if the slower one is much slower.
const MAX_PERIODS_BETWEEN_TRIALS: u32 = 64;
/// The weight of a new period in the moving average of its policy.
const PERIOD_WEIGHT: f64 = 0.5;
/// The weight of a new measurement in the moving average of a task.
const TASK_WEIGHT: f64 = 0.125;

/// The usual time of a repeated task, such as a kernel of a network: a moving average over both policies.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsualTime {
    /// Nanoseconds while other programs load the CPUs; 0 before the first measurement.
    ns: f64,
}

impl UsualTime {
    /// Adds a measurement, and returns the usual time before it: the measurement itself, if it is the first.
    fn add(&mut self, ns: f64) -> f64 {
        let before = if self.ns == 0.0 { ns } else { self.ns };
        self.ns = before + TASK_WEIGHT * (ns - before);
        before
    }
}

/// The comparison of both policies.
struct Trial {
    current: WakePolicy,
    /// The time of tasks with each policy, divided by their usual time: a moving average over periods; `None`
    /// before the first period.
    relative_times: [Option<f64>; 2],
    /// The number of periods until the slower policy is tried again.
    periods_left: u32,
    /// The current period: the number of its tasks, and the sums of their actual and of their usual times in
    /// nanoseconds.
    tasks: u32,
    actual_ns: f64,
    usual_ns: f64,
}

impl Trial {
    const fn new() -> Self {
        Self {
            current: WakePolicy::Always,
            relative_times: [None; 2],
            periods_left: 0,
            tasks: 0,
            actual_ns: 0.0,
            usual_ns: 0.0,
        }
    }

    /// Adds a task to the current period.
    fn add(&mut self, actual_ns: f64, usual_ns: f64) {
        self.tasks += 1;
        self.actual_ns += actual_ns;
        self.usual_ns += usual_ns;
        if self.actual_ns >= MIN_PERIOD_NS && self.tasks >= MIN_PERIOD_TASKS {
            self.end_period();
        }
    }

    /// Ends the current period, and chooses the policy of the next one.
    fn end_period(&mut self) {
        let measured = self.actual_ns / self.usual_ns.max(1.0);
        let is_short = self.actual_ns / f64::from(self.tasks) < MAX_SHORT_TASK_NS;
        let relative = &mut self.relative_times[self.current as usize];
        *relative = Some(relative.map_or(measured, |before| before + PERIOD_WEIGHT * (measured - before)));
        (self.tasks, self.actual_ns, self.usual_ns) = (0, 0.0, 0.0);
        if self.current == WakePolicy::Always && is_short {
            return;
        }
        let [Some(always), Some(if_needed)] = self.relative_times else {
            self.current = self.current.other();
            return;
        };
        let faster = if always <= if_needed { WakePolicy::Always } else { WakePolicy::IfNeeded };
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

/// The policy for the next region of the calling thread.
pub fn wake_policy() -> WakePolicy {
    TRIAL.with_borrow(|trial| trial.current)
}

/// Adds a task of the calling thread, which took `actual_ns` nanoseconds.
pub fn add(usual: &mut UsualTime, actual_ns: u64) {
    let actual_ns = actual_ns as f64;
    let usual_ns = usual.add(actual_ns);
    TRIAL.with_borrow_mut(|trial| trial.add(actual_ns, usual_ns));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `iterations` iterations of ten kernels; kernel `n` takes `n * ms` milliseconds with each policy.
    /// Returns the number of iterations with each policy.
    fn train(trial: &mut Trial, kernels: &mut [UsualTime], iterations: u32, ms: [f64; 2]) -> [u32; 2] {
        let mut counts = [0; 2];
        for _ in 0..iterations {
            counts[trial.current as usize] += 1;
            for (size, usual) in (1..).zip(&mut *kernels) {
                let actual = f64::from(size) * 1e6 * ms[trial.current as usize];
                trial.add(actual, usual.add(actual));
            }
        }
        counts
    }

    #[test]
    fn the_faster_policy_is_used_nearly_always() {
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
    fn a_policy_that_becomes_slower_is_left() {
        let (mut trial, mut kernels) = (Trial::new(), [UsualTime::default(); 10]);
        train(&mut trial, &mut kernels, 500, [1.0, 1.5]);
        let counts = train(&mut trial, &mut kernels, 2000, [3.0, 1.5]);
        assert!(counts[1] > 1500, "{counts:?}");
    }

    #[test]
    fn kernels_of_different_lengths_are_compared_with_their_usual_times() {
        // The second policy gets a kernel that takes a hundred times as long, and is faster.
        let (mut trial, usual, actual) = (Trial::new(), [3e6, 3e8], [4.5e6, 2.4e8]);
        for _ in 0..5000 {
            let policy = trial.current as usize;
            trial.add(actual[policy], usual[policy]);
        }
        let relative = trial.relative_times.map(Option::unwrap);
        assert!((relative[0] - 1.5).abs() < 1e-9 && (relative[1] - 0.8).abs() < 1e-9, "{relative:?}");
        assert_eq!(trial.current, WakePolicy::IfNeeded);
    }
}
