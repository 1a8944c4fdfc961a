//! Estimates the remaining time of a run, and compares it with the run's time limit. The forecast is used
//! until enough iterations are measured.

use crate::run_limits::{RunLimits, TimeLimit};
use stratus_base::text::{counted, duration};
use stratus_forecast::bill::DISK_BYTES_PER_S;
use stratus_forecast::profile::Interval;

/// Iterations after which measured times replace the forecast.
const MIN_MEASURED_ITERATIONS: u64 = 20;
/// The factor by which each iteration lowers the bound on the time of the next one, unless it takes longer
/// itself: one slow iteration raises the bound for a while only.
const BOUND_DECAY: f64 = 0.95;

/// The forecast made before the first iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StepForecast {
    /// Time of a training step.
    pub step: Interval,
    /// Seconds of a validation.
    pub validation_s: f64,
}

/// The iterations, validations and epochs that remain to be done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RemainingWork {
    pub iterations: u64,
    pub validations: u64,
    /// Ends of epochs, each with a checkpoint.
    pub epochs: u64,
}

/// The times measured by this process, and the estimates that follow from them.
#[derive(Debug)]
pub(super) struct TimeEstimator {
    forecast: Option<StepForecast>,
    limits: RunLimits,
    /// Measured iterations: all but the first, which starts with cold caches.
    iterations: u64,
    /// Total seconds of the measured iterations.
    iteration_s: f64,
    /// Measured iterations on whole batches.
    steps: u64,
    /// Total seconds of the steps of these iterations.
    step_s: f64,
    first_iteration_seen: bool,
    /// Upper bound on the time of the next iteration.
    iteration_bound_s: f64,
    /// Seconds of the last validation.
    validation_s: Option<f64>,
    /// Seconds of the last checkpoint.
    checkpoint_s: Option<f64>,
    checkpoint_bytes: u64,
    /// True if the run was within its limit when that was last reported.
    within_limit: Option<bool>,
}

impl TimeEstimator {
    pub fn new(forecast: Option<StepForecast>, limits: RunLimits, checkpoint_bytes: u64) -> Self {
        Self {
            forecast,
            limits,
            iterations: 0,
            iteration_s: 0.0,
            steps: 0,
            step_s: 0.0,
            first_iteration_seen: false,
            iteration_bound_s: forecast.map_or(0.0, |forecast| forecast.step.high),
            validation_s: None,
            checkpoint_s: None,
            checkpoint_bytes,
            within_limit: None,
        }
    }

    /// Records an iteration of `wall_s` seconds, including `step_s` seconds of steps.
    pub fn record_iteration(&mut self, wall_s: f64, step_s: f64, is_whole: bool) {
        self.iteration_bound_s = wall_s.max(BOUND_DECAY * self.iteration_bound_s);
        if !std::mem::replace(&mut self.first_iteration_seen, true) {
            return;
        }
        self.iterations += 1;
        self.iteration_s += wall_s;
        if is_whole {
            self.steps += 1;
            self.step_s += step_s;
        }
    }

    pub fn record_validation(&mut self, seconds: f64) {
        self.validation_s = Some(seconds);
    }

    pub fn record_checkpoint(&mut self, seconds: f64) {
        self.checkpoint_s = Some(seconds);
    }

