//! Waiting for another thread, by spinning (the lowest latency while the other thread runs) or sleeping
//! (which frees the CPU for other programs).
//!
//! On a quiet machine, a wait takes microseconds. On a busy one, the CPU of the other thread may have been
//! given to another program for milliseconds, and spinning wastes the CPU time allotted to this program. On
//! an idle CPU, sleeping is expensive: the CPU enters an idle state and has to wake up again.

use crate::load;
use std::hint::spin_loop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Spinning time on a quiet machine: longer than the serial work of a thread between two kernels.
const SPIN_NS: u64 = 2_000_000;
/// Spinning time when other programs load the CPUs: about the cost of sleeping and waking.
const OVERSUBSCRIBED_SPIN_NS: u64 = 5_000;
/// The longest sleep while [`load::prefers_single_thread`]: the number may then change without a call of
/// [`Signal::wake`].
const MAX_TIMED_SLEEP: Duration = Duration::from_millis(20);
/// Reads of the signal before the first read of the clock.
const SPINS_PER_CLOCK_READ: u32 = 64;

/// The wait policy, set by `OMP_WAIT_POLICY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPolicy {
    /// Not set: spin, as long as no other program loads the CPUs.
    Adaptive,
    /// `active`: spin.
    Active,
    /// `passive`: sleep.
    Passive,
}

impl WaitPolicy {
    /// Parses a value of `OMP_WAIT_POLICY`.
    #[must_use]
    pub fn parse(value: Option<&str>) -> Self {
        match value.map(|value| value.trim().to_ascii_lowercase()).as_deref() {
            Some("active") => Self::Active,
            Some("passive") => Self::Passive,
            _ => Self::Adaptive,
        }
    }

    /// Nanoseconds to spin before sleeping, in a team of `threads`.
    fn spin_ns(self, threads: usize) -> u64 {
        match self {
            Self::Active => u64::MAX,
            Self::Passive => 0,
            Self::Adaptive if load::is_oversubscribed(threads) => OVERSUBSCRIBED_SPIN_NS,
            Self::Adaptive => SPIN_NS,
        }
    }

    /// The policy of this process.
    pub fn from_env() -> Self {
        static POLICY: OnceLock<WaitPolicy> = OnceLock::new();
        *POLICY.get_or_init(|| Self::parse(std::env::var("OMP_WAIT_POLICY").ok().as_deref()))
    }
}

/// Nanoseconds since the first call.
pub fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    // Overflows after 584 years.
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// A number that one thread sets and others wait for, alone on two cache lines, because CPUs fetch them in
/// pairs.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct Signal {
    value: AtomicU32,
    sleepers: AtomicU32,
    /// True if the sleeping thread wakes by itself.
    sleeps_timed: AtomicBool,
}

impl Signal {
    /// The number. Everything that the setting thread wrote before is visible.
    pub fn get(&self) -> u32 {
        self.value.load(Ordering::Acquire)
    }

    /// Sets the number. Sleeping threads see it when they are woken: call [`full_fence`] and [`Signal::wake`]
    /// next.
    pub fn set(&self, value: u32) {
        self.value.store(value, Ordering::Release);
    }

    /// Wakes a thread that may be sleeping in a wait; call [`full_fence`] before.
    pub fn wake(&self, thread: &Thread) {
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            thread.unpark();
        }
    }

    /// Returns whether the only thread that waits for this number sleeps, and will see a change within
    /// [`MAX_TIMED_SLEEP`] without being woken; call [`full_fence`] before.
    pub fn has_timed_sleeper(&self) -> bool {
        self.sleeps_timed.load(Ordering::Relaxed)
    }

    /// Waits until the number differs from `old`, and returns it. `threads` is the size of the waiting team.
    pub fn wait_while(&self, old: u32, threads: usize) -> u32 {
        for _ in 0..SPINS_PER_CLOCK_READ {
            let value = self.get();
            if value != old {
                return value;
            }
            spin_loop();
        }
        if !self.spin(old, WaitPolicy::from_env().spin_ns(threads)) {
            self.sleep(old, threads);
        }
        self.get()
    }

    /// Spins for `spin_ns` nanoseconds at most; returns whether the number has changed.
    fn spin(&self, old: u32, spin_ns: u64) -> bool {
        let started = now();
        while now() - started < spin_ns {
            for _ in 0..SPINS_PER_CLOCK_READ / 2 {
                if self.get() != old {
                    return true;
                }
                spin_loop();
            }
        }
        false
    }

    fn sleep(&self, old: u32, threads: usize) {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        loop {
            let is_timed =
                WaitPolicy::from_env() == WaitPolicy::Adaptive && load::prefers_single_thread(threads);
            self.sleeps_timed.store(is_timed, Ordering::Relaxed);
            // Either the other thread sees the sleeper or this one sees the number: each writes its own
            // before it reads the other's, with a fence between.
            fence(Ordering::SeqCst);
            if self.get() != old {
                break;
            }
            // Returns at once if the thread was woken meanwhile; may return spuriously.
            match is_timed {
                true => std::thread::park_timeout(MAX_TIMED_SLEEP),
                false => std::thread::park(),
            }
        }
        self.sleeps_timed.store(false, Ordering::Relaxed);
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The fence between setting signals and waking sleepers.
pub fn full_fence() {
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn parses_omp_wait_policy() {
        for (value, expected) in [
            (None, WaitPolicy::Adaptive),
            (Some("active"), WaitPolicy::Active),
            (Some(" PASSIVE "), WaitPolicy::Passive),
            (Some("Passive"), WaitPolicy::Passive),
            (Some("quickly"), WaitPolicy::Adaptive),
        ] {
            assert_eq!(WaitPolicy::parse(value), expected, "{value:?}");
        }
    }

    #[test]
    fn a_sleeper_is_woken_whenever_the_number_changes() {
        // The delays cover every state that the waiting thread can be in.
        for delay in (0..200).chain([3_000, 10_000]) {
            let signal = Arc::new(Signal::default());
            let waiting = std::thread::spawn({
                let signal = Arc::clone(&signal);
                move || {
                    if delay % 2 == 0 {
                        signal.sleep(0, 2);
                    }
                    signal.wait_while(0, 2)
                }
            });
            std::thread::sleep(Duration::from_micros(delay));
            signal.set(7);
            full_fence();
            signal.wake(waiting.thread());
            assert_eq!(waiting.join().unwrap(), 7);
            assert_eq!(signal.sleepers.load(Ordering::Relaxed), 0);
        }
    }
}
