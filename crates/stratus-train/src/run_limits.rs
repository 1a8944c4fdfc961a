//! The time limits of a run: `train.deadline` and `train.budget`.

use crate::TrainError;
use std::time::{Instant, SystemTime};
use stratus_base::text::duration;
use stratus_experiment::{Deadline, Experiment, Train};
use stratus_forecast::catalogue::RunPrice;

/// Seconds that are kept free after the next iteration and its checkpoint: for the summary, and for steps
/// that take longer than before.
const SLACK_S: f64 = 0.3;

/// The price of an hour of a run.
///
/// # Errors
/// If the instance or its price is unknown: the problem and a hint.
fn price(settings: &Train) -> Result<Option<RunPrice>, (String, String)> {
    RunPrice::of_run(settings.instance.as_deref(), settings.price_per_hour).map_err(|error| {
        let list = || "`stratus forecast machines` lists them; or set train.price_per_hour".to_owned();
        (format!("`train.instance`: {error}"), error.hint().unwrap_or_else(list))
    })
}

/// The time limit of one key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TimeLimit {
    /// The name in messages: `deadline 6h`.
    pub label: String,
    /// Seconds after the run was started or resumed.
    pub at_s: f64,
}

/// The time limits of a run; none if neither key is set.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RunLimits {
    limit: Option<TimeLimit>,
}

impl RunLimits {
    /// Limits of a run (re)started at `started` after `previous_s` seconds in earlier processes. `process` is
    /// when this process started.
    ///
    /// # Errors
    /// If a limit is already exceeded, or the price is unknown.
    pub fn new(
        experiment: &Experiment,
        previous_s: f64,
        [started, process]: [Instant; 2],
    ) -> Result<Self, TrainError> {
        let settings = &experiment.train;
        let mut limits = Vec::new();
        let spent_s = started.elapsed().as_secs_f64();
        if let Some(text) = &settings.deadline {
            let refused = |problem: String| TrainError::Configuration {
                problem,
                hint: "set a later one; to resume a run: `stratus train RUN --deadline …`".to_owned(),
            };
            let deadline = Deadline::parse(text)
                .map_err(|problem| refused(format!("invalid train.deadline {text}: {problem}")))?;
            let at_s = match deadline {
                Deadline::Within(seconds) => seconds - started.duration_since(process).as_secs_f64(),
                Deadline::At(time) => match time.duration_since(SystemTime::now()) {
                    Ok(left) => spent_s + left.as_secs_f64(),
                    Err(ago) => {
                        let ago = duration(ago.duration().as_secs_f64());
                        return Err(refused(format!("train.deadline {text} has passed ({ago} ago)")));
                    }
                },
            };
            limits.push(TimeLimit { label: format!("deadline {text}"), at_s });
        }
        let price = price(settings);
        let price = price.map_err(|(problem, hint)| TrainError::Configuration { problem, hint })?;
        if let (Some(budget), Some(RunPrice { per_hour: hourly, currency })) = (settings.budget, price) {
            let unit = currency.map_or(String::new(), |currency| format!(" {currency}"));
            let at_s = 3600.0 * budget / hourly - previous_s;
            if at_s <= spent_s {
                return Err(TrainError::Configuration {
                    problem: format!(
                        "train.budget {budget}{unit} is spent: {} at {hourly}{unit} per hour cost \
                         {:.2}{unit}",
                        duration(previous_s + spent_s),
                        (previous_s + spent_s) / 3600.0 * hourly
                    ),
                    hint: "set a larger one; to resume a run: `stratus train RUN --budget …`".to_owned(),
                });
            }
            let label = format!("budget {budget}{unit} at {hourly}{unit} per hour");
            limits.push(TimeLimit { label, at_s });
        }
        let limit = limits.into_iter().min_by(|a, b| a.at_s.total_cmp(&b.at_s));
        Ok(Self { limit })
    }

    /// The limit that is reached first.
    pub fn limit(&self) -> Option<&TimeLimit> {
        self.limit.as_ref()
    }

    /// Returns whether `next_s` more seconds would exceed a limit, `now_s` after the run was started or
    /// resumed.
    pub fn would_exceed(&self, now_s: f64, next_s: f64) -> bool {
        self.limit.as_ref().is_some_and(|limit| now_s + next_s + SLACK_S > limit.at_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(keys: &[(&str, &str)], previous_s: f64) -> Result<RunLimits, TrainError> {
        let experiment = Experiment::default().with_overrides(&[("model.name", "digits")]).unwrap();
        let now = Instant::now();
        RunLimits::new(&experiment.with_overrides(keys).unwrap(), previous_s, [now, now])
    }

    #[test]
    fn the_earlier_limit_applies() {
        assert_eq!(limits(&[], 0.0).unwrap(), RunLimits::default());
        let price = ("train.price_per_hour", "2");
        let limit = |keys: &[(&str, &str)], previous_s| limits(keys, previous_s).unwrap().limit.unwrap().at_s;
        let both = [("train.deadline", "1h"), ("train.budget", "1"), price];
        // Half an hour at 2 per hour costs 1; earlier processes count towards the budget.
        assert!((limit(&both, 0.0) - 1800.0).abs() < 1e-6);
        assert!((limit(&both, 600.0) - 1200.0).abs() < 1e-6);
        assert!((limit(&both[..1], 600.0) - 3600.0).abs() < 1e-6);
        let spent = limits(&both, 1900.0).unwrap_err().to_string();
        assert_eq!(spent, "train.budget 1 is spent: 31 min 40 s at 2 per hour cost 1.06");
        let past = limits(&[("train.deadline", "2001-09-09T01:46Z")], 0.0).unwrap_err().to_string();
        assert!(past.contains(" has passed ("), "{past}");
    }

    #[test]
    fn stops_before_exceeding_the_deadline() {
        let limits = limits(&[("train.deadline", "100s")], 0.0).unwrap();
        assert!(!limits.would_exceed(90.0, 9.0) && limits.would_exceed(90.0, 10.0));
        assert!(!RunLimits::default().would_exceed(1e9, 1e9));
    }
}