    /// The mean of the measured training steps.
    pub fn measured_step_s(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.step_s / self.steps as f64)
    }

    pub fn forecast(&self) -> Option<&StepForecast> {
        self.forecast.as_ref()
    }

    fn validation_estimate_s(&self) -> f64 {
        self.validation_s.or(self.forecast.map(|forecast| forecast.validation_s)).unwrap_or(0.0)
    }

    /// Seconds of a checkpoint as forecast, by its bytes and the disk's rate that `stratus forecast` assumes.
    pub fn checkpoint_forecast_s(&self) -> f64 {
        self.checkpoint_bytes as f64 / DISK_BYTES_PER_S
    }

    fn checkpoint_estimate_s(&self) -> f64 {
        self.checkpoint_s.unwrap_or_else(|| self.checkpoint_forecast_s())
    }

    /// Estimated seconds of the remaining work: by measured iterations once there are enough, else by the
    /// forecast. `None` without either.
    pub fn remaining_s(&self, remaining: RemainingWork) -> Option<f64> {
        let measured = (self.iterations > 0).then(|| self.iteration_s / self.iterations as f64);
        let forecast = self.forecast.map(|forecast| forecast.step.seconds);
        let iteration = if self.iterations < MIN_MEASURED_ITERATIONS {
            forecast.or(measured)
        } else {
            measured.or(forecast)
        };
        Some(
            iteration? * remaining.iterations as f64
                + self.validation_estimate_s() * remaining.validations as f64
                + self.checkpoint_estimate_s() * remaining.epochs as f64,
        )
    }

    /// Returns whether to stop now, since the next iteration could end after the limit. It may end an epoch,
    /// and then be followed by a validation.
    pub fn must_stop(&self, now_s: f64, ends_epoch: bool, validates: bool) -> bool {
        let validation = if ends_epoch && validates { self.validation_estimate_s() } else { 0.0 };
        self.limits.would_exceed(now_s, self.iteration_bound_s + validation + self.checkpoint_estimate_s())
    }

    /// The limit that the run reaches first.
    pub fn limit(&self) -> Option<&TimeLimit> {
        self.limits.limit()
    }

    /// A message about whether the run will finish within its limit; `None` without a limit or if the answer
    /// is unchanged.
    pub fn limit_message(&mut self, now_s: f64, remaining: RemainingWork, epochs: u64) -> Option<String> {
        let TimeLimit { label, at_s } = self.limits.limit()?.clone();
        let is_first = self.within_limit.is_none();
        let Some(remaining_s) = self.remaining_s(remaining) else {
            self.within_limit = Some(self.within_limit.unwrap_or(true));
            let text = format!("{label} ends training in {}", duration(at_s - now_s));
            return is_first.then(|| format!("{text}; there is no forecast of the progress on this device"));
        };
        let within_limit = now_s + remaining_s <= at_s;
        if self.within_limit.replace(within_limit) == Some(within_limit) {
            return None;
        }
        let is_forecast = self.iterations < MIN_MEASURED_ITERATIONS && self.forecast.is_some();
        let source = if is_forecast { "forecast" } else { "measured" };
        let needs = format!("{} remaining ({source})", duration(remaining_s));
        Some(if within_limit {
            let spare = duration(at_s - now_s - remaining_s);
            format!("{needs}: within {label}, {spare} to spare")
        } else {
            let fraction = ((at_s - now_s) / remaining_s).clamp(0.0, 1.0);
            let done = epochs as f64 - remaining.epochs as f64 * (1.0 - fraction);
            format!(
                "{needs}: exceeds {label}; training will stop with a checkpoint after about {done:.1} of \
                 {}",
                counted(epochs, "epoch")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use stratus_experiment::Experiment;

    const REMAINING: RemainingWork = RemainingWork { iterations: 100, validations: 2, epochs: 2 };

    fn estimator(deadline: &str, forecast: Option<StepForecast>) -> TimeEstimator {
        let keys = [("model.name", "digits"), ("train.deadline", deadline)];
        let experiment = Experiment::default().with_overrides(&keys).unwrap();
        let now = Instant::now();
        let limits = RunLimits::new(&experiment, 0.0, [now, now]).unwrap();
        // A checkpoint that takes a second to write.
        TimeEstimator::new(forecast, limits, DISK_BYTES_PER_S as u64)
    }

    fn forecast() -> Option<StepForecast> {
        Some(StepForecast { step: Interval { seconds: 1.0, low: 0.9, high: 1.2 }, validation_s: 5.0 })
    }

    #[test]
    fn measured_times_replace_the_forecast() {
        let mut estimator = estimator("1h", forecast());
        assert_eq!(estimator.remaining_s(REMAINING), Some(112.0));
        // The first iteration does not count.
        estimator.record_iteration(50.0, 50.0, true);
        assert_eq!(estimator.measured_step_s(), None);
        for _ in 0..19 {
            estimator.record_iteration(2.0, 1.5, true);
        }
        assert_eq!(estimator.remaining_s(REMAINING), Some(112.0));
        estimator.record_iteration(2.0, 0.5, false);
        estimator.record_validation(10.0);
        estimator.record_checkpoint(3.0);
        assert_eq!(estimator.remaining_s(REMAINING), Some(200.0 + 20.0 + 6.0));
        assert_eq!(estimator.measured_step_s(), Some(1.5));
    }

    #[test]
    fn uses_measured_times_without_a_forecast() {
        let mut estimator = estimator("1h", None);
        assert_eq!(estimator.remaining_s(REMAINING), None);
        let text = estimator.limit_message(0.0, REMAINING, 2).unwrap();
        assert!(text.starts_with("deadline 1h ends training in 1 h 00 min; there is no forecast"), "{text}");
        assert_eq!(estimator.limit_message(0.0, REMAINING, 2), None);
        estimator.record_iteration(9.0, 9.0, true);
        estimator.record_iteration(2.0, 2.0, true);
        assert_eq!(estimator.remaining_s(REMAINING), Some(202.0));
    }

    #[test]
    fn training_stops_while_there_is_time_for_a_checkpoint() {
        let mut estimator = estimator("100s", forecast());
        // An iteration of up to 1.2 s, a checkpoint of 1 s, and 0.3 s.
        assert!(!estimator.must_stop(97.4, false, true) && estimator.must_stop(97.6, false, true));
        // At the end of an epoch, a validation too.
        assert!(!estimator.must_stop(92.4, true, true) && estimator.must_stop(92.6, true, true));
        assert!(!estimator.must_stop(97.4, true, false));
        // A long iteration raises the bound for the next ones.
        estimator.record_iteration(10.0, 10.0, true);
        estimator.record_iteration(1.0, 1.0, true);
        assert!(estimator.must_stop(90.0, false, true));
    }

    #[test]
    fn limit_message_is_repeated_only_when_it_changes() {
        let mut estimator = estimator("120s", forecast());
        let text = estimator.limit_message(0.0, REMAINING, 2).unwrap();
        assert_eq!(text, "1 min 52 s remaining (forecast): within deadline 120s, 8.0 s to spare");
        assert_eq!(estimator.limit_message(5.0, REMAINING, 2), None);
        let text = estimator.limit_message(64.0, REMAINING, 2).unwrap();
        assert_eq!(
            text,
            "1 min 52 s remaining (forecast): exceeds deadline 120s; training will stop with a checkpoint \
             after about 1.0 of 2 epochs"
        );
        assert_eq!(estimator.limit_message(65.0, REMAINING, 2), None);
    }
}
