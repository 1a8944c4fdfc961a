//! How long a run will take: from a forecast until its own times are better, and whether it may take so long.

use crate::allowance::{Allowance, Limit};
use stratus_forecast::profile::Interval;
use stratus_forecast::text::duration;

/// Iterations after which a run's own times are better than the forecast.
const OWN: u64 = 20;
/// By how much an iteration's reserve shrinks from one to the next: a long one is not forgotten at once.
const FORGET: f64 = 0.95;
/// Bytes a second at which a checkpoint is written, before one was.
const WRITES: f64 = 100e6;

/// What was forecast before the first iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Foreseen {
    /// Of a training step.
    pub step: Interval,
    /// Seconds of a validation.
    pub validation_s: f64,
}

/// What is left to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Left {
    pub iterations: u64,
    pub validations: u64,
    /// Ends of epochs, each with a checkpoint.
    pub epochs: u64,
}

/// The times of this process so far, and what follows from them.
#[derive(Debug)]
pub(super) struct Outlook {
    foreseen: Option<Foreseen>,
    allowance: Allowance,
    /// Iterations, and their seconds: all but the first, which finds nothing in a cache.
    iterations: u64,
    iteration_s: f64,
    /// Whole batches among them, and the seconds of their steps.
    steps: u64,
    step_s: f64,
    has_begun: bool,
    /// As long as the next iteration may take.
    longest_s: f64,
    /// The last validation,
    validation_s: Option<f64>,
    /// and checkpoint.
    checkpoint_s: Option<f64>,
    checkpoint_bytes: u64,
    /// What was said last.
    holds: Option<bool>,
}

impl Outlook {
    pub fn new(foreseen: Option<Foreseen>, allowance: Allowance, checkpoint_bytes: u64) -> Self {
        Self {
            foreseen,
            allowance,
            iterations: 0,
            iteration_s: 0.0,
            steps: 0,
            step_s: 0.0,
            has_begun: false,
            longest_s: foreseen.map_or(0.0, |foreseen| foreseen.step.high),
            validation_s: None,
            checkpoint_s: None,
            checkpoint_bytes,
            holds: None,
        }
    }

    /// An iteration took `wall_s`, its steps `step_s`.
    pub fn iterated(&mut self, wall_s: f64, step_s: f64, is_whole: bool) {
        self.longest_s = wall_s.max(FORGET * self.longest_s);
        if !std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        self.iterations += 1;
        self.iteration_s += wall_s;
        if is_whole {
            self.steps += 1;
            self.step_s += step_s;
        }
    }

    pub fn validated(&mut self, seconds: f64) {
        self.validation_s = Some(seconds);
    }

    pub fn saved(&mut self, seconds: f64) {
        self.checkpoint_s = Some(seconds);
    }

