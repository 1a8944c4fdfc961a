//! The team of threads that oneDNN's and native kernels share, so that the two do not compete for the same
//! cores. It belongs to `stratus-threads`, or to an OpenMP runtime that oneDNN is linked with; without
//! either, the calling thread works alone.

use crate::ffi::{Context, with_default_fp_mode};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use stratus_threads::prefers_single_thread;

type GompParallel = unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint);
type OmpThreadNumber = unsafe extern "C" fn() -> c_int;
type OmpSetThreads = unsafe extern "C" fn(c_int);
type OmpMaxThreads = unsafe extern "C" fn() -> c_int;

/// The maximum number of threads of a team: work is divided in arrays on the stack.
pub const MAX_THREADS: usize = 64;

/// The threads that kernels run on.
#[derive(Clone)]
pub struct ThreadTeam {
    threads: usize,
    openmp: Option<OpenMp>,
}

/// The source of threads.
#[derive(Clone)]
enum OpenMp {
    /// `stratus-threads`, on which oneDNN runs too.
    Stratus {
        // Keeps oneDNN loaded.
        _context: Context,
    },
    /// The OpenMP runtime that oneDNN is linked with.
    Library(OpenMpRuntime),
}

/// An OpenMP runtime.
#[derive(Clone)]
struct OpenMpRuntime {
    parallel: GompParallel,
    thread_number: OmpThreadNumber,
    team_size: OmpThreadNumber,
    set_threads: OmpSetThreads,
    max_threads: OmpMaxThreads,
    // Keeps oneDNN loaded, and so its dependencies.
    _context: Context,
}

impl OpenMpRuntime {
    /// The runtimes of LLVM and Intel also export GNU's interface (`GOMP_parallel`).
    fn from_context(context: &Context) -> Option<Self> {
        // SAFETY: the types are those of the GNU OpenMP interface and of OpenMP's own API.
        unsafe {
            Some(Self {
                parallel: context.symbol(b"GOMP_parallel\0")?,
                thread_number: context.symbol(b"omp_get_thread_num\0")?,
                team_size: context.symbol(b"omp_get_num_threads\0")?,
                set_threads: context.symbol(b"omp_set_num_threads\0")?,
                max_threads: context.symbol(b"omp_get_max_threads\0")?,
                _context: context.clone(),
            })
        }
    }
}

impl OpenMp {
    /// The source of threads of `context`'s library.
    fn from_context(context: &Context) -> Option<Self> {
        if context.is_on_stratus_threads() {
            return Some(Self::Stratus { _context: context.clone() });
        }
        OpenMpRuntime::from_context(context).map(Self::Library)
    }

    fn max_threads(&self) -> usize {
        match self {
            Self::Stratus { .. } => stratus_threads::max_threads(),
            // SAFETY: a query without arguments.
            Self::Library(runtime) => unsafe { (runtime.max_threads)() as usize },
        }
    }

    /// The calling thread's number in its team, and the team's size.
    fn thread_and_size(&self) -> [usize; 2] {
        match self {
            Self::Stratus { .. } => [stratus_threads::thread_number(), stratus_threads::team_size()],
            // SAFETY: queries without arguments.
            Self::Library(runtime) => unsafe {
                [(runtime.thread_number)() as usize, (runtime.team_size)() as usize]
            },
        }
    }

    /// Calls `function(data)` on a team of `threads`.
    ///
    /// # Safety
    /// `function` may be called with `data` by several threads at a time, and must not unwind.
    unsafe fn parallel(
        &self,
        function: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
        threads: usize,
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            match self {
                Self::Stratus { .. } => stratus_threads::parallel(threads, function, data),
                Self::Library(runtime) => (runtime.parallel)(function, data, threads as c_uint, 0),
            }
        }
    }
}

struct Job<'a> {
    body: &'a (dyn Fn(usize) + Sync),
    threads: usize,
    openmp: &'a OpenMp,
    panicked: AtomicBool,
}

