//! CPU load caused by other programs on the CPUs available to this process.
//!
//! The thread that opens regions periodically compares the system's counters of busy CPU time with the CPU
//! time of this process. Other virtual machines count too, if the hypervisor reports stolen time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Nanoseconds between two samples. The system counts in hundredths of a second.
const SAMPLE_INTERVAL_NS: u64 = 200_000_000;
/// Load below this, plus [`NOISE_PER_CPU_MILLI`] per CPU, is ignored as noise: system services run
/// everywhere.
const NOISE_MILLI_CPUS: u32 = 250;
/// The part of the noise per CPU: its time is known to a hundredth of a second.
const NOISE_PER_CPU_MILLI: u32 = 25;
/// Teams of more threads always run: one thread would be far slower than many that wait.
const MAX_SMALL_TEAM: usize = 4;

/// The CPU load of other programs in the last sample.
struct ForeignLoad {
    sampled_at_ns: AtomicU64,
    /// CPU nanoseconds used by others at the last sample.
    busy_ns: AtomicU64,
    /// CPUs used by others between the last two samples, in thousandths.
    milli_cpus: AtomicU32,
}

static LOAD: ForeignLoad = ForeignLoad {
    sampled_at_ns: AtomicU64::new(0),
    busy_ns: AtomicU64::new(0),
    milli_cpus: AtomicU32::new(0),
};

/// The number of CPUs that this process may use at once.
pub fn usable_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// Returns whether `threads` threads, with the load of others, need more CPUs than there are.
pub fn is_oversubscribed(threads: usize) -> bool {
    threads > cpus() || exceeds_capacity(threads, cpus(), LOAD.milli_cpus.load(Ordering::Relaxed))
}

/// Returns whether one thread finishes the work of a small team sooner than the team.
///
/// Threads that synchronise after every piece of work advance only while all of them have a CPU, and each has
/// its CPU half of the time if another program competes for it: with `m` such programs, about `0.5^m` of the
/// time. One of `n` threads does at least `1 / n` of the work in that time, in fact more, because teams do
/// not scale perfectly.
pub fn prefers_single_thread(threads: usize) -> bool {
    threads <= MAX_SMALL_TEAM && is_oversubscribed(threads) && {
        // A program that competes for a CPU with us uses half of it.
        let programs = 2.0 * f64::from(LOAD.milli_cpus.load(Ordering::Relaxed)) / 1e3;
        0.5f64.powf(programs) < 1.2 / threads as f64
    }
}

/// Measures the CPU usage of this process and of others over a period.
#[derive(Clone, Copy, Debug)]
pub struct UsageMeter {
    started: Instant,
    /// CPU nanoseconds used by this process and by others at the start; `None` if unknown.
    before: Option<[u64; 2]>,
}

/// CPU usage in percent of the time of the CPUs available to this process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuUsage {
    /// This process.
    pub own_percent: f64,
    /// Other programs, and other virtual machines if the hypervisor reports them.
    pub others_percent: f64,
}

impl UsageMeter {
    /// Starts measuring.
    #[must_use]
    pub fn from_now() -> Self {
        Self { started: Instant::now(), before: system::cpu_times() }
    }

    /// The usage since the start; `None` if unknown, or within the first second, which is too short for the
    /// system's counters.
    #[must_use]
    pub fn usage(&self) -> Option<CpuUsage> {
        let time = self.started.elapsed();
        let (now, before) = (system::cpu_times()?, self.before?);
        let percent = |at: usize| {
            let used = now[at].saturating_sub(before[at]) as f64;
            100.0 * used / (time.as_nanos() as f64 * cpus() as f64)
        };
        (time.as_secs() >= 1).then(|| CpuUsage { own_percent: percent(0), others_percent: percent(1) })
    }
}

impl UsageMeter {
    /// The CPU time used by this process since the start; `None` if unknown.
    #[must_use]
    pub fn own_time(&self) -> Option<Duration> {
        Some(Duration::from_nanos(system::cpu_times()?[0].saturating_sub(self.before?[0])))
    }
}

/// The CPU time used by the calling thread; `None` if unknown.
#[must_use]
pub fn thread_time() -> Option<Duration> {
    system::thread().map(Duration::from_nanos)
}

/// Divides the CPUs of the calling thread into `count` equal shares, and pins it and all threads that it
/// will start to share `index`, at least one CPU. Returns the previous number of CPUs; `None`, with nothing
/// changed, if the system does not support it.
#[must_use]
pub fn pin_to_share(index: usize, count: usize) -> Option<usize> {
    system::pin_to(|cpus| share(cpus, index, count))
}

