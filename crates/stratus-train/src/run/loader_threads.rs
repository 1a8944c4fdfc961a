//! Finds the number of loader threads that a training on a CPU needs, in its first iterations.
//!
//! Loader threads compete with the threads that compute, so the search starts with one and adds another as
//! long as training waits for data and becomes faster. The number of threads does not affect the batches.

use std::time::Duration;

/// The fraction of the time that training may wait for data.
const MAX_WAIT_SHARE: f64 = 0.03;
/// The speed-up that an added thread must bring to be kept.
const MIN_SPEED_UP: f64 = 1.02;
/// The minimum number of iterations in a measuring window.
const MIN_WINDOW_ITERATIONS: u32 = 8;
/// The minimum number of seconds in a measuring window.
const MIN_WINDOW_S: f64 = 0.5;
/// Iterations that are ignored after a change, since their batches were read before it.
const SETTLING_ITERATIONS: u32 = 4;

/// The times of an iteration that concern the loader.
#[derive(Clone, Copy, Debug)]
pub(super) struct IterationTiming {
    pub images: u64,
    /// Wall time of the iteration.
    pub wall: Duration,
    /// Time spent waiting for data.
    pub wait: Duration,
}

/// The search for the number of loader threads.
#[derive(Clone, Debug)]
pub(super) struct LoaderThreadSearch {
    active: usize,
    max: usize,
    is_settled: bool,
    /// The speed before the last thread was added, in images per second.
    previous_speed: Option<f64>,
    settling: u32,
    iterations: u32,
    images: u64,
    wall: Duration,
    wait: Duration,
}

impl LoaderThreadSearch {
    /// A fixed number of threads: set by the user, or found before.
    pub fn fixed(threads: usize) -> Self {
        Self { is_settled: true, ..Self::up_to(threads).with(threads) }
    }

    /// A search that starts with one thread.
    pub fn up_to(max: usize) -> Self {
        Self {
            active: 1,
            max: max.max(1),
            is_settled: max <= 1,
            previous_speed: None,
            settling: SETTLING_ITERATIONS,
            iterations: 0,
            images: 0,
            wall: Duration::ZERO,
            wait: Duration::ZERO,
        }
    }

    fn with(self, active: usize) -> Self {
        Self { active, ..self }
    }

    /// The number of threads.
    pub fn active(&self) -> usize {
        self.active
    }

    /// Returns whether the number of threads is final.
    pub fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Adds an iteration; returns the number of threads if it changes.
    pub fn observe(&mut self, IterationTiming { images, wall, wait }: IterationTiming) -> Option<usize> {
        if self.is_settled {
            return None;
        }
        if self.settling > 0 {
            self.settling -= 1;
            return None;
        }
        self.iterations += 1;
        self.images += images;
        self.wall += wall;
        self.wait += wait;
        let seconds = self.wall.as_secs_f64();
        if self.iterations < MIN_WINDOW_ITERATIONS || seconds < MIN_WINDOW_S {
            return None;
        }
        let (speed, wait_share) = (self.images as f64 / seconds, self.wait.as_secs_f64() / seconds);
        let previous = self.active;
        match self.previous_speed {
            Some(previous_speed) if speed < previous_speed * MIN_SPEED_UP => {
                self.active -= 1;
                self.is_settled = true;
            }
            _ if wait_share < MAX_WAIT_SHARE || self.active == self.max => self.is_settled = true,
            _ => {
                self.previous_speed = Some(speed);
                self.active += 1;
            }
        }
        (self.iterations, self.images, self.settling) = (0, 0, SETTLING_ITERATIONS);
        (self.wall, self.wait) = (Duration::ZERO, Duration::ZERO);
        (self.active != previous).then_some(self.active)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a loader whose threads each deliver `per_thread` images a second to a network that takes
    /// `takes`; every thread after the first slows the network down by the fraction `cost`.
    fn search(max: usize, per_thread: f64, takes: f64, cost: f64) -> (usize, Vec<usize>) {
        let mut search = LoaderThreadSearch::up_to(max);
        let mut changes = Vec::new();
        for _ in 0..10_000 {
            let threads = search.active() as f64;
            let train = 100.0 / (takes * (1.0 - cost * (threads - 1.0)));
            let wall = train.max(100.0 / (per_thread * threads));
            changes.extend(search.observe(IterationTiming {
                images: 100,
                wall: Duration::from_secs_f64(wall),
                wait: Duration::from_secs_f64(wall - train),
            }));
        }
        assert!(search.is_settled());
        (search.active(), changes)
    }

    #[test]
    fn adds_threads_until_training_no_longer_waits() {
        assert_eq!(search(16, 1000.0, 900.0, 0.0), (1, vec![]));
        assert_eq!(search(16, 1000.0, 2500.0, 0.0), (3, vec![2, 3]));
        assert_eq!(search(16, 1000.0, 2.5e6, 0.0), (16, (2..=16).collect()));
        assert_eq!(search(1, 1000.0, 2500.0, 0.0), (1, vec![]));
    }

    #[test]
    fn removes_a_thread_that_brings_no_speed_up() {
        // The second thread makes the loader faster, and the network slower by the same amount.
        assert_eq!(search(16, 1000.0, 1500.0, 0.4), (1, vec![2, 1]));
    }

    #[test]
    fn fixed_thread_count_never_changes() {
        let mut search = LoaderThreadSearch::fixed(5);
        let waiting =
            IterationTiming { images: 1, wall: Duration::from_secs(9), wait: Duration::from_secs(9) };
        assert!((0..1000).all(|_| search.observe(waiting).is_none()));
        assert_eq!((search.active(), search.is_settled()), (5, true));
    }
}
