//! The time by which a run has to end: `train.deadline`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stratus_base::text::seconds;
use stratus_base::time::days;
use toml::value::Datetime;

/// `train.deadline`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Deadline {
    /// Seconds after the start of the process.
    Within(f64),
    /// A point in time.
    At(SystemTime),
}

impl Deadline {
    /// Parses a duration such as `6h`, or an RFC 3339 time, in UTC unless it has an offset.
    ///
    /// # Errors
    /// If the text is neither, or the time is before 1970.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(seconds) = seconds(text) {
            return Ok(Self::Within(seconds));
        }
        let wrong = || "use a duration such as 6h (s, m, h or d), or a time such as 2026-12-01T08:00Z";
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_durations_and_times() {
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
}
