//! A team of threads: those that oneDNN's kernels run on too, or they would fight for the same cores. They
//! are `stratus-threads`', or those of an OpenMP run time that the library brings; without either, the
//! calling thread is alone.

use crate::ffi::{Context, ordinarily};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use stratus_threads::is_better_alone;

type GompParallel = unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint);
type OmpThreadNumber = unsafe extern "C" fn() -> c_int;
type OmpSetThreads = unsafe extern "C" fn(c_int);
type OmpMaxThreads = unsafe extern "C" fn() -> c_int;

/// Threads of a team, at most: work is divided in arrays on the stack.
pub const MAX_THREADS: usize = 64;

/// The threads that kernels run on.
#[derive(Clone)]
pub struct ThreadTeam {
    threads: usize,
    openmp: Option<OpenMp>,
}

/// What gives kernels threads.
#[derive(Clone)]
enum OpenMp {
    /// `stratus-threads`, on which the library runs too.
    Ours {
        // Keeps the library loaded.
        _context: Context,
    },
    /// An OpenMP run time that the library brings.
    Librarys(RunTime),
}

/// An OpenMP run time.
#[derive(Clone)]
struct RunTime {
    parallel: GompParallel,
    thread_number: OmpThreadNumber,
    team_size: OmpThreadNumber,
    set_threads: OmpSetThreads,
    max_threads: OmpMaxThreads,
    // Keeps oneDNN loaded, and so what it is linked with.
    _context: Context,
}

