//! How many loader threads a training on a CPU needs, found in its first iterations.
//!
//! Loader threads take time from the threads that compute, so there are no more than are needed: one at
//! first, and one more as long as training waits for data and gains from another. Batches are the same,
//! however many there are.

use std::time::Duration;

/// The share of the time for which training may wait.
const WAIT: f64 = 0.03;
/// What another thread must gain to be kept.
const GAIN: f64 = 1.02;
/// Iterations that are looked at together, at least,
const ITERATIONS: u32 = 8;
/// and seconds.
const SECONDS: f64 = 0.5;
/// Iterations that are not looked at after a change: batches that were read before it.
const SETTLING: u32 = 4;

/// An iteration, as far as it concerns the loader.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observed {
    pub images: u64,
    /// All of its time,
    pub wall: Duration,
    /// and what it waited for data.
    pub wait: Duration,
}

/// The search for the number of loader threads.
#[derive(Clone, Debug)]
pub(super) struct WorkerSearch {
    active: usize,
    most: usize,
    is_over: bool,
    /// The speed before the last thread was added, in images per second.
    before: Option<f64>,
    settling: u32,
    iterations: u32,
    images: u64,
    wall: Duration,
    wait: Duration,
}

impl WorkerSearch {
    /// A number that is set, or was found before.
    pub fn fixed(workers: usize) -> Self {
        Self { is_over: true, ..Self::up_to(workers).with(workers) }
    }

    /// Begins with one thread.
    pub fn up_to(most: usize) -> Self {
        Self {
            active: 1,
            most: most.max(1),
            is_over: most <= 1,
            before: None,
            settling: SETTLING,
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

    /// Whether it will not change any more.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Adds an iteration; returns the number of threads where it changes.
    pub fn observe(&mut self, Observed { images, wall, wait }: Observed) -> Option<usize> {
        if self.is_over {
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
        if self.iterations < ITERATIONS || seconds < SECONDS {
            return None;
        }
        let (speed, waits) = (self.images as f64 / seconds, self.wait.as_secs_f64() / seconds);
        let was = self.active;
        match self.before {
            Some(before) if speed < before * GAIN => {
                self.active -= 1;
                self.is_over = true;
            }
            _ if waits < WAIT || self.active == self.most => self.is_over = true,
            _ => {
                self.before = Some(speed);
                self.active += 1;
            }
        }
        (self.iterations, self.images, self.settling) = (0, 0, SETTLING);
        (self.wall, self.wait) = (Duration::ZERO, Duration::ZERO);
        (self.active != was).then_some(self.active)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Iterations of a loader of which each thread delivers `each` images a second, beside a network that
    /// takes `takes`; every thread but the first costs the network a share of its speed.
    fn search(most: usize, each: f64, takes: f64, cost: f64) -> (usize, Vec<usize>) {
        let mut search = WorkerSearch::up_to(most);
        let mut changes = Vec::new();
        for _ in 0..10_000 {
            let threads = search.active() as f64;
            let train = 100.0 / (takes * (1.0 - cost * (threads - 1.0)));
            let wall = train.max(100.0 / (each * threads));
            changes.extend(search.observe(Observed {
                images: 100,
                wall: Duration::from_secs_f64(wall),
                wait: Duration::from_secs_f64(wall - train),
            }));
        }
        assert!(search.is_over());
        (search.active(), changes)
    }

    #[test]
    fn threads_are_added_until_training_waits_no_more() {
        assert_eq!(search(16, 1000.0, 900.0, 0.0), (1, vec![]));
        assert_eq!(search(16, 1000.0, 2500.0, 0.0), (3, vec![2, 3]));
        assert_eq!(search(16, 1000.0, 2.5e6, 0.0), (16, (2..=16).collect()));
        assert_eq!(search(1, 1000.0, 2500.0, 0.0), (1, vec![]));
    }

    #[test]
    fn a_thread_that_gains_nothing_is_taken_back() {
        // The second thread makes the loader faster, and the network slower by as much.
        assert_eq!(search(16, 1000.0, 1500.0, 0.4), (1, vec![2, 1]));
    }

    #[test]
    fn what_is_set_stays() {
        let mut search = WorkerSearch::fixed(5);
        let waiting = Observed { images: 1, wall: Duration::from_secs(9), wait: Duration::from_secs(9) };
        assert!((0..1000).all(|_| search.observe(waiting).is_none()));
        assert_eq!((search.active(), search.is_over()), (5, true));
    }
}
