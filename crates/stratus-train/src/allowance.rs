//! How long a run may take: `train.deadline` and `train.budget`.

use crate::experiment::Train;
use crate::{Experiment, TrainError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use stratus_forecast::catalogue::Catalogue;
use stratus_forecast::text::{duration, seconds};
use stratus_run::log::days;
use toml::value::Datetime;

/// Seconds beside the next iteration and a checkpoint that are kept free: for the summary, and for what took
/// longer than before.
const SLACK_S: f64 = 0.3;

/// `train.deadline`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Deadline {
    /// So many seconds after the process began.
    Within(f64),
    /// A time.
    At(SystemTime),
}

impl Deadline {
    /// `6h`, or a time as RFC 3339 has it, in UTC where no offset is given.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(seconds) = seconds(text) {
            return Ok(Self::Within(seconds));
        }
        let wrong = || "give a duration such as 6h (s, m, h or d), or a time such as 2026-12-01T08:00Z";
        let time: Datetime = text.trim().parse().map_err(|_| wrong().to_owned())?;
        let (Some(date), Some(clock)) = (time.date, time.time) else { return Err(wrong().to_owned()) };
        let days = days(date.year.into(), date.month.into(), date.day.into()).ok_or("it is before 1970")?;
        let minutes = match time.offset {
            Some(toml::value::Offset::Custom { minutes }) => i64::from(minutes),
            Some(toml::value::Offset::Z) | None => 0,
        };
        let of_day = i64::from(clock.hour) * 3600
            + i64::from(clock.minute) * 60
            + i64::from(clock.second.unwrap_or_default());
        let since = days as i64 * 86_400 + of_day - minutes * 60;
        let since = u64::try_from(since).map_err(|_| "it is before 1970")?;
        Ok(Self::At(UNIX_EPOCH + Duration::from_secs(since)))
    }
}

/// What is wrong, and what to do.
type Refused = (String, String);

/// What an hour costs: `train.price_per_hour`, or the price of `train.instance`.
///
/// # Errors
/// Where there is no such instance, or its price is not known.
fn price(settings: &Train) -> Result<Option<(f64, Option<String>)>, Refused> {
    let Some(name) = &settings.instance else {
        return Ok(settings.price_per_hour.map(|price| (price, None)));
    };
    let list = "`stratus forecast machines` lists them; or give train.price_per_hour".to_owned();
    let machine = Catalogue::builtin().and_then(|catalogue| catalogue.find(name));
    let machine = machine.map_err(|error| {
        let hint = error.hint().unwrap_or_else(|| list.clone());
        (format!("`train.instance`: {error}"), hint)
    })?;
    let instance = machine.instance.as_ref();
    let hourly = instance.and_then(|instance| instance.on_demand_per_hour.or(instance.spot_per_hour));
    match hourly {
        Some(hourly) => Ok(Some((hourly, instance.and_then(|instance| instance.currency.clone())))),
        None => Err((format!("the catalogue has no price of `train.instance`, {name}"), list)),
    }
}

/// What one of the keys allows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Limit {
    /// How it reads in a sentence: `the deadline, 6h,`.
    pub what: String,
    /// Seconds after the run was begun, or continued.
    pub at_s: f64,
}

/// When a run has to stop; never where neither key is set.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Allowance {
    limit: Option<Limit>,
}