impl RunTime {
    /// GNU's interface (`GOMP_parallel`) is also exported by the run times of LLVM and Intel.
    fn of(context: &Context) -> Option<Self> {
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
    /// That of `context`'s library.
    fn of(context: &Context) -> Option<Self> {
        if context.is_on_our_threads() {
            return Some(Self::Ours { _context: context.clone() });
        }
        RunTime::of(context).map(Self::Librarys)
    }

    fn max_threads(&self) -> usize {
        match self {
            Self::Ours { .. } => stratus_threads::max_threads(),
            // SAFETY: a query without arguments.
            Self::Librarys(run_time) => unsafe { (run_time.max_threads)() as usize },
        }
    }

    /// The calling thread's number in its team, and the team's size.
    fn place(&self) -> [usize; 2] {
        match self {
            Self::Ours { .. } => [stratus_threads::thread_number(), stratus_threads::team_size()],
            // SAFETY: queries without arguments.
            Self::Librarys(run_time) => unsafe {
                [(run_time.thread_number)() as usize, (run_time.team_size)() as usize]
            },
        }
    }

    /// Calls `function(data)` on a team of `threads`.
    ///
    /// # Safety
    /// `function` may be called with `data` by several threads at a time, and does not unwind.
    unsafe fn parallel(
        &self,
        function: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
        threads: usize,
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            match self {
                Self::Ours { .. } => stratus_threads::parallel(threads, function, data),
                Self::Librarys(run_time) => (run_time.parallel)(function, data, threads as c_uint, 0),
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
    // SAFETY: `data` is the job that `ThreadTeam::run` keeps alive until the parallel region ends.
    let job = unsafe { &*data.cast::<Job<'_>>() };
    let [thread, size] = job.openmp.place();
    // The runtime may give fewer threads than asked for: each then does the work of several, and the division
    // stays the same.
    let shares = (thread..job.threads).step_by(size.max(1));
    // A panic must not unwind through the C frames of the OpenMP runtime.
    let work = || catch_unwind(AssertUnwindSafe(|| shares.for_each(|share| (job.body)(share))));
    if ordinarily(thread == 0, work).is_err() {
        job.panicked.store(true, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for ThreadTeam {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a team of {} threads", self.threads)
    }
}

impl ThreadTeam {
    /// The team of `context`'s library; 0 `threads` are as many as its run time offers.
    #[must_use]
    pub fn of(context: &Context, threads: usize) -> Self {
        let Some(openmp) = OpenMp::of(context) else { return Self { threads: 1, openmp: None } };
        let threads = if threads == 0 { openmp.max_threads().max(1) } else { threads };
        Self { threads: threads.min(MAX_THREADS), openmp: Some(openmp) }
    }

    /// The calling thread alone.
    #[cfg(test)]
    pub fn single() -> Self {
        Self::in_turn(1)
    }

    /// The calling thread, doing the work of `threads` one after the other.
    #[cfg(test)]
    pub fn in_turn(threads: usize) -> Self {
        Self { threads, openmp: None }
    }

    /// Number of threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Whether the threads are the library's.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.openmp.is_some()
    }

    /// Whether they are `stratus-threads`', whose waiting gives way to other programs.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        matches!(self.openmp, Some(OpenMp::Ours { .. }))
    }

    /// Makes the library use this many threads when called from this thread: OpenMP keeps the number per
    /// thread.
    pub fn adopt(&self) {
        match &self.openmp {
            Some(OpenMp::Ours { .. }) => stratus_threads::set_max_threads(self.threads),
            // SAFETY: sets a number of the calling thread.
            Some(OpenMp::Librarys(run_time)) => unsafe { (run_time.set_threads)(self.threads as c_int) },
            None => (),
        }
    }

    /// Calls `body(thread)` for every thread `0..threads()`, in parallel, and returns when all are done.
    ///
    /// # Panics
    /// Where `body` does.
    pub fn run(&self, body: &(dyn Fn(usize) + Sync)) {
        match &self.openmp {
            Some(openmp) if self.threads > 1 && !(self.is_ours() && is_better_alone(self.threads)) => {
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

    /// As [`ThreadTeam::run`]; thread `t` has exclusive access to `parts[t]`.
    ///
    /// # Panics
    /// Where there are fewer parts than threads, or `body` panics.
    pub fn run_parts<P: Send>(&self, parts: &mut [P], body: &(dyn Fn(usize, &mut P) + Sync)) {
        assert!(parts.len() >= self.threads, "{} parts for {} threads", parts.len(), self.threads);
        let shared = SharedParts(parts.as_mut_ptr().cast::<UnsafeCell<P>>());
        self.run(&|thread| {
            // SAFETY: each thread number occurs once and is less than `threads <= parts.len()`, so no two
            // threads have the same element; `parts` is exclusively borrowed until all are done.
            let part = unsafe { &mut *shared.get(thread) };
            body(thread, part);
        });
    }

    /// As [`ThreadTeam::run_parts`], on the calling thread: for work so small that waking the team would cost
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

/// Cuts `slice` into consecutive pieces of the given lengths, one per thread.
pub fn cut<T>(mut slice: &mut [T], lengths: impl Iterator<Item = usize>) -> [&mut [T]; MAX_THREADS] {
    let mut pieces = std::array::from_fn(|_| <&mut [T]>::default());
    for (piece, length) in pieces.iter_mut().zip(lengths) {
        (*piece, slice) = std::mem::take(&mut slice).split_at_mut(length);
    }
    pieces
}

/// Zips the threads' parts of two things.
#[must_use]
pub fn pairs<A: Default, B: Default>(
    first: [A; MAX_THREADS],
    second: [B; MAX_THREADS],
) -> [(A, B); MAX_THREADS] {
    let mut parts = first.into_iter().zip(second);
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

/// The `part`th of `parts` contiguous, nearly equal ranges of `0..count`.
#[must_use]
pub fn split(count: usize, parts: usize, part: usize) -> Range<usize> {
    count * part / parts..count * (part + 1) / parts
}

/// The `number`th range of `length` in `0..count`; the last one may be shorter.
#[must_use]
pub fn piece(number: usize, length: usize, count: usize) -> Range<usize> {
    number * length..((number + 1) * length).min(count)
}

/// A grid of threads, `[groups, threads per group]`: as many groups as divide `threads` evenly and are not
/// more than `parts`.
#[must_use]
pub fn groups(threads: usize, parts: usize) -> [usize; 2] {
    let fits = |groups: &usize| threads.is_multiple_of(*groups) && *groups <= parts;
    let groups = (1..=threads).rev().find(fits).unwrap_or(1);
    [groups, threads / groups]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_that_the_project_brings_runs_on_our_threads() {
        match crate::library::find() {
            Ok(context)
                if cfg!(target_os = "linux")
                    && context.path().components().any(|c| c.as_os_str() == ".deps") =>
            {
                assert!(ThreadTeam::of(&context, 2).is_ours());
            }
            Ok(context) => eprintln!("SKIPPED: {} is another", context.path().display()),
            Err(error) => eprintln!("SKIPPED: {error}"),
        }
    }

    fn teams() -> Vec<ThreadTeam> {
        let mut teams = vec![ThreadTeam::single()];
        match crate::library::find() {
            Ok(context) => teams.extend((1..=5).map(|threads| ThreadTeam::of(&context, threads))),
            Err(error) => eprintln!("SKIPPED for teams of more than one thread: {error}"),
        }
        teams
    }

    /// Runs a body that notes which threads it was called for; returns how often each was.
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
    fn a_smaller_team_than_was_asked_for_does_all_the_work() {
        // A parallel region inside another gets one thread.
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
    fn fewer_parts_than_threads_are_refused() {
        for team in teams() {
            let mut parts = vec![0; team.threads() - 1];
            let run = AssertUnwindSafe(|| team.run_parts(&mut parts, &|_, _| ()));
            assert!(catch_unwind(run).is_err(), "{team:?}");
        }
    }

    #[test]
    fn pieces_are_consecutive_and_have_their_lengths() {
        let mut numbers: Vec<usize> = (0..10).collect();
        let pieces = cut(&mut numbers, [3, 0, 5].into_iter());
        assert_eq!(pieces[..4], [&[0, 1, 2][..], &[], &[3, 4, 5, 6, 7], &[]]);
        let too_long = AssertUnwindSafe(|| {
            cut(&mut [0; 3], [2, 2].into_iter());
        });
        assert!(catch_unwind(too_long).is_err());
    }

    #[test]
    fn groups_have_all_threads_and_something_to_do() {
        for (threads, parts, expected) in [
            (1, 1, [1, 1]),
            (2, 16, [2, 1]),
            (2, 1, [1, 2]),
            (6, 4, [3, 2]),
            (7, 4, [1, 7]),
            (64, 16, [16, 4]),
        ] {
            assert_eq!(groups(threads, parts), expected);
        }
    }

    #[test]
    fn ranges_cover_everything_once() {
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
