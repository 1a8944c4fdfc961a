//! The argument `--until`: the end of a lease.

use crate::errors::{Failure, Result};
use std::time::{Duration, SystemTime};
use stratus_experiment::Deadline;

/// Parses the end of a lease, the argument of `--until`.
///
/// # Errors
/// If the time is invalid or in the past.
pub(super) fn parse_until(text: &str) -> Result<SystemTime> {
    let invalid = |problem: String| Failure::usage(format!("--until {text}: {problem}"));
    let now = SystemTime::now();
    let end = match Deadline::parse(text).map_err(invalid)? {
        Deadline::Within(seconds) => {
            let length = Duration::try_from_secs_f64(seconds).ok();
            let end = length.and_then(|length| now.checked_add(length));
            end.ok_or_else(|| invalid("too long".to_owned()))?
        }
        Deadline::At(time) => time,
    };
    if end <= now {
        return Err(invalid("in the past".to_owned()).with_hint("times without an offset are UTC"));
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::parse_until;

    #[test]
    fn rejects_invalid_and_past_times() {
        for (text, part) in [("soon", "use a duration"), ("2001-09-09 01:46", "in the past")] {
            let error = parse_until(text).unwrap_err().error.to_string();
            assert!(error.contains(part), "{error}");
        }
        assert!(parse_until("2999-12-01 08:00").is_ok());
    }
}
