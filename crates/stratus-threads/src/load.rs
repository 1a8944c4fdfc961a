//! How wanted the processors are: what other programs use of those that this one may use.
//!
//! From time to time the thread that opens regions compares what the system says that the processors worked
//! with what this process has used. Programs on other virtual machines count too, where the hypervisor says
//! so (stolen time).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Nanoseconds between two looks. The system counts in hundredths of a second.
const LOOK: u64 = 200_000_000;
/// Thousandths of a processor that are too little to matter, and what each processor adds to them: services
/// of the system run everywhere, and each processor's time is known to a hundredth of a second.
const LITTLE: u32 = 250;
const LITTLE_OF_EACH: u32 = 25;
/// Teams of more threads are not given up: one thread would be far slower than many that wait.
const SMALL_TEAM: usize = 4;

/// What others use, as of the last look.
struct Load {
    looked_at: AtomicU64,
    /// The nanoseconds that the processors had worked for others by then.
    for_others: AtomicU64,
    /// Thousandths of a processor that others used between the last two looks.
    others: AtomicU32,
}

static LOAD: Load =
    Load { looked_at: AtomicU64::new(0), for_others: AtomicU64::new(0), others: AtomicU32::new(0) };

/// Whether `threads` threads, alone or with the others', want more processors than there are.
pub fn is_oversubscribed(threads: usize) -> bool {
    threads > processors() || want_more(threads, processors(), LOAD.others.load(Ordering::Relaxed))
}

/// Whether one thread does the work of a small team sooner than the team.
///
/// Threads that wait for each other after every piece of work advance only while all of them have a
/// processor, and each has its own half of the time where another program wants it too: with `m` such
/// programs about `0.5^m` of the time. One thread of `n` does at least `1 / n`, in fact more, as teams do not
/// scale perfectly.
pub fn is_better_alone(threads: usize) -> bool {
    threads <= SMALL_TEAM && is_oversubscribed(threads) && {
        // A program that wants a processor which we want too uses half of it.
        let programs = 2.0 * f64::from(LOAD.others.load(Ordering::Relaxed)) / 1e3;
        0.5f64.powf(programs) < 1.2 / threads as f64
    }
}

/// Measures who uses the processors, from a moment on.
#[derive(Clone, Copy, Debug)]
pub struct UsageMeter {
    begun: Instant,
    /// The nanoseconds that this process had used by then, and that the processors had worked for others;
    /// `None` where that is not known.
    before: Option<[u64; 2]>,
}

/// Who used the processors that this process may use, in percent of their time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// This process.
    pub own_percent: f64,
    /// Other programs, and other virtual machines where the hypervisor says so.
    pub others_percent: f64,
}

impl UsageMeter {
    /// From now on.
    #[must_use]
    pub fn from_now() -> Self {
        Self { begun: Instant::now(), before: system::used() }
    }

    /// What was used since; `None` where that is not known, or after less than a second, which the system
    /// does not measure well.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        let time = self.begun.elapsed();
        let (now, before) = (system::used()?, self.before?);
        let percent = |at: usize| {
            let used = now[at].saturating_sub(before[at]) as f64;
            100.0 * used / (time.as_nanos() as f64 * processors() as f64)
        };
        (time.as_secs() >= 1).then(|| Usage { own_percent: percent(0), others_percent: percent(1) })
    }
}

impl UsageMeter {
    /// The processor time that this process used since; `None` where that is not known.
    #[must_use]
    pub fn own_time(&self) -> Option<Duration> {
        Some(Duration::from_nanos(system::used()?[0].saturating_sub(self.before?[0])))
    }
}

/// The processor time that the calling thread has used; `None` where that is not known.
#[must_use]
pub fn thread_time() -> Option<Duration> {
    system::thread().map(Duration::from_nanos)
}

/// Keeps the calling thread, and all that it will start, to its share of the processors that it may run on:
/// the part `index` of `of` equal ones, at least one processor. Returns how many there were before; `None`
/// where the system cannot, and nothing is changed.
#[must_use]
pub fn keep_to_share(index: usize, of: usize) -> Option<usize> {
    system::keep_to(|processors| share(processors, index, of))
}

/// Which of so many processors are the part `index` of `of`.
fn share(processors: usize, index: usize, of: usize) -> std::ops::Range<usize> {
    let of = of.max(1);
    let first = (index * processors / of).min(processors.saturating_sub(1));
    first..((index + 1) * processors / of).max(first + 1)
}

fn want_more(threads: usize, processors: usize, others: u32) -> bool {
    let little = (LITTLE as usize).saturating_add(LITTLE_OF_EACH as usize * processors);
    let others = others as usize;
    others > little && threads * 1000 + others > processors * 1000 + little
}

