//! Retries of failed operations.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// The time limit for a host that has never responded. It is short, since the name may be misspelt.
pub(crate) const FIRST_CONTACT_TIMEOUT: Duration = Duration::from_secs(30);

/// The timeouts of attempts, the delays between them, and the total time limit.
///
/// Delays grow exponentially: `first_delay`, twice that, and so on up to `max_delay`. Each is shortened by a
/// random part of up to one half (jitter), so that the clients of a restarted server do not all return at
/// once. A longer delay requested by the server (`Retry-After`) is honoured up to `idle_timeout`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The time without a received byte after which an attempt fails; also the maximum `Retry-After`.
    pub idle_timeout: Duration,
    /// The time without progress after which the operation fails.
    pub give_up_after: Duration,
    /// The delay before the second attempt.
    pub first_delay: Duration,
    /// The maximum delay between two attempts.
    pub max_delay: Duration,
}

impl Default for RetryPolicy {
    /// A policy that survives the restart of a server: attempts time out after one minute, operations after
    /// five minutes without progress.
    fn default() -> Self {
        Self {
            idle_timeout: Duration::from_secs(60),
            give_up_after: Duration::from_secs(300),
            first_delay: Duration::from_millis(250),
            max_delay: Duration::from_secs(20),
        }
    }
}

impl RetryPolicy {
    /// A single attempt.
    pub(crate) const ONCE: Self = Self {
        idle_timeout: Duration::from_secs(60),
        give_up_after: Duration::ZERO,
        first_delay: Duration::ZERO,
        max_delay: Duration::ZERO,
    };
}

/// The attempts of one operation.
pub(crate) struct Retries {
    retry_policy: RetryPolicy,
    /// The time of the first failure since the last progress.
    failing_since: Option<Instant>,
    /// The number of failed attempts since the last progress.
    attempts: u32,
}

/// The policy allows no further attempt.
pub(crate) struct Exhausted {
    pub(crate) attempts: u32,
    pub(crate) waited: Duration,
}

impl Retries {
    pub(crate) fn new(retry_policy: RetryPolicy) -> Self {
        Self { retry_policy, failing_since: None, attempts: 0 }
    }

    /// Resets time and attempts after progress.
    pub(crate) fn progress(&mut self) {
        self.failing_since = None;
        self.attempts = 0;
    }

    /// Sleeps after a failed attempt until the next one, or returns an error if the policy is exhausted.
    pub(crate) fn wait(&mut self) -> Result<(), Exhausted> {
        self.wait_for(Duration::ZERO)
    }

    /// Like [`wait`](Self::wait), for at least the `requested` delay within the policy.
    pub(crate) fn wait_for(&mut self, requested: Duration) -> Result<(), Exhausted> {
        self.attempts += 1;
        let waited = self.failing_since.get_or_insert_with(Instant::now).elapsed();
        if waited >= self.retry_policy.give_up_after {
            return Err(Exhausted { attempts: self.attempts, waited });
        }
        let wait = self.next_delay(jitter()).max(requested.min(self.retry_policy.idle_timeout));
        thread::sleep(wait.min(self.retry_policy.give_up_after.saturating_sub(waited)));
        Ok(())
    }

    /// The next delay, shortened by `jitter` (0 to 1) of one half.
    fn next_delay(&self, jitter: f64) -> Duration {
        let doublings = self.attempts.saturating_sub(1).min(20);
        let max_delay = self.retry_policy.max_delay.max(self.retry_policy.first_delay);
        self.retry_policy
            .first_delay
            .saturating_mul(1 << doublings)
            .min(max_delay)
            .mul_f64(1.0 - jitter / 2.0)
    }
}

/// A number from 0 to 1 from the clock, which differs between processes. No result depends on it.
fn jitter() -> f64 {
    let nanos =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    f64::from(nanos / 1000 % 1000) / 1000.0
}

