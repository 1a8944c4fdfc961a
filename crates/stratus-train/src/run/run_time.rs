//! The time that a run has taken, in all processes that trained it.

use std::time::Instant;

/// The time of a run up to now.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunTime {
    /// When this process started or resumed the run.
    pub started: Instant,
    /// Seconds of the run in earlier processes.
    pub previous_s: f64,
}

impl RunTime {
    /// Seconds of this process.
    pub fn process_s(self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Seconds of all processes.
    pub fn elapsed_s(self) -> f64 {
        self.previous_s + self.process_s()
    }
}