/// Looks, where the last look is some time ago. `now` is in nanoseconds of any clock.
pub fn look(now: u64) {
    let last = LOAD.looked_at.load(Ordering::Relaxed);
    if now.wrapping_sub(last) < LOOK {
        return;
    }
    // One thread looks.
    if LOAD.looked_at.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return;
    }
    let Some([_, for_others]) = system::used() else { return };
    let before = LOAD.for_others.swap(for_others, Ordering::Relaxed);
    if before != 0 {
        let others = thousandths(for_others.saturating_sub(before), now - last);
        LOAD.others.store(others, Ordering::Relaxed);
    }
}

fn thousandths(used: u64, time: u64) -> u32 {
    u32::try_from(used.saturating_mul(1000) / time.max(1)).unwrap_or(u32::MAX)
}

/// Processors that this process may run on. Its control group may give it less of their time: what others use
/// of the rest is then no loss.
fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| system::processors().unwrap_or_else(crate::team::usable_processors))
}

/// The nanoseconds that some processors have worked, of what the system writes to `/proc/stat`, which counts
/// in `tick` nanoseconds. Lines: `cpu3 user nice system idle iowait irq softirq steal …`.
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux has such a file"))]
fn worked(stat: &[u8], is_ours: impl Fn(usize) -> bool, tick: u64) -> Option<u64> {
    let mut ticks = 0u64;
    let mut seen = false;
    for line in stat.split(|byte| *byte == b'\n') {
        let Some(line) = line.strip_prefix(b"cpu") else { break };
        let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        // The first line is the sum of all, and has no number.
        let Some(number) = (line.first() != Some(&b' ')).then(|| words.next().and_then(parse)).flatten()
        else {
            continue;
        };
        if !is_ours(number as usize) {
            continue;
        }
        seen = true;
        for (column, word) in words.take(8).enumerate() {
            // Neither idle nor waiting for a disk.
            if column != 3 && column != 4 {
                ticks = ticks.checked_add(parse(word)?)?;
            }
        }
    }
    seen.then(|| ticks.checked_mul(tick)).flatten()
}

fn parse(word: &[u8]) -> Option<u64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "the standard library has no functions for these questions")]
mod system {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::sync::{Mutex, OnceLock};

    /// What is kept between looks, so that a look allocates nothing.
    struct Kept {
        file: File,
        text: Vec<u8>,
        ours: libc::cpu_set_t,
        tick: u64,
    }

    /// The nanoseconds that this process has used, and that the processors have worked for others; `None`
    /// where the system does not say.
    pub fn used() -> Option<[u64; 2]> {
        static KEPT: OnceLock<Option<Mutex<Kept>>> = OnceLock::new();
        let mut kept = KEPT.get_or_init(|| open().map(Mutex::new)).as_ref()?.lock().ok()?;
        let Kept { file, text, ours, tick } = &mut *kept;
        let length = file.read_at(text, 0).ok()?;
        // SAFETY: looks at a bit of the set, which has this many.
        let is_ours =
            |number| number < libc::CPU_SETSIZE as usize && unsafe { libc::CPU_ISSET(number, ours) };
        let own = own()?;
        Some([own, super::worked(&text[..length], is_ours, *tick)?.saturating_sub(own)])
    }

    /// How many processors this process may run on.
    pub fn processors() -> Option<usize> {
        // SAFETY: counts the bits of the set.
        let count = unsafe { libc::CPU_COUNT(&affinity()?) };
        usize::try_from(count).ok().filter(|count| *count > 0)
    }

