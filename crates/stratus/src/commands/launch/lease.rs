//! Leases: a target that may be used until a time, by which everything has come back.

use crate::errors::{Failure, Result};
use crate::output::{Output, bytes};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stratus_forecast::text::duration;
use stratus_launch::{Lease, Link};
use stratus_run::log::timestamp;
use stratus_train::network::Network;
use stratus_train::{Deadline, Experiment};

/// By how much longer a fetch may take than the connection was measured to need.
const MARGIN: f64 = 1.5;
/// Seconds to notice the end, and to list and compare the files.
const BESIDE_S: f64 = 30.0;
/// Tensors as large as the weights in a checkpoint, at most: they, two moments, an average.
const TENSORS: u64 = 4;

/// When a lease ends, as `--until` says.
///
/// # Errors
/// Where it is no time, or a past one.
pub(super) fn until(text: &str) -> Result<SystemTime> {
    let wrong = |problem: String| Failure::usage(format!("--until {text}: {problem}"));
    let now = SystemTime::now();
    let end = match Deadline::parse(text).map_err(wrong)? {
        Deadline::Within(seconds) => {
            let length = Duration::try_from_secs_f64(seconds).ok();
            let end = length.and_then(|length| now.checked_add(length));
            end.ok_or_else(|| wrong("it is too long".to_owned()))?
        }
        Deadline::At(time) => time,
    };
    if end <= now {
        return Err(wrong("that is over".to_owned()).hint("times are UTC where no offset is given"));
    }
    Ok(end)
}

/// Seconds from now.
pub(super) fn left_s(end: SystemTime) -> f64 {
    end.duration_since(SystemTime::now()).map_or(0.0, |left| left.as_secs_f64())
}

/// Bytes that come back of a run, at most: its checkpoints, of which one more may be on its way.
///
/// # Errors
/// Where there is no such network.
pub(super) fn run_bytes(experiment: &Experiment) -> Result<u64> {
    let parameters = Network::as_published(experiment)?.graph.trained_parameters() as u64;
    Ok(parameters * 4 * TENSORS * (experiment.checkpoint.keep as u64 + 1))
}

/// The lease of a target that is reached so, of which so many bytes are to come back.
///
/// # Errors
/// Where it ends too early to train at all.
pub(super) fn lease(end: SystemTime, link: Link, come: u64, target: &str, output: &Output) -> Result<Lease> {
    let margin_s = MARGIN * come as f64 / link.bytes_per_s.max(1.0) + BESIDE_S;
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let margin =
        format!("{} may come, at {} a second as measured", bytes(come), bytes(link.bytes_per_s as u64));
    if margin_s >= left_s(end) {
        let problem = format!(
            "{target}: the lease ends in {}, and bringing the runs back may take {}: {margin}",
            duration(left_s(end)),
            duration(margin_s)
        );
        return Err(Failure::failed(problem).hint("give a later --until"));
    }
    let clock = match link.ahead_s {
        ahead if ahead.abs() < 5 => String::new(),
        ahead => {
            let way = if ahead > 0 { "ahead of" } else { "behind" };
            format!("; its clock is {} {way} the one here", duration(ahead.unsigned_abs() as f64))
        }
    };
    output.message(&format!(
        "{target}: the lease ends {}, in {}; training stops {} before: {margin}{clock}",
        timestamp(end),
        duration(left_s(end)),
        duration(margin_s)
    ));
    let until = seconds(end);
    let stop = until.saturating_sub(margin_s.ceil() as u64).saturating_add_signed(link.ahead_s);
    Ok(Lease { until, stop })
}

#[cfg(test)]
mod tests {
    use super::{lease, left_s, until};
    use crate::output::Output;
    use stratus_launch::Link;

    #[test]
    fn a_lease_leaves_room_for_what_comes_back_by_the_clock_there() {
        let end = until("1h").unwrap();
        assert!((3590.0..=3600.0).contains(&left_s(end)));
        let output = Output::new(false, true);
        let link = Link { ahead_s: -300, bytes_per_s: 1e6 };
        let leased = lease(end, link, 100_000_000, "lab", &output).unwrap();
        assert_eq!(leased.until - leased.stop, 150 + 30 + 300);
        let error = lease(end, link, 3_000_000_000, "lab", &output).unwrap_err().error.to_string();
        assert!(error.contains("bringing the runs back may take"), "{error}");
    }

    #[test]
    fn a_time_that_is_none_or_over_is_refused() {
        for (text, part) in [("soon", "give a duration"), ("2001-09-09 01:46", "that is over")] {
            let error = until(text).unwrap_err().error.to_string();
            assert!(error.contains(part), "{error}");
        }
        assert!(until("2999-12-01 08:00").is_ok());
    }
}