/// The delay requested by a `Retry-After` header (RFC 9110, section 10.2.3), in seconds or as a date. Zero if
/// the date is past or the text cannot be parsed.
pub(crate) fn retry_after(retry_after: &str, now: SystemTime) -> Duration {
    let text = retry_after.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Duration::from_secs(text.parse().unwrap_or(u64::MAX));
    }
    let moment = httpdate::parse_http_date(text).ok();
    moment.and_then(|moment| moment.duration_since(now).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_retry_after_as_seconds_or_date() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let requested = |text: &str, now| retry_after(text, at(now)).as_secs();
        assert_eq!(
            [requested("120", 5), requested(" 0 ", 5), requested(&"9".repeat(30), 5)],
            [120, 0, u64::MAX]
        );
        // The example of RFC 9110 in its three forms, a leap day and the days around a new year, as `date -d`
        // computes them.
        for (text, seconds) in [
            ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777_u64),
            ("Sunday, 06-Nov-94 08:49:37 GMT", 784_111_777),
            ("Sun Nov  6 08:49:37 1994", 784_111_777),
            ("Thu, 29 Feb 2024 23:59:59 GMT", 1_709_251_199),
            ("Fri, 01 Mar 2024 00:00:00 GMT", 1_709_251_200),
            ("Wed, 31 Dec 2025 12:00:00 GMT", 1_767_182_400),
            ("Thu, 01 Jan 2026 12:00:00 GMT", 1_767_268_800),
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        ] {
            assert_eq!(requested(text, seconds.saturating_sub(30)), seconds.min(30), "{text}");
            assert_eq!(requested(text, seconds + 30), 0);
        }
        for text in [
            "",
            "soon",
            "-1",
            "1.5",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 0000 08:49:37 GMT",
            "Sun, 06 Nov 18446744073709551615 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:999999999999 GMT",
            ", ",
        ] {
            assert_eq!(requested(text, 0), 0, "{text}");
        }
    }

    #[test]
    fn honours_requested_delays_within_the_policy() {
        let retry_policy = |silence, total| RetryPolicy {
            idle_timeout: Duration::from_millis(silence),
            give_up_after: Duration::from_millis(total),
            first_delay: Duration::from_millis(1),
            max_delay: Duration::from_millis(1),
        };
        let mut retries = Retries::new(retry_policy(60, 3_600_000));
        let started = Instant::now();
        assert!(retries.wait_for(Duration::from_millis(20)).is_ok());
        assert!(started.elapsed() >= Duration::from_millis(20));
        // At most `idle_timeout`: the full delay would outlast this test.
        assert!(retries.wait_for(Duration::MAX).is_ok());
        assert!(started.elapsed() >= Duration::from_millis(80));
        // At most the rest of `give_up_after`, after which there is no further attempt.
        let mut retries = Retries::new(retry_policy(3_600_000, 50));
        while retries.wait_for(Duration::MAX).is_ok() {}
        assert!(started.elapsed() >= Duration::from_millis(130));
    }

    #[test]
    fn delays_double_up_to_the_maximum() {
        let retry_policy = RetryPolicy::default();
        let mut retries = Retries::new(retry_policy);
        let mut waits = Vec::new();
        for attempts in 1..=10 {
            retries.attempts = attempts;
            assert_eq!(retries.next_delay(1.0), retries.next_delay(0.0) / 2);
            waits.push(retries.next_delay(0.0).as_millis());
        }
        assert_eq!(waits, [250, 500, 1000, 2000, 4000, 8000, 16000, 20000, 20000, 20000]);
        retries.attempts = u32::MAX;
        assert_eq!(retries.next_delay(0.0), retry_policy.max_delay);
    }

    #[test]
    fn retries_are_exhausted_and_reset_by_progress() {
        let retry_policy = RetryPolicy {
            give_up_after: Duration::from_millis(80),
            first_delay: Duration::from_millis(5),
            max_delay: Duration::from_millis(10),
            ..RetryPolicy::default()
        };
        let mut retries = Retries::new(retry_policy);
        let exhausted = loop {
            if let Err(exhausted) = retries.wait() {
                break exhausted;
            }
        };
        assert!(exhausted.attempts > 2, "{} attempts", exhausted.attempts);
        assert!(exhausted.waited >= retry_policy.give_up_after);
        retries.progress();
        assert!(retries.wait().is_ok());
        assert!(Retries::new(RetryPolicy::ONCE).wait().is_err());
    }
}