impl Allowance {
    /// Of a run that has taken `earlier_s` seconds before it began anew at `begun`, which is what limits are
    /// counted from; the process began at `process`.
    ///
    /// # Errors
    /// Where nothing is left of it, or the price is not known.
    pub fn of(
        experiment: &Experiment,
        earlier_s: f64,
        [begun, process]: [Instant; 2],
    ) -> Result<Self, TrainError> {
        let settings = &experiment.train;
        let mut limits = Vec::new();
        let spent_s = begun.elapsed().as_secs_f64();
        if let Some(text) = &settings.deadline {
            let refused = |problem: String| TrainError::Configuration {
                problem: format!("train.deadline is {text}: {problem}"),
                hint: "give a later one; a run is continued with `stratus train RUN --deadline …`".to_owned(),
            };
            let at_s = match Deadline::parse(text).map_err(&refused)? {
                Deadline::Within(seconds) => seconds - begun.duration_since(process).as_secs_f64(),
                Deadline::At(time) => match time.duration_since(SystemTime::now()) {
                    Ok(left) => spent_s + left.as_secs_f64(),
                    Err(ago) => {
                        let ago = duration(ago.duration().as_secs_f64());
                        return Err(refused(format!("that was {ago} ago")));
                    }
                },
            };
            limits.push(Limit { what: format!("the deadline, {text},"), at_s });
        }
        let price = price(settings);
        let price = price.map_err(|(problem, hint)| TrainError::Configuration { problem, hint })?;
        if let (Some(budget), Some((hourly, currency))) = (settings.budget, price) {
            let unit = currency.map_or(String::new(), |currency| format!(" {currency}"));
            let at_s = 3600.0 * budget / hourly - earlier_s;
            if at_s <= spent_s {
                return Err(TrainError::Configuration {
                    problem: format!(
                        "train.budget is {budget}{unit}, and the {} that this run has taken cost {:.2}{unit} \
                         at {hourly}{unit} an hour",
                        duration(earlier_s + spent_s),
                        (earlier_s + spent_s) / 3600.0 * hourly
                    ),
                    hint: "give more; a run is continued with `stratus train RUN --budget …`".to_owned(),
                });
            }
            let what = format!("the budget of {budget}{unit}, {hourly}{unit} an hour,");
            limits.push(Limit { what, at_s });
        }
        let limit = limits.into_iter().min_by(|a, b| a.at_s.total_cmp(&b.at_s));
        Ok(Self { limit })
    }

    /// The first that is reached.
    pub fn limit(&self) -> Option<&Limit> {
        self.limit.as_ref()
    }

    /// Whether what takes `next_s` more would end too late, `now_s` after the run was begun or continued.
    pub fn is_exceeded_by(&self, now_s: f64, next_s: f64) -> bool {
        self.limit.as_ref().is_some_and(|limit| now_s + next_s + SLACK_S > limit.at_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_read() {
        let at = |seconds: u64| Ok(Deadline::At(UNIX_EPOCH + Duration::from_secs(seconds)));
        assert_eq!(Deadline::parse("6h"), Ok(Deadline::Within(21_600.0)));
        assert_eq!(Deadline::parse("2001-09-09T01:46:40Z"), at(1_000_000_000));
        assert_eq!(Deadline::parse("2001-09-09 01:46"), at(1_000_000_000 - 40));
        assert_eq!(Deadline::parse("2001-09-09T03:46:40+02:00"), at(1_000_000_000));
        for wrong in ["", "soon", "6", "-6h", "2001-09-09", "01:46", "2001-02-29T00:00Z", "1950-01-01T00:00Z"]
        {
            assert!(Deadline::parse(wrong).is_err(), "{wrong}");
        }
    }

    fn of(keys: &[(&str, &str)], earlier_s: f64) -> Result<Allowance, TrainError> {
        let experiment = Experiment::default().with_overrides(&[("model.name", "digits")]).unwrap();
        let now = Instant::now();
        Allowance::of(&experiment.with_overrides(keys).unwrap(), earlier_s, [now, now])
    }

    #[test]
    fn the_first_limit_counts() {
        assert_eq!(of(&[], 0.0).unwrap(), Allowance::default());
        let price = ("train.price_per_hour", "2");
        let limit = |keys: &[(&str, &str)], earlier_s| of(keys, earlier_s).unwrap().limit.unwrap().at_s;
        let both = [("train.deadline", "1h"), ("train.budget", "1"), price];
        // Half an hour of two an hour is one; what was spent before is spent.
        assert!((limit(&both, 0.0) - 1800.0).abs() < 1e-6);
        assert!((limit(&both, 600.0) - 1200.0).abs() < 1e-6);
        assert!((limit(&both[..1], 600.0) - 3600.0).abs() < 1e-6);
        let spent = of(&both, 1900.0).unwrap_err().to_string();
        assert!(
            spent.starts_with("train.budget is 1, and the 31 min 40 s that this run has taken cost 1.06")
        );
        let past = of(&[("train.deadline", "2001-09-09T01:46Z")], 0.0).unwrap_err().to_string();
        assert!(past.contains("that was"), "{past}");
    }

    #[test]
    fn what_would_end_too_late_does_not_begin() {
        let allowance = of(&[("train.deadline", "100s")], 0.0).unwrap();
        assert!(!allowance.is_exceeded_by(90.0, 9.0) && allowance.is_exceeded_by(90.0, 10.0));
        assert!(!Allowance::default().is_exceeded_by(1e9, 1e9));
    }
}