/// The system's number of the calling thread; 0 if there is none.
pub fn thread_id() -> i32 {
    system::thread_id()
}

/// The CPU on which the calling thread runs; `None` if unknown.
pub fn current_cpu() -> Option<usize> {
    system::current_cpu()
}

/// Allows a thread of this process all CPUs of the calling thread except `cpu`; returns false, with nothing
/// changed, if none would be left, or if the system does not support it.
pub fn allow_own_cpus_except(cpu: Option<usize>, thread_id: i32) -> bool {
    system::allow_own_cpus_except(cpu, thread_id).is_some()
}

/// The CPUs of share `index`, of `count` equal shares of `cpus` CPUs.
fn share(cpus: usize, index: usize, count: usize) -> std::ops::Range<usize> {
    let count = count.max(1);
    let first = (index * cpus / count).min(cpus.saturating_sub(1));
    first..((index + 1) * cpus / count).max(first + 1)
}

fn exceeds_capacity(threads: usize, cpus: usize, others: u32) -> bool {
    let noise = (NOISE_MILLI_CPUS as usize).saturating_add(NOISE_PER_CPU_MILLI as usize * cpus);
    let others = others as usize;
    others > noise && threads * 1000 + others > cpus * 1000 + noise
}

/// Samples the load if the last sample is old enough. `now` is in nanoseconds of any clock.
pub fn sample(now: u64) {
    let last = LOAD.sampled_at_ns.load(Ordering::Relaxed);
    if now.wrapping_sub(last) < SAMPLE_INTERVAL_NS {
        return;
    }
    // Only one thread takes the sample.
    if LOAD.sampled_at_ns.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return;
    }
    let Some([_, busy_ns]) = system::cpu_times() else { return };
    let before = LOAD.busy_ns.swap(busy_ns, Ordering::Relaxed);
    if before != 0 {
        let others = milli_cpus(busy_ns.saturating_sub(before), now - last);
        LOAD.milli_cpus.store(others, Ordering::Relaxed);
    }
}

/// Sets the load of others until the next sample.
#[cfg(test)]
pub fn pretend(milli_cpus: u32) {
    LOAD.milli_cpus.store(milli_cpus, Ordering::Relaxed);
}

fn milli_cpus(used: u64, time: u64) -> u32 {
    u32::try_from(used.saturating_mul(1000) / time.max(1)).unwrap_or(u32::MAX)
}

/// The number of CPUs in this process's affinity mask. Its control group may have a smaller quota: load that
/// others cause on the rest does not slow this process down.
fn cpus() -> usize {
    static CPUS: OnceLock<usize> = OnceLock::new();
    *CPUS.get_or_init(|| system::cpus().unwrap_or_else(usable_cpus))
}

