//! How long and how often what fails is tried again.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// How long a host is tried that never answered: its name may be wrong, and whoever mistyped it should know
/// soon.
pub(crate) const FIRST_CONTACT: Duration = Duration::from_secs(30);

/// How long a server may be silent, and for how long failures are borne.
///
/// Times between two tries double from `first_wait` to `longest_wait`, and each is shortened by a random part
/// of up to a half, so that many clients of a server that comes back do not ask all at once. A server that
/// says how long it wants to be left alone is, for up to `silence`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// A try ends when nothing came for so long. The longest time that a server's wish for peace is granted.
    pub silence: Duration,
    /// Trying ends when nothing went forward for so long.
    pub total: Duration,
    /// The time between the first try and the second.
    pub first_wait: Duration,
    /// The longest time between two tries.
    pub longest_wait: Duration,
}

impl Default for Patience {
    /// A minute of silence, five minutes without progress: a server that is restarted is survived.
    fn default() -> Self {
        Self {
            silence: Duration::from_secs(60),
            total: Duration::from_secs(300),
            first_wait: Duration::from_millis(250),
            longest_wait: Duration::from_secs(20),
        }
    }
}

impl Patience {
    /// One try and no more.
    pub(crate) const NONE: Self = Self {
        silence: Duration::from_secs(60),
        total: Duration::ZERO,
        first_wait: Duration::ZERO,
        longest_wait: Duration::ZERO,
    };
}

/// One thing that is tried until it works or patience is at its end.
pub(crate) struct Struggle {
    patience: Patience,
    /// When the first try failed since something last went forward.
    failing_since: Option<Instant>,
    /// Tries that failed since then.
    tries: u32,
}

/// Patience is at its end: how often it was tried, and for how long.
pub(crate) struct Exhausted {
    pub(crate) tries: u32,
    pub(crate) waited: Duration,
}

impl Struggle {
    pub(crate) fn new(patience: Patience) -> Self {
        Self { patience, failing_since: None, tries: 0 }
    }

    /// Something went forward: from here on patience is whole again.
    pub(crate) fn progress(&mut self) {
        self.failing_since = None;
        self.tries = 0;
    }

    /// A try failed: waits before the next one, or says that there is none.
    pub(crate) fn wait(&mut self) -> Result<(), Exhausted> {
        self.wait_for(Duration::ZERO)
    }

    /// As [`wait`](Self::wait), and for as long as the other side `asked`, within the bounds of patience.
    pub(crate) fn wait_for(&mut self, asked: Duration) -> Result<(), Exhausted> {
        self.tries += 1;
        let waited = self.failing_since.get_or_insert_with(Instant::now).elapsed();
        if waited >= self.patience.total {
            return Err(Exhausted { tries: self.tries, waited });
        }
        let wait = self.next_wait(jitter()).max(asked.min(self.patience.silence));
        thread::sleep(wait.min(self.patience.total.saturating_sub(waited)));
        Ok(())
    }

    /// `jitter`: from 0 to 1.
    fn next_wait(&self, jitter: f64) -> Duration {
        let doublings = self.tries.saturating_sub(1).min(20);
        let longest = self.patience.longest_wait.max(self.patience.first_wait);
        self.patience.first_wait.saturating_mul(1 << doublings).min(longest).mul_f64(1.0 - jitter / 2.0)
    }
}

/// From 0 to 1, by the clock: it must differ between processes, and nothing that is computed may depend on
/// it.
fn jitter() -> f64 {
    let nanos =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    f64::from(nanos / 1000 % 1000) / 1000.0
}

/// How long an answer asks to be left alone (`Retry-After`, RFC 9110, section 10.2.3): in seconds, or until a
/// moment; zero where that is past or not to be understood.
pub(crate) fn asked_wait(retry_after: &str, now: SystemTime) -> Duration {
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
    fn servers_ask_for_seconds_or_until_a_moment() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let asked = |text: &str, now| asked_wait(text, at(now)).as_secs();
        assert_eq!([asked("120", 5), asked(" 0 ", 5), asked(&"9".repeat(30), 5)], [120, 0, u64::MAX]);
        // The example of RFC 9110 in its three forms, and what `date -d` says of a leap day and of the days
        // around a turn of the year.
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
            assert_eq!(asked(text, seconds.saturating_sub(30)), seconds.min(30), "{text}");
            assert_eq!(asked(text, seconds + 30), 0);
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
            assert_eq!(asked(text, 0), 0, "{text}");
        }
    }

    #[test]
    fn what_is_asked_for_is_granted_within_bounds() {
        let patience = |silence, total| Patience {
            silence: Duration::from_millis(silence),
            total: Duration::from_millis(total),
            first_wait: Duration::from_millis(1),
            longest_wait: Duration::from_millis(1),
        };
        let mut struggle = Struggle::new(patience(60, 3_600_000));
        let begun = Instant::now();
        assert!(struggle.wait_for(Duration::from_millis(20)).is_ok());
        assert!(begun.elapsed() >= Duration::from_millis(20));
        // No longer than `silence`: it would not come back in the time of this test.
        assert!(struggle.wait_for(Duration::MAX).is_ok());
        assert!(begun.elapsed() >= Duration::from_millis(80));
        // Nor than what is left of `total`, behind which there is no further try.
        let mut struggle = Struggle::new(patience(3_600_000, 50));
        while struggle.wait_for(Duration::MAX).is_ok() {}
        assert!(begun.elapsed() >= Duration::from_millis(130));
    }

    #[test]
    fn waits_double_up_to_the_longest() {
        let patience = Patience::default();
        let mut struggle = Struggle::new(patience);
        let mut waits = Vec::new();
        for tries in 1..=10 {
            struggle.tries = tries;
            assert_eq!(struggle.next_wait(1.0), struggle.next_wait(0.0) / 2);
            waits.push(struggle.next_wait(0.0).as_millis());
        }
        assert_eq!(waits, [250, 500, 1000, 2000, 4000, 8000, 16000, 20000, 20000, 20000]);
        struggle.tries = u32::MAX;
        assert_eq!(struggle.next_wait(0.0), patience.longest_wait);
    }

    #[test]
    fn patience_ends_and_progress_restores_it() {
        let patience = Patience {
            total: Duration::from_millis(80),
            first_wait: Duration::from_millis(5),
            longest_wait: Duration::from_millis(10),
            ..Patience::default()
        };
        let mut struggle = Struggle::new(patience);
        let exhausted = loop {
            if let Err(exhausted) = struggle.wait() {
                break exhausted;
            }
        };
        assert!(exhausted.tries > 2, "{} tries", exhausted.tries);
        assert!(exhausted.waited >= patience.total);
        struggle.progress();
        assert!(struggle.wait().is_ok());
        assert!(Struggle::new(Patience::NONE).wait().is_err());
    }
}
