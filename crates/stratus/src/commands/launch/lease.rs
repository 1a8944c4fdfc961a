//! Leases: a target may be used until a time, by which all runs must be fetched.

use crate::errors::{Failure, Result};
use crate::output::Output;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stratus_base::text::{bytes, duration};
use stratus_experiment::{Deadline, Experiment};
use stratus_launch::{Lease, LinkMeasurement};
use stratus_run::log::timestamp;
use stratus_train::network::Network;

/// The time reserved for the fetch, as a multiple of the time at the measured bandwidth.
const FETCH_TIME_FACTOR: f64 = 1.5;
/// Seconds of a fetch besides the transfer, for noticing the end of training and comparing files.
const FETCH_OVERHEAD_S: f64 = 30.0;
/// The maximum number of weight-sized tensors in a checkpoint: weights, two moments, moving average.
const MAX_WEIGHT_SIZED_TENSORS: u64 = 4;

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

/// The seconds from now until `end`.
pub(super) fn seconds_left(end: SystemTime) -> f64 {
    end.duration_since(SystemTime::now()).map_or(0.0, |left| left.as_secs_f64())
}

/// The maximum number of bytes to fetch of a run: its checkpoints, and one that is being written.
///
/// # Errors
/// If the network is not found.
pub(super) fn max_run_bytes(experiment: &Experiment) -> Result<u64> {
    let parameters = Network::as_published(experiment)?.graph.trained_parameters() as u64;
    Ok(parameters * 4 * MAX_WEIGHT_SIZED_TENSORS * (experiment.checkpoint.keep as u64 + 1))
}

/// Plans when training must stop, so that `bytes_to_fetch` bytes can be fetched over `link` before `end`.
///
/// # Errors
/// If the fetch alone takes longer than the lease.
pub(super) fn plan_lease(
    end: SystemTime,
    link: LinkMeasurement,
    bytes_to_fetch: u64,
    target: &str,
    output: &Output,
) -> Result<Lease> {
    let margin_s = FETCH_TIME_FACTOR * bytes_to_fetch as f64 / link.bytes_per_s.max(1.0) + FETCH_OVERHEAD_S;
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let margin = format!(
        "up to {} to fetch at a measured {} per second",
        bytes(bytes_to_fetch),
        bytes(link.bytes_per_s as u64)
    );
    if margin_s >= seconds_left(end) {
        let problem = format!(
            "{target}: lease too short: it ends in {}, and fetching may take {}: {margin}",
            duration(seconds_left(end)),
            duration(margin_s)
        );
        return Err(Failure::failed(problem).with_hint("set a later --until"));
    }
    let clock = match link.clock_offset_s {
        ahead if ahead.abs() < 5 => String::new(),
        ahead => {
            let direction = if ahead > 0 { "ahead of" } else { "behind" };
            format!("; its clock is {} {direction} this machine's", duration(ahead.unsigned_abs() as f64))
        }
    };
    output.message(&format!(
        "{target}: the lease ends {}, in {}; training stops {} before: {margin}{clock}",
        timestamp(end),
        duration(seconds_left(end)),
        duration(margin_s)
    ));
    let until = seconds(end);
    let stop = until.saturating_sub(margin_s.ceil() as u64).saturating_add_signed(link.clock_offset_s);
    Ok(Lease { ends_at: until, stop_at: stop })
}

#[cfg(test)]
mod tests {
    use super::{parse_until, plan_lease, seconds_left};
    use crate::output::Output;
    use stratus_launch::LinkMeasurement;

    #[test]
    fn lease_reserves_time_to_fetch_by_the_clock_of_the_target() {
        let end = parse_until("1h").unwrap();
        assert!((3590.0..=3600.0).contains(&seconds_left(end)));
        let output = Output::new(false, true);
        let link = LinkMeasurement { clock_offset_s: -300, bytes_per_s: 1e6 };
        let leased = plan_lease(end, link, 100_000_000, "lab", &output).unwrap();
        assert_eq!(leased.ends_at - leased.stop_at, 150 + 30 + 300);
        let error = plan_lease(end, link, 3_000_000_000, "lab", &output).unwrap_err().error.to_string();
        assert!(error.contains("fetching may take"), "{error}");
    }

    #[test]
    fn rejects_invalid_and_past_times() {
        for (text, part) in [("soon", "use a duration"), ("2001-09-09 01:46", "in the past")] {
            let error = parse_until(text).unwrap_err().error.to_string();
            assert!(error.contains(part), "{error}");
        }
        assert!(parse_until("2999-12-01 08:00").is_ok());
    }
}