/// The busy time in nanoseconds of the allowed CPUs, from the text of `/proc/stat`, which counts in ticks of
/// `tick_ns`. Lines: `cpu3 user nice system idle iowait irq softirq steal …`.
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux has such a file"))]
fn busy_ns(stat: &[u8], is_allowed: impl Fn(usize) -> bool, tick_ns: u64) -> Option<u64> {
    let mut ticks = 0u64;
    let mut seen = false;
    for line in stat.split(|byte| *byte == b'\n') {
        let Some(line) = line.strip_prefix(b"cpu") else { break };
        let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        // The first line is the total, and has no number.
        let Some(number) = (line.first() != Some(&b' ')).then(|| words.next().and_then(parse)).flatten()
        else {
            continue;
        };
        if !is_allowed(number as usize) {
            continue;
        }
        seen = true;
        for (column, word) in words.take(8).enumerate() {
            // Skip idle and I/O wait.
            if column != 3 && column != 4 {
                ticks = ticks.checked_add(parse(word)?)?;
            }
        }
    }
    seen.then(|| ticks.checked_mul(tick_ns)).flatten()
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

    /// The open file and buffer, kept so that a sample allocates nothing.
    struct ProcStatReader {
        file: File,
        text: Vec<u8>,
        allowed: libc::cpu_set_t,
        tick_ns: u64,
    }

    /// CPU nanoseconds used by this process and by others; `None` if the system does not report them.
    pub fn cpu_times() -> Option<[u64; 2]> {
        static READER: OnceLock<Option<Mutex<ProcStatReader>>> = OnceLock::new();
        let mut reader = READER.get_or_init(|| open().map(Mutex::new)).as_ref()?.lock().ok()?;
        let ProcStatReader { file, text, allowed, tick_ns } = &mut *reader;
        let length = file.read_at(text, 0).ok()?;
        // SAFETY: reads one bit of the set; the index is in range.
        let is_allowed =
            |number| number < libc::CPU_SETSIZE as usize && unsafe { libc::CPU_ISSET(number, allowed) };
        let process_ns = process_ns()?;
        Some([process_ns, super::busy_ns(&text[..length], is_allowed, *tick_ns)?.saturating_sub(process_ns)])
    }

    /// The number of CPUs in the affinity mask of this process.
    pub fn cpus() -> Option<usize> {
        // SAFETY: counts the bits of the set.
        let count = unsafe { libc::CPU_COUNT(&affinity()?) };
        usize::try_from(count).ok().filter(|count| *count > 0)
    }

    /// The affinity mask of this process.
    fn affinity() -> Option<libc::cpu_set_t> {
        // SAFETY: a bit set, for which zeros are valid.
        let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: fills in the set.
        let failed =
            unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut allowed) } != 0;
        (!failed).then_some(allowed)
    }

    /// Pins this thread to a range of its CPUs; returns the number of CPUs before.
    pub fn pin_to(share: impl Fn(usize) -> std::ops::Range<usize>) -> Option<usize> {
        let allowed = affinity()?;
        // SAFETY: reads one bit of the set; the index is in range.
        let is_allowed = |number: &usize| unsafe { libc::CPU_ISSET(*number, &allowed) };
        let cpus: Vec<usize> = (0..libc::CPU_SETSIZE as usize).filter(is_allowed).collect();
        let share = cpus.get(share(cpus.len()))?;
        // SAFETY: a bit set, for which zeros are valid.
        let mut selected: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for &number in share {
            // SAFETY: sets one bit of the set; the index is in range.
            unsafe { libc::CPU_SET(number, &mut selected) };
        }
        // SAFETY: reads the set.
        let failed =
            unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const selected) } != 0;
        (!failed).then_some(cpus.len())
    }

    pub fn thread_id() -> i32 {
        // glibc has a function for it since 2.30 only; packages run with 2.28.
        // SAFETY: a query without arguments.
        let id = unsafe { libc::syscall(libc::SYS_gettid) };
        i32::try_from(id).unwrap_or(0)
    }

    pub fn current_cpu() -> Option<usize> {
        // SAFETY: a query.
        usize::try_from(unsafe { libc::sched_getcpu() }).ok()
    }

    pub fn allow_own_cpus_except(cpu: Option<usize>, thread_id: i32) -> Option<()> {
        let mut cpus = affinity()?;
        if let Some(cpu) = cpu.filter(|cpu| *cpu < libc::CPU_SETSIZE as usize) {
            // SAFETY: clears one bit of the set.
            unsafe { libc::CPU_CLR(cpu, &mut cpus) };
        }
        // SAFETY: counts the bits of the set, and reads it.
        let succeeded = unsafe {
            libc::CPU_COUNT(&cpus) > 0
                && libc::sched_setaffinity(thread_id, size_of::<libc::cpu_set_t>(), &raw const cpus) == 0
        };
        succeeded.then_some(())
    }

    fn open() -> Option<ProcStatReader> {
        let allowed = affinity()?;
        // SAFETY: a query.
        let ticks = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok()?;
        let tick_ns = 1_000_000_000u64.checked_div(ticks)?;
        // Room for the lines of 1,024 CPUs.
        Some(ProcStatReader {
            file: File::open("/proc/stat").ok()?,
            text: vec![0; 1 << 17],
            allowed,
            tick_ns,
        })
    }

    /// CPU nanoseconds used by this process.
    fn process_ns() -> Option<u64> {
        clock(libc::CLOCK_PROCESS_CPUTIME_ID)
    }

    /// CPU nanoseconds used by this thread.
    pub fn thread() -> Option<u64> {
        clock(libc::CLOCK_THREAD_CPUTIME_ID)
    }

    fn clock(which: libc::clockid_t) -> Option<u64> {
        // SAFETY: a structure of integers, for which zeros are valid.
        let mut time: libc::timespec = unsafe { std::mem::zeroed() };
        // SAFETY: fills in the structure.
        let failed = unsafe { libc::clock_gettime(which, &raw mut time) } != 0;
        let whole = u64::try_from(time.tv_sec).ok()?.checked_mul(1_000_000_000)?;
        (!failed).then(|| whole.checked_add(u64::try_from(time.tv_nsec).ok()?)).flatten()
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use std::time::{Duration, Instant};

        #[test]
        fn own_time_is_not_counted_as_foreign_load() {
            let Some([own_before, others_before]) = cpu_times() else {
                eprintln!("SKIPPED: this system does not report CPU times");
                return;
            };
            let started = Instant::now();
            while started.elapsed() < Duration::from_millis(300) {
                std::hint::spin_loop();
            }
            let [own, others] = cpu_times().unwrap();
            assert!(own > own_before);
            assert!(cpus().unwrap() >= std::thread::available_parallelism().unwrap().get());
            // The time of all CPUs; the system counts in hundredths of a second.
            let all = super::super::cpus() as u64 * started.elapsed().as_nanos() as u64;
            let counted = 20_000_000 * super::super::cpus() as u64;
            let sum = own - own_before + others.saturating_sub(others_before);
            assert!(sum <= all + counted, "{sum} of {all}");
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    /// Not known.
    pub fn cpus() -> Option<usize> {
        None
    }

    /// Not known.
    pub fn cpu_times() -> Option<[u64; 2]> {
        None
    }

    /// Not supported.
    pub fn pin_to(_share: impl Fn(usize) -> std::ops::Range<usize>) -> Option<usize> {
        None
    }

    /// Not known.
    pub fn thread_id() -> i32 {
        0
    }

    /// Not known.
    pub fn current_cpu() -> Option<usize> {
        None
    }

    /// Not supported.
    pub fn allow_own_cpus_except(_cpu: Option<usize>, _thread_id: i32) -> Option<()> {
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
    fn shares_cover_all_cpus() {
        assert_eq!([share(8, 0, 2), share(8, 1, 2)], [0..4, 4..8]);
        assert_eq!([share(2, 0, 4), share(2, 1, 4), share(2, 3, 4)], [0..1, 0..1, 1..2]);
        assert_eq!([share(5, 0, 2), share(5, 1, 2), share(1, 0, 1)], [0..2, 2..5, 0..1]);
    }

    #[test]
    fn columns_of_allowed_cpus_are_summed() {
        let stat = b"cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 4 1000 2000 8 16 32 5 5\n\
                     cpu1 100 0 0 7 7 0 0 0 0 0\ncpu12 1000 0 0 0 0 0 0 0 0 0\nintr 5 5\ncpu3 1 1 1\n";
        assert_eq!(busy_ns(stat, |_| true, 10), Some(11_630));
        assert_eq!(busy_ns(stat, |number| number == 0, 1), Some(63));
        assert_eq!(busy_ns(stat, |number| number == 12, 1), Some(1000));
        assert_eq!(busy_ns(stat, |number| number == 5, 1), None, "no such CPU");
        assert_eq!(busy_ns(b"", |_| true, 1), None);
        assert_eq!(busy_ns(b"cpu0 1 x 3", |_| true, 1), None);
        assert_eq!(busy_ns(b"cpu0 18446744073709551615 1", |_| true, 1), None, "too large");
    }

    #[test]
    fn a_team_is_oversubscribed_if_it_does_not_fit_with_the_load() {
        assert!(!exceeds_capacity(2, 2, 0));
        assert!(!exceeds_capacity(2, 2, NOISE_MILLI_CPUS), "services of the system");
        assert!(exceeds_capacity(2, 2, NOISE_MILLI_CPUS + 2 * NOISE_PER_CPU_MILLI + 1));
        assert!(!exceeds_capacity(2, 64, 50_000), "both fit, even if a control group allows two");
        assert!(!exceeds_capacity(64, 64, 1_000), "the resolution of the counters of 64 CPUs");
        assert!(exceeds_capacity(16, 16, 1_000));
        assert!(exceeds_capacity(60, 64, 7_000));
        assert!(!exceeds_capacity(100, 64, 100), "the excess is ours, not another program's");
    }

    #[test]
    fn load_is_measured_in_thousandths_of_a_cpu() {
        assert_eq!(milli_cpus(SAMPLE_INTERVAL_NS, SAMPLE_INTERVAL_NS), 1000);
        assert_eq!(milli_cpus(3 * SAMPLE_INTERVAL_NS / 2, SAMPLE_INTERVAL_NS), 1500);
        assert_eq!(milli_cpus(0, 0), 0);
        assert_eq!(milli_cpus(u64::MAX, 1), u32::MAX);
    }
}