    /// The processors that this process may run on.
    fn affinity() -> Option<libc::cpu_set_t> {
        // SAFETY: a set of bits, for which zeros are a value.
        let mut ours: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: fills the set in.
        let failed = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut ours) } != 0;
        (!failed).then_some(ours)
    }

    /// Keeps to some of the processors that this thread may run on; returns how many there were.
    pub fn keep_to(share: impl Fn(usize) -> std::ops::Range<usize>) -> Option<usize> {
        let ours = affinity()?;
        // SAFETY: looks at a bit of the set, which has this many.
        let is_ours = |number: &usize| unsafe { libc::CPU_ISSET(*number, &ours) };
        let all: Vec<usize> = (0..libc::CPU_SETSIZE as usize).filter(is_ours).collect();
        let kept = all.get(share(all.len()))?;
        // SAFETY: a set of bits, for which zeros are a value.
        let mut wanted: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for &number in kept {
            // SAFETY: sets a bit of the set, which has this many.
            unsafe { libc::CPU_SET(number, &mut wanted) };
        }
        // SAFETY: reads the set.
        let failed =
            unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const wanted) } != 0;
        (!failed).then_some(all.len())
    }

    fn open() -> Option<Kept> {
        let ours = affinity()?;
        // SAFETY: a query.
        let ticks = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok()?;
        let tick = 1_000_000_000u64.checked_div(ticks)?;
        // The lines of 1,024 processors.
        Some(Kept { file: File::open("/proc/stat").ok()?, text: vec![0; 1 << 17], ours, tick })
    }

    /// The nanoseconds that this process has used.
    fn own() -> Option<u64> {
        clock(libc::CLOCK_PROCESS_CPUTIME_ID)
    }

    /// The nanoseconds that this thread has used.
    pub fn thread() -> Option<u64> {
        clock(libc::CLOCK_THREAD_CPUTIME_ID)
    }

    fn clock(which: libc::clockid_t) -> Option<u64> {
        // SAFETY: a structure of integers, for which zeros are a value.
        let mut time: libc::timespec = unsafe { std::mem::zeroed() };
        // SAFETY: fills the structure in.
        let failed = unsafe { libc::clock_gettime(which, &raw mut time) } != 0;
        let whole = u64::try_from(time.tv_sec).ok()?.checked_mul(1_000_000_000)?;
        (!failed).then(|| whole.checked_add(u64::try_from(time.tv_nsec).ok()?)).flatten()
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use std::time::{Duration, Instant};

        #[test]
        fn what_this_process_does_is_not_anothers() {
            let Some([own_before, others_before]) = used() else {
                eprintln!("SKIPPED: this system does not say what its processors do");
                return;
            };
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(300) {
                std::hint::spin_loop();
            }
            let [own, others] = used().unwrap();
            assert!(own > own_before);
            assert!(processors().unwrap() >= std::thread::available_parallelism().unwrap().get());
            // All that the processors can have done; the system counts in hundredths of a second.
            let all = super::super::processors() as u64 * begun.elapsed().as_nanos() as u64;
            let counted = 20_000_000 * super::super::processors() as u64;
            let sum = own - own_before + others.saturating_sub(others_before);
            assert!(sum <= all + counted, "{sum} of {all}");
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    /// Not known.
    pub fn processors() -> Option<usize> {
        None
    }

    /// Not known.
    pub fn used() -> Option<[u64; 2]> {
        None
    }

    /// Nothing that is done here.
    pub fn keep_to(_share: impl Fn(usize) -> std::ops::Range<usize>) -> Option<usize> {
        None
    }

    /// Not known.
    pub fn thread() -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_processor_is_somebodys() {
        assert_eq!([share(8, 0, 2), share(8, 1, 2)], [0..4, 4..8]);
        assert_eq!([share(2, 0, 4), share(2, 1, 4), share(2, 3, 4)], [0..1, 0..1, 1..2]);
        assert_eq!([share(5, 0, 2), share(5, 1, 2), share(1, 0, 1)], [0..2, 2..5, 0..1]);
    }

    #[test]
    fn the_columns_of_our_processors_are_added_up() {
        let stat = b"cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 4 1000 2000 8 16 32 5 5\n\
                     cpu1 100 0 0 7 7 0 0 0 0 0\ncpu12 1000 0 0 0 0 0 0 0 0 0\nintr 5 5\ncpu3 1 1 1\n";
        assert_eq!(worked(stat, |_| true, 10), Some(11_630));
        assert_eq!(worked(stat, |number| number == 0, 1), Some(63));
        assert_eq!(worked(stat, |number| number == 12, 1), Some(1000));
        assert_eq!(worked(stat, |number| number == 5, 1), None, "it is not there");
        assert_eq!(worked(b"", |_| true, 1), None);
        assert_eq!(worked(b"cpu0 1 x 3", |_| true, 1), None);
        assert_eq!(worked(b"cpu0 18446744073709551615 1", |_| true, 1), None, "too large");
    }

    #[test]
    fn a_team_is_oversubscribed_where_all_do_not_fit() {
        assert!(!want_more(2, 2, 0));
        assert!(!want_more(2, 2, LITTLE), "services of the system");
        assert!(want_more(2, 2, LITTLE + 2 * LITTLE_OF_EACH + 1));
        assert!(!want_more(2, 64, 50_000), "there is room for both, also where a control group allows two");
        assert!(!want_more(64, 64, 1_000), "what 64 processors' times are known to");
        assert!(want_more(16, 16, 1_000));
        assert!(want_more(60, 64, 7_000));
        assert!(!want_more(100, 64, 100), "too many threads are not another program");
    }

    #[test]
    fn shares_are_thousandths_of_the_time() {
        assert_eq!(thousandths(LOOK, LOOK), 1000);
        assert_eq!(thousandths(3 * LOOK / 2, LOOK), 1500);
        assert_eq!(thousandths(0, 0), 0);
        assert_eq!(thousandths(u64::MAX, 1), u32::MAX);
    }
}
