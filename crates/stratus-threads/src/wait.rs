//! Waiting for another thread: spinning, which is the fastest while the other runs, or sleeping, which leaves
//! the processor to whoever wants it.
//!
//! A thread that is waited for takes microseconds on a quiet machine. On a busy one its processor may have
//! been given to another program for some milliseconds, and who spins meanwhile uses up the time that the
//! system allots to this program. On a processor that nobody else wants, sleeping is dear: it stops, and has
//! to be started again.

use crate::load;
use std::hint::spin_loop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::thread::Thread;
use std::time::Instant;

/// Nanoseconds of spinning on a quiet machine: longer than what a thread does alone between two kernels.
const QUIET: u64 = 2_000_000;
/// Nanoseconds of spinning where others want the processors: about what falling asleep and waking costs.
const OVERSUBSCRIBED: u64 = 5_000;
/// Looks at the signal before the first look at the clock.
const BURST: u32 = 64;

/// How threads wait, which `OMP_WAIT_POLICY` decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Not set: spinning, as long as no other program wants the processors.
    Adaptive,
    /// `active`: spinning.
    Active,
    /// `passive`: sleeping.
    Passive,
}

impl Policy {
    /// The policy that a value of `OMP_WAIT_POLICY` names.
    #[must_use]
    pub fn of(value: Option<&str>) -> Self {
        match value.map(|value| value.trim().to_ascii_lowercase()).as_deref() {
            Some("active") => Self::Active,
            Some("passive") => Self::Passive,
            _ => Self::Adaptive,
        }
    }

    /// Nanoseconds to spin before sleeping, in a team of `threads`.
    fn patience(self, threads: usize) -> u64 {
        match self {
            Self::Active => u64::MAX,
            Self::Passive => 0,
            Self::Adaptive if load::is_oversubscribed(threads) => OVERSUBSCRIBED,
            Self::Adaptive => QUIET,
        }
    }

    /// The policy of this process.
    pub fn of_environment() -> Self {
        static POLICY: OnceLock<Policy> = OnceLock::new();
        *POLICY.get_or_init(|| Self::of(std::env::var("OMP_WAIT_POLICY").ok().as_deref()))
    }
}

/// Nanoseconds since the first call.
pub fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    // A clock that does not fit is that of a process which is 584 years old.
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// A number that one thread sets and others wait for, alone on its cache lines (two, since processors fetch
/// them in pairs).
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct Signal {
    value: AtomicU32,
    sleepers: AtomicU32,
}

impl Signal {
    /// The number, and with it what the thread that set it has written before.
    pub fn get(&self) -> u32 {
        self.value.load(Ordering::Acquire)
    }

    /// Sets the number. Those who wait asleep see it when they are woken: [`publish`] and [`Signal::wake`]
    /// follow.
    pub fn set(&self, value: u32) {
        self.value.store(value, Ordering::Release);
    }

    /// Wakes a thread that may wait for it asleep, after [`publish`].
    pub fn wake(&self, thread: &Thread) {
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            thread.unpark();
        }
    }

    /// Waits until it is another number, and returns that. `threads` is the size of the team that waits.
    pub fn wait_while(&self, old: u32, threads: usize) -> u32 {
        for _ in 0..BURST {
            let value = self.get();
            if value != old {
                return value;
            }
            spin_loop();
        }
        if !self.spin(old, Policy::of_environment().patience(threads)) {
            self.sleep(old);
        }
        self.get()
    }

    /// Spins for some nanoseconds; whether the number is another one then.
    fn spin(&self, old: u32, patience: u64) -> bool {
        let begun = now();
        while now() - begun < patience {
            for _ in 0..BURST / 2 {
                if self.get() != old {
                    return true;
                }
                spin_loop();
            }
        }
        false
    }

    fn sleep(&self, old: u32) {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        // Either the other thread sees the sleeper, or this one sees the number: each writes the one before
        // it reads the other, with a fence between.
        fence(Ordering::SeqCst);
        while self.get() == old {
            // Returns at once where the thread was woken since; may return for no reason.
            std::thread::park();
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Between setting signals and waking those who sleep.
pub fn publish() {
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_users_policy_is_read_as_openmp_writes_it() {
        for (value, expected) in [
            (None, Policy::Adaptive),
            (Some("active"), Policy::Active),
            (Some(" PASSIVE "), Policy::Passive),
            (Some("Passive"), Policy::Passive),
            (Some("quickly"), Policy::Adaptive),
        ] {
            assert_eq!(Policy::of(value), expected, "{value:?}");
        }
    }

    #[test]
    fn a_sleeper_is_woken_whenever_the_number_comes() {
        // The times at which it comes go over all that the waiting thread can be doing.
        for delay in (0..200).chain([3_000, 10_000]) {
            let signal = Arc::new(Signal::default());
            let waiting = std::thread::spawn({
                let signal = Arc::clone(&signal);
                move || {
                    if delay % 2 == 0 {
                        signal.sleep(0);
                    }
                    signal.wait_while(0, 2)
                }
            });
            std::thread::sleep(std::time::Duration::from_micros(delay));
            signal.set(7);
            publish();
            signal.wake(waiting.thread());
            assert_eq!(waiting.join().unwrap(), 7);
            assert_eq!(signal.sleepers.load(Ordering::Relaxed), 0);
        }
    }
}
