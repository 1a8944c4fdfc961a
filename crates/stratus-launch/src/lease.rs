//! Leases: the time until which a target may be used, and by which all runs must be fetched.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};
use stratus_base::text::{bytes, duration};
use stratus_base::time::timestamp;

/// The time reserved for the fetch, as a multiple of the time at the measured bandwidth.
const FETCH_TIME_FACTOR: f64 = 1.5;
/// Seconds of a fetch besides the transfer, for noticing the end of training and comparing files.
const FETCH_OVERHEAD_S: f64 = 30.0;

/// The time until which a target may be used.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Lease {
    /// The end of the lease, in seconds since 1970 by the local clock.
    #[serde(rename = "until")]
    pub ends_at: u64,
    /// The time at which training must stop so that all files can be fetched, by the target's clock.
    #[serde(rename = "stop")]
    pub stop_at: u64,
}

/// The measured connection to a target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkMeasurement {
    /// The seconds by which the target's clock is ahead of the local one.
    pub clock_offset_s: i64,
    /// The download bandwidth in bytes per second.
    pub bytes_per_s: f64,
}

/// The seconds from now until `end`.
#[must_use]
pub fn seconds_left(end: SystemTime) -> f64 {
    end.duration_since(SystemTime::now()).map_or(0.0, |left| left.as_secs_f64())
}

impl Lease {
    /// The lease that ends at `end`. Training stops early enough to fetch `bytes_to_fetch` bytes over `link`.
    /// Also returns a line that explains it.
    ///
    /// # Errors
    /// If the fetch alone takes longer than the lease.
    pub fn plan(
        end: SystemTime,
        link: LinkMeasurement,
        bytes_to_fetch: u64,
        target: &str,
    ) -> Result<(Self, String)> {
        let margin_s =
            FETCH_TIME_FACTOR * bytes_to_fetch as f64 / link.bytes_per_s.max(1.0) + FETCH_OVERHEAD_S;
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
            return Err(Error::target(problem, "set a later --until"));
        }
        let clock = match link.clock_offset_s {
            ahead if ahead.abs() < 5 => String::new(),
            ahead => {
                let direction = if ahead > 0 { "ahead of" } else { "behind" };
                format!("; its clock is {} {direction} this machine's", duration(ahead.unsigned_abs() as f64))
            }
        };
        let explanation = format!(
            "{target}: the lease ends {}, in {}; training stops {} before: {margin}{clock}",
            timestamp(end),
            duration(seconds_left(end)),
            duration(margin_s)
        );
        let until = seconds(end);
        let stop = until.saturating_sub(margin_s.ceil() as u64).saturating_add_signed(link.clock_offset_s);
        Ok((Self { ends_at: until, stop_at: stop }, explanation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn lease_reserves_time_to_fetch_by_the_clock_of_the_target() {
        let end = SystemTime::now() + Duration::from_secs(3600);
        assert!((3590.0..=3600.0).contains(&seconds_left(end)));
        let link = LinkMeasurement { clock_offset_s: -300, bytes_per_s: 1e6 };
        let (leased, _) = Lease::plan(end, link, 100_000_000, "lab").unwrap();
        assert_eq!(leased.ends_at - leased.stop_at, 150 + 30 + 300);
        let error = Lease::plan(end, link, 3_000_000_000, "lab").unwrap_err().to_string();
        assert!(error.contains("fetching may take"), "{error}");
    }
}
