//! A plan with the measured times of its steps, and its comparison with another.

use std::time::Duration;
use stratus_engine::{EngineError, PreparedProgram};

/// Returns whether a time beats an incumbent's by more than the variation between runs. Otherwise the
/// incumbent stays, so that plans are stable.
pub(super) fn is_faster(time: Duration, incumbent: Duration) -> bool {
    time.as_secs_f64() < 0.97 * incumbent.as_secs_f64()
}

/// The error for a failed preparation, with oneDNN's reason.
pub(super) fn prepare_error(reason: String) -> EngineError {
    EngineError::Unsupported {
        backend: "onednn".to_owned(),
        kernel: "attributes".to_owned(),
        layer: "any".to_owned(),
        reason,
    }
}

/// A plan and the times of its steps.
pub(super) struct TimedPlan {
    pub(super) prepared: PreparedProgram,
    /// The accumulated time after each step of the source; shorter if the plan was abandoned.
    pub(super) times: Vec<Duration>,
    /// True if the plan was abandoned because it could no longer beat the incumbent.
    pub(super) abandoned: bool,
}

impl TimedPlan {
    pub(super) fn is_faster(&self, incumbent: &Self) -> bool {
        !self.abandoned && is_faster(total(&self.times), total(&incumbent.times))
    }
}

fn total(times: &[Duration]) -> Duration {
    times.last().copied().unwrap_or_default()
}

/// Returns whether a plan that took `time` up to `position` loses even if the rest takes a quarter less than
/// the incumbent's.
pub(super) fn is_hopeless(time: Duration, position: usize, incumbent: &[Duration]) -> bool {
    let rest = total(incumbent) - incumbent[position];
    time + rest * 3 / 4 > total(incumbent)
}

/// The options for building a plan.
#[derive(Clone, Copy)]
pub(super) struct BuildOptions {
    /// True if a step may run on a reference kernel, or without AMX, if oneDNN has nothing better.
    pub(super) fallbacks: bool,
    /// True if native kernels on maps are measured too, to compare layouts of maps.
    pub(super) measure_maps: bool,
}