unsafe extern "C" fn run_job(data: *mut c_void) {
    // SAFETY: `data` is the job, which `ThreadTeam::run` keeps alive until the parallel region ends.
    let job = unsafe { &*data.cast::<Job<'_>>() };
    let [thread, size] = job.openmp.thread_and_size();
    // The runtime may give fewer threads than requested: each then does the work of several, and the division
    // stays the same.
    let shares = (thread..job.threads).step_by(size.max(1));
    // A panic must not unwind through the C frames of the OpenMP runtime.
    let work = || catch_unwind(AssertUnwindSafe(|| shares.for_each(|share| (job.body)(share))));
    if with_default_fp_mode(thread == 0, work).is_err() {
        job.panicked.store(true, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for ThreadTeam {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a team of {} threads", self.threads)
    }
}

impl ThreadTeam {
    /// The team of `context`'s library; 0 `threads` uses its runtime's default.
    #[must_use]
    pub fn for_library(context: &Context, threads: usize) -> Self {
        let Some(openmp) = OpenMp::from_context(context) else { return Self { threads: 1, openmp: None } };
        let threads = if threads == 0 { openmp.max_threads().max(1) } else { threads };
        Self { threads: threads.min(MAX_THREADS), openmp: Some(openmp) }
    }

    /// A team of the calling thread alone.
    #[cfg(test)]
    pub fn single() -> Self {
        Self::emulating(1)
    }

    /// A team of the calling thread, which does the work of `threads` threads in sequence.
    #[cfg(test)]
    pub fn emulating(threads: usize) -> Self {
        Self { threads, openmp: None }
    }

    /// The number of threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Returns whether the threads are oneDNN's too.
    #[must_use]
    pub fn uses_openmp(&self) -> bool {
        self.openmp.is_some()
    }

    /// Returns whether they are those of `stratus-threads`, which yield to other programs while waiting.
    #[must_use]
    pub fn uses_stratus_threads(&self) -> bool {
        matches!(self.openmp, Some(OpenMp::Stratus { .. }))
    }

    /// Makes oneDNN use this many threads when called from this thread: OpenMP keeps the number per thread.
    pub fn apply_thread_count(&self) {
        match &self.openmp {
            Some(OpenMp::Stratus { .. }) => stratus_threads::set_max_threads(self.threads),
            // SAFETY: sets a number of the calling thread.
            Some(OpenMp::Library(runtime)) => unsafe { (runtime.set_threads)(self.threads as c_int) },
            None => (),
        }
    }

    /// Calls `body(thread)` for every thread `0..threads()`, in parallel, and returns when all have finished.
    ///
    /// # Panics
    /// If `body` panics.
    pub fn run(&self, body: &(dyn Fn(usize) + Sync)) {
        match &self.openmp {
            Some(openmp)
                if self.threads > 1
                    && !(self.uses_stratus_threads() && prefers_single_thread(self.threads)) =>
            {
                let job = Job { body, threads: self.threads, openmp, panicked: AtomicBool::new(false) };
                // SAFETY: `job` outlives the call, which returns when every thread has left `run_job`; `body`
                // is `Sync`.
                unsafe {
                    openmp.parallel(run_job, (&raw const job).cast_mut().cast(), self.threads);
                };
                assert!(!job.panicked.load(Ordering::Relaxed), "a kernel panicked on one of its threads");
            }
            _ => (0..self.threads).for_each(body),
        }
    }

    /// [`ThreadTeam::run`] with exclusive access of thread `t` to `parts[t]`.
    ///
    /// # Panics
    /// If there are fewer parts than threads, or `body` panics.
    pub fn run_parts<P: Send>(&self, parts: &mut [P], body: &(dyn Fn(usize, &mut P) + Sync)) {
        assert!(parts.len() >= self.threads, "{} parts for {} threads", parts.len(), self.threads);
        let shared = SharedParts(parts.as_mut_ptr().cast::<UnsafeCell<P>>());
        self.run(&|thread| {
            // SAFETY: each thread number occurs once and is less than `threads <= parts.len()`, so no two
            // threads have the same element; `parts` is exclusively borrowed until all have finished.
            let part = unsafe { &mut *shared.get(thread) };
            body(thread, part);
        });
    }

    /// [`ThreadTeam::run_parts`] on the calling thread, for work so small that waking the team would cost
    /// more.
    pub fn run_serially<P>(&self, parts: &mut [P], body: &(dyn Fn(usize, &mut P) + Sync)) {
        for (thread, part) in parts.iter_mut().enumerate() {
            body(thread, part);
        }
    }
}

struct SharedParts<P>(*mut UnsafeCell<P>);

impl<P> SharedParts<P> {
    fn get(&self, index: usize) -> *mut P {
        // SAFETY: the caller keeps `index` within the slice that the pointer came from.
        unsafe { UnsafeCell::raw_get(self.0.add(index)) }
    }
}

// SAFETY: only used in `ThreadTeam::run_parts`, where one thread has each element; `P: Send` there.
unsafe impl<P: Send> Sync for SharedParts<P> {}

/// Splits `slice` into consecutive parts of the given lengths, one per thread.
pub fn split_lengths<T>(
    mut slice: &mut [T],
    lengths: impl Iterator<Item = usize>,
) -> [&mut [T]; MAX_THREADS] {
    let mut parts = std::array::from_fn(|_| <&mut [T]>::default());
    for (part, length) in parts.iter_mut().zip(lengths) {
        (*part, slice) = std::mem::take(&mut slice).split_at_mut(length);
    }
    parts
}

/// Zips the threads' parts of two collections.
#[must_use]
pub fn zip_parts<A: Default, B: Default>(
    first: [A; MAX_THREADS],
    second: [B; MAX_THREADS],
) -> [(A, B); MAX_THREADS] {
    let mut parts = first.into_iter().zip(second);
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

/// The `part`-th of `parts` contiguous, nearly equal ranges of `0..count`.
#[must_use]
pub fn split(count: usize, parts: usize, part: usize) -> Range<usize> {
    count * part / parts..count * (part + 1) / parts
}

/// The `number`-th range of `length` in `0..count`; the last one may be shorter.
#[must_use]
pub fn chunk_range(number: usize, length: usize, count: usize) -> Range<usize> {
    number * length..((number + 1) * length).min(count)
}

/// A grid of threads, `[groups, threads per group]`: the largest number of groups that divides `threads` and
/// is at most `parts`.
#[must_use]
pub fn thread_grid(threads: usize, parts: usize) -> [usize; 2] {
    let fits = |groups: &usize| threads.is_multiple_of(*groups) && *groups <= parts;
    let groups = (1..=threads).rev().find(fits).unwrap_or(1);
    [groups, threads / groups]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_installed_library_runs_on_stratus_threads() {
        match crate::library::find() {
            Ok(context)
                if cfg!(target_os = "linux")
                    && context.path().components().any(|c| c.as_os_str() == ".deps") =>
            {
                assert!(ThreadTeam::for_library(&context, 2).uses_stratus_threads());
            }
            Ok(context) => eprintln!("SKIPPED: {} is not the installed library", context.path().display()),
            Err(error) => eprintln!("SKIPPED: {error}"),
        }
    }

    fn teams() -> Vec<ThreadTeam> {
        let mut teams = vec![ThreadTeam::single()];
        match crate::library::find() {
            Ok(context) => teams.extend((1..=5).map(|threads| ThreadTeam::for_library(&context, threads))),
            Err(error) => eprintln!("SKIPPED for teams of more than one thread: {error}"),
        }
        teams
    }

    /// Runs a body that records the threads it was called for; returns the calls of each.
    fn calls(team: &ThreadTeam) -> Vec<u32> {
        let mut calls = vec![0u32; team.threads()];
        team.run_parts(&mut calls, &|_, count| *count += 1);
        calls
    }

    #[test]
    fn every_thread_is_called_once() {
        for team in teams() {
            assert_eq!(calls(&team), vec![1; team.threads()], "{team:?}");
        }
    }

    #[test]
    fn a_team_smaller_than_requested_does_all_the_work() {
        // A parallel region inside another has one thread.
        for team in teams() {
            let mut inner = vec![Vec::new(); team.threads()];
            team.run_parts(&mut inner, &|_, counts| *counts = calls(&team));
            assert_eq!(inner, vec![vec![1; team.threads()]; team.threads()], "{team:?}");
        }
    }

    #[test]
    fn a_panic_in_a_body_reaches_the_caller_and_leaves_the_team_usable() {
        for team in teams() {
            for culprit in 0..team.threads() {
                let result = catch_unwind(AssertUnwindSafe(|| {
                    team.run(&|thread| assert_ne!(thread, culprit, "on purpose"));
                }));
                assert!(result.is_err(), "{team:?} {culprit}");
            }
            assert_eq!(calls(&team), vec![1; team.threads()], "{team:?}");
        }
    }

    #[test]
    fn refuses_fewer_parts_than_threads() {
        for team in teams() {
            let mut parts = vec![0; team.threads() - 1];
            let run = AssertUnwindSafe(|| team.run_parts(&mut parts, &|_, _| ()));
            assert!(catch_unwind(run).is_err(), "{team:?}");
        }
    }

    #[test]
    fn parts_are_consecutive_and_have_their_lengths() {
        let mut numbers: Vec<usize> = (0..10).collect();
        let parts = split_lengths(&mut numbers, [3, 0, 5].into_iter());
        assert_eq!(parts[..4], [&[0, 1, 2][..], &[], &[3, 4, 5, 6, 7], &[]]);
        let too_long = AssertUnwindSafe(|| {
            split_lengths(&mut [0; 3], [2, 2].into_iter());
        });
        assert!(catch_unwind(too_long).is_err());
    }

    #[test]
    fn thread_grids_use_all_threads_and_leave_no_group_idle() {
        for (threads, parts, expected) in [
            (1, 1, [1, 1]),
            (2, 16, [2, 1]),
            (2, 1, [1, 2]),
            (6, 4, [3, 2]),
            (7, 4, [1, 7]),
            (64, 16, [16, 4]),
        ] {
            assert_eq!(thread_grid(threads, parts), expected);
        }
    }

    #[test]
    fn ranges_cover_every_index_once() {
        for count in [0, 1, 2, 7, 64, 1000] {
            for parts in [1, 2, 3, 8] {
                let ranges: Vec<Range<usize>> = (0..parts).map(|p| split(count, parts, p)).collect();
                assert_eq!(ranges[0].start, 0);
                assert_eq!(ranges[parts - 1].end, count);
                assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            }
        }
    }
}