    /// The mean of its training steps.
    pub fn measured_step_s(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.step_s / self.steps as f64)
    }

    pub fn foreseen(&self) -> Option<&Foreseen> {
        self.foreseen.as_ref()
    }

    fn a_validation_s(&self) -> f64 {
        self.validation_s.or(self.foreseen.map(|foreseen| foreseen.validation_s)).unwrap_or(0.0)
    }

    fn a_checkpoint_s(&self) -> f64 {
        self.checkpoint_s.unwrap_or(self.checkpoint_bytes as f64 / WRITES)
    }

    /// Seconds of all that is left: by its own iterations where there are enough, else by the forecast.
    pub fn left_s(&self, left: Left) -> Option<f64> {
        let own = (self.iterations > 0).then(|| self.iteration_s / self.iterations as f64);
        let foreseen = self.foreseen.map(|foreseen| foreseen.step.seconds);
        let iteration = if self.iterations < OWN { foreseen.or(own) } else { own.or(foreseen) };
        Some(
            iteration? * left.iterations as f64
                + self.a_validation_s() * left.validations as f64
                + self.a_checkpoint_s() * left.epochs as f64,
        )
    }

    /// Whether to stop now, as the next iteration, which may end an epoch, would end too late.
    pub fn is_over(&self, now_s: f64, ends_epoch: bool, validates: bool) -> bool {
        let validation = if ends_epoch && validates { self.a_validation_s() } else { 0.0 };
        self.allowance.is_exceeded_by(now_s, self.longest_s + validation + self.a_checkpoint_s())
    }

    /// Whether even the start took too long.
    pub fn limit(&self) -> Option<&Limit> {
        self.allowance.limit()
    }

    /// Says before the first iteration whether the limit will hold, and later where that has changed; nothing
    /// without a limit.
    pub fn verdict(&mut self, now_s: f64, left: Left, epochs: u64) -> Option<String> {
        let limit = self.allowance.limit()?.clone();
        let first = self.holds.is_none();
        let Some(left_s) = self.left_s(left) else {
            self.holds = Some(self.holds.unwrap_or(true));
            let text = format!("{} ends training in {}", limit.what, duration(limit.at_s - now_s));
            return first.then(|| format!("{text}; how much is done by then is not known on this device"));
        };
        let holds = now_s + left_s <= limit.at_s;
        if self.holds.replace(holds) == Some(holds) {
            return None;
        }
        let source =
            if self.iterations < OWN && self.foreseen.is_some() { "forecast" } else { "by its own times" };
        let needs = format!("{} left to train, {source}", duration(left_s));
        Some(if holds {
            let spare = duration(limit.at_s - now_s - left_s);
            format!("{needs}: {} holds, with {spare} to spare", limit.what)
        } else {
            let share = ((limit.at_s - now_s) / left_s).clamp(0.0, 1.0);
            let done = epochs as f64 - left.epochs as f64 * (1.0 - share);
            format!(
                "{needs}: {} does not hold; training will stop with a checkpoint after about {done:.1} of \
                 {epochs} epochs",
                limit.what
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Experiment;
    use std::time::Instant;

    const LEFT: Left = Left { iterations: 100, validations: 2, epochs: 2 };

    fn outlook(deadline: &str, foreseen: Option<Foreseen>) -> Outlook {
        let keys = [("model.name", "digits"), ("train.deadline", deadline)];
        let experiment = Experiment::default().with_overrides(&keys).unwrap();
        let now = Instant::now();
        let allowance = Allowance::of(&experiment, 0.0, [now, now]).unwrap();
        // A second to write.
        Outlook::new(foreseen, allowance, 100_000_000)
    }

    fn foreseen() -> Option<Foreseen> {
        Some(Foreseen { step: Interval { seconds: 1.0, low: 0.9, high: 1.2 }, validation_s: 5.0 })
    }

    #[test]
    fn its_own_times_replace_the_forecast() {
        let mut outlook = outlook("1h", foreseen());
        assert_eq!(outlook.left_s(LEFT), Some(112.0));
        // The first iteration does not count.
        outlook.iterated(50.0, 50.0, true);
        assert_eq!(outlook.measured_step_s(), None);
        for _ in 0..19 {
            outlook.iterated(2.0, 1.5, true);
        }
        assert_eq!(outlook.left_s(LEFT), Some(112.0));
        outlook.iterated(2.0, 0.5, false);
        outlook.validated(10.0);
        outlook.saved(3.0);
        assert_eq!(outlook.left_s(LEFT), Some(200.0 + 20.0 + 6.0));
        assert_eq!(outlook.measured_step_s(), Some(1.5));
    }

    #[test]
    fn without_a_forecast_its_own_times_are_all_there_is() {
        let mut outlook = outlook("1h", None);
        assert_eq!(outlook.left_s(LEFT), None);
        let said = outlook.verdict(0.0, LEFT, 2).unwrap();
        assert!(said.starts_with("the deadline, 1h, ends training in 1 h 00 min; how much"), "{said}");
        assert_eq!(outlook.verdict(0.0, LEFT, 2), None);
        outlook.iterated(9.0, 9.0, true);
        outlook.iterated(2.0, 2.0, true);
        assert_eq!(outlook.left_s(LEFT), Some(202.0));
    }

    #[test]
    fn training_stops_while_there_is_time_for_a_checkpoint() {
        let mut outlook = outlook("100s", foreseen());
        // An iteration of up to 1.2 s, a checkpoint of 1 s, and 0.3 s.
        assert!(!outlook.is_over(97.4, false, true) && outlook.is_over(97.6, false, true));
        // Where it ends an epoch, a validation too.
        assert!(!outlook.is_over(92.4, true, true) && outlook.is_over(92.6, true, true));
        assert!(!outlook.is_over(97.4, true, false));
        // A long iteration is not forgotten at once.
        outlook.iterated(10.0, 10.0, true);
        outlook.iterated(1.0, 1.0, true);
        assert!(outlook.is_over(90.0, false, true));
    }

    #[test]
    fn what_changes_is_said() {
        let mut outlook = outlook("120s", foreseen());
        let said = outlook.verdict(0.0, LEFT, 2).unwrap();
        assert_eq!(
            said,
            "1 min 52 s left to train, forecast: the deadline, 120s, holds, with 8.0 s to spare"
        );
        assert_eq!(outlook.verdict(5.0, LEFT, 2), None);
        let said = outlook.verdict(64.0, LEFT, 2).unwrap();
        assert_eq!(
            said,
            "1 min 52 s left to train, forecast: the deadline, 120s, does not hold; training will stop with \
             a checkpoint after about 1.0 of 2 epochs"
        );
        assert_eq!(outlook.verdict(65.0, LEFT, 2), None);
    }
}
