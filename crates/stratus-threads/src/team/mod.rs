//! Thread teams, one per thread that opens parallel regions.
//!
//! A *parallel region* is a function that every thread of a team calls. The thread that opens the region is
//! number 0 and takes part. The others sleep or spin between regions, each at its own slot, which holds its
//! next region and its completion count: a small region does not disturb the threads it does not use.
//!
//! A thread's part of a region is *claimed*: by the thread itself when it starts, or, if the system has not
//! scheduled it yet, by the thread that opened the region, once that has finished its own part. Parts may
//! still wait for each other at barriers, because every part that waits has its own thread.
//!
//! If other programs load the CPUs so much that one thread may be faster than a small team, repeated
//! tasks ([`run_repeated`]) are tried in two ways, of which the faster one is kept (`trial`):
//!
//! - The other threads are woken for each region.
//! - They are left asleep, and the thread that opened the region claims all parts: a part that is claimed by
//!   a thread whose CPU is then given to another program takes milliseconds. This needs parts that are known
//!   not to wait for each other ([`with_independent_parts`]). A barrier wakes the others; and if parts wait
//!   for each other in some other way after all, they wake by themselves after a while.
//!
//! If parts may wait for each other, the others are woken in the second way too, but not on the CPU of the
//! thread that opened the region: after a long sleep they would often get that one, and not start before the
//! thread had spun for its whole time slice.

use crate::load;
use crate::trial::{self, UsualTime, WakePolicy};
use crate::wait::{Signal, WaitPolicy, full_fence, now};
use std::cell::{Cell, RefCell, UnsafeCell};
use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};

/// The function that the threads of a team call: a C function and its argument.
pub type Function = unsafe extern "C" fn(*mut c_void);

/// The stack size of a thread, as large as a program's main thread. oneDNN's kernels have buffers on it.
const STACK_BYTES: usize = 8 << 20;

/// The team that a thread is in.
#[derive(Clone, Copy)]
struct TeamContext {
    /// The thread's number in the team.
    number: usize,
    /// The threads of the team.
    size: usize,
    /// True if it is in a region of several threads, directly or through an enclosing region.
    in_parallel: bool,
    /// The team's barrier; null in teams of one thread.
    barrier: *const Barrier,
    /// True for the thread that opened the region while the others have not been woken.
    others_sleep: bool,
}

/// The context outside of regions.
const NO_REGION: TeamContext =
    TeamContext { number: 0, size: 1, in_parallel: false, barrier: std::ptr::null(), others_sleep: false };

thread_local! {
    static CONTEXT: Cell<TeamContext> = const { Cell::new(NO_REGION) };
    /// The contexts of the enclosing regions.
    static OUTER_CONTEXTS: RefCell<Vec<TeamContext>> = const { RefCell::new(Vec::new()) };
    /// The number of threads of the regions that it opens; 0: [`default_threads`].
    static THREADS: Cell<usize> = const { Cell::new(0) };
    /// True in [`with_independent_parts`].
    static INDEPENDENT_PARTS: Cell<bool> = const { Cell::new(false) };
    static POOL: RefCell<Pool> = const { RefCell::new(Pool::new()) };
}

/// The calling thread's number in its team, from 0.
#[must_use]
pub fn thread_number() -> usize {
    CONTEXT.get().number
}

/// The number of threads of the calling thread's team; 1 outside of regions.
#[must_use]
pub fn team_size() -> usize {
    CONTEXT.get().size
}

/// Returns whether the calling thread is in a region of several threads.
pub fn in_parallel() -> bool {
    CONTEXT.get().in_parallel
}

/// The number of threads of the regions that the calling thread opens.
#[must_use]
pub fn max_threads() -> usize {
    match THREADS.get() {
        0 => default_threads(),
        threads => threads,
    }
}

/// Sets [`max_threads`] for the calling thread.
pub fn set_max_threads(threads: usize) {
    THREADS.set(threads.max(1));
}

/// `OMP_NUM_THREADS`, or the number of CPUs available to this process: those of its affinity mask, limited by
/// the CPU quota of its control group (containers, batch systems).
fn default_threads() -> usize {
    static DEFAULT: OnceLock<usize> = OnceLock::new();
    *DEFAULT.get_or_init(|| {
        let list = std::env::var("OMP_NUM_THREADS").ok();
        list.as_deref().and_then(parse_num_threads).unwrap_or_else(load::usable_cpus)
    })
}

/// Parses `OMP_NUM_THREADS`. The first entry of a list is for the outermost regions.
fn parse_num_threads(list: &str) -> Option<usize> {
    list.split(',').next()?.trim().parse().ok().filter(|threads| *threads > 0)
}

/// Returns whether the calling thread should run the work of a team of `threads` alone: when other programs
/// load the CPUs, it would spend most of the time waiting for its team. Call it before every region, because
/// it also samples the load.
#[must_use]
pub fn prefers_single_thread(threads: usize) -> bool {
    load::sample(now());
    is_loaded(threads)
}

/// Calls `body`. The parts of the regions that it opens must not wait for each other, except at barriers of
/// the team: oneDNN's own barriers spin.
pub fn with_independent_parts<R>(body: impl FnOnce() -> R) -> R {
    let before = INDEPENDENT_PARTS.replace(true);
    let result = body();
    INDEPENDENT_PARTS.set(before);
    result
}

/// Calls `body`, a repeated task that opens regions, such as a kernel; `usual` is the task's own. While other
/// programs load the CPUs, the times of tasks decide whether the threads of regions are woken.
pub fn run_repeated<R>(usual: &mut UsualTime, body: impl FnOnce() -> R) -> R {
    if !is_loaded(max_threads()) {
        return body();
    }
    let started = now();
    let result = body();
    trial::add(usual, now().saturating_sub(started));
    result
}

/// Returns whether other programs load the CPUs so much that one thread may be faster than a team.
fn is_loaded(threads: usize) -> bool {
    WaitPolicy::from_env() == WaitPolicy::Adaptive && load::prefers_single_thread(threads)
}

/// Calls `function(data)` on every thread of a team, and returns when all calls have returned. The team is
/// smaller within a region, or if the system provides fewer threads.
///
/// # Safety
/// `function` must be callable with `data` by any number of threads at a time, and must not unwind.
#[expect(unsafe_code, reason = "the function is C's")]
pub unsafe fn parallel(threads: usize, function: Function, data: *mut c_void) {
    // SAFETY: the caller guarantees the function's contract; the region is closed below.
    unsafe {
        open_region(threads, function, data);
        function(data);
    }
    close_region(false);
}

/// Opens a region: the other threads of the team start to call `function(data)`; the calling thread must call
/// it before [`close_region`].
///
/// # Safety
/// As for [`parallel`], until [`close_region`] has returned.
#[expect(unsafe_code, reason = "the function is C's")]
pub unsafe fn open_region(threads: usize, function: Function, data: *mut c_void) {
    let leaves_asleep = is_loaded(threads) && trial::wake_policy() == WakePolicy::IfNeeded;
    let start = match (leaves_asleep, INDEPENDENT_PARTS.get()) {
        (false, _) => Start::Together,
        (true, true) => Start::Alone,
        (true, false) => Start::Apart,
    };
    // SAFETY: the caller's contract.
    unsafe { open_region_with(threads, function, data, start) };
}

/// How the other threads of a region start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// They are woken.
    Together,
    /// They are woken, but not on the CPU of the thread that opens the region.
    Apart,
    /// If all of them sleep, they are not woken before the region is closed or meets a barrier.
    Alone,
}

/// Opens a region.
///
/// # Safety
/// As for [`open_region`].
#[expect(unsafe_code, reason = "the function is C's")]
unsafe fn open_region_with(threads: usize, function: Function, data: *mut c_void, start: Start) {
    let before = CONTEXT.get();
    OUTER_CONTEXTS.with_borrow_mut(|contexts| contexts.push(before));
    let context = if threads <= 1 || before.in_parallel {
        TeamContext { in_parallel: before.in_parallel, ..NO_REGION }
    } else {
        POOL.with_borrow_mut(|pool| pool.begin(threads, function, data, start))
    };
    CONTEXT.set(context);
}

/// Waits until all threads of the innermost open region have finished. With `may_claim`, the calling thread
/// may run the parts of others: the function must then support several parts on one thread, in any order.
pub fn close_region(may_claim: bool) {
    let TeamContext { size, others_sleep, .. } = CONTEXT.get();
    if size > 1 {
        POOL.with_borrow_mut(|pool| pool.end(size, may_claim, others_sleep));
    }
    CONTEXT.set(OUTER_CONTEXTS.with_borrow_mut(Vec::pop).unwrap_or(NO_REGION));
}

/// Waits until every thread of the team has arrived.
pub fn barrier() {
    let context = CONTEXT.get();
    let TeamContext { size, barrier, .. } = context;
    if context.others_sleep {
        full_fence();
        POOL.with_borrow(|pool| pool.wake(size));
        CONTEXT.set(TeamContext { others_sleep: false, ..context });
    }
    if size > 1 {
        // SAFETY: the barrier of a region belongs to the pool of the thread that opened it, which changes it
        // only outside of regions.
        #[expect(unsafe_code, reason = "a region's threads share its barrier")]
        unsafe { &*barrier }.wait(size as u32);
    }
}

/// A barrier of the threads of a team.
struct Barrier {
    arrived: AtomicU32,
    /// The number of times that all have arrived.
    phase: Signal,
    /// The threads that may wait.
    threads: Vec<Thread>,
}

impl Barrier {
    fn wait(&self, size: u32) {
        let phase = self.phase.get();
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 < size {
            self.phase.wait_while(phase, size as usize);
            return;
        }
        self.arrived.store(0, Ordering::Relaxed);
        self.phase.set(phase.wrapping_add(1));
        full_fence();
        self.threads.iter().for_each(|thread| self.phase.wake(thread));
    }
}

/// The next job of a thread.
#[derive(Clone, Copy)]
enum Job {
    /// Take part in a region.
    Region { function: Function, data: *mut c_void, context: TeamContext },
    /// Exit.
    Exit,
}

/// The hand-over between the thread that opens regions and one worker.
struct WorkerSlot {
    /// The number of jobs assigned to the worker.
    assigned: Signal,
    /// The number of the job last claimed, by the worker or in its place.
    claimed: AtomicU32,
    /// The number of jobs completed.
    completed: Signal,
    /// The assigned job: written before `assigned`, read after `claimed`, and not overwritten before
    /// `completed` reaches the same count.
    job: UnsafeCell<Job>,
    /// The thread that opens the regions.
    primary: Thread,
    /// The system's number of the worker; 0 until it has started.
    thread_id: AtomicI32,
}

// SAFETY: one thread writes the job and one reads it, at times that the counters separate. The opener of a
// region guarantees that its function and data may be used by several threads.
#[expect(unsafe_code, reason = "the job is handed over by the counters")]
unsafe impl Sync for WorkerSlot {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "as above")]
unsafe impl Send for WorkerSlot {}

impl WorkerSlot {
    /// Assigns the worker its next job.
    fn assign(&self, count: u32, job: Job) {
        // SAFETY: the worker has completed its previous job, and reads the next one only after `assigned` has
        // changed.
        #[expect(unsafe_code, reason = "the job is handed over by the counters")]
        unsafe {
            *self.job.get() = job;
        }
        self.assigned.set(count);
    }

    /// Claims the job of this count; returns whether the caller is the first to do so.
    fn claim(&self, count: u32) -> bool {
        let before = count.wrapping_sub(1);
        self.claimed.compare_exchange(before, count, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Runs the job that the caller has claimed; returns whether it was a region.
    fn run_claimed(&self) -> bool {
        // SAFETY: the job was written before it could be claimed, and only one thread can claim it.
        #[expect(unsafe_code, reason = "the job is handed over by the counters")]
        let job = unsafe { *self.job.get() };
        let Job::Region { function, data, context } = job else { return false };
        CONTEXT.set(context);
        // SAFETY: the opener of the region guarantees the function's contract until the region is closed.
        #[expect(unsafe_code, reason = "the function is C's")]
        unsafe {
            function(data);
        }
        true
    }

    /// The main loop of a worker thread.
    fn worker_loop(&self) {
        self.thread_id.store(load::thread_id(), Ordering::Relaxed);
        let (mut count, mut threads) = (0, 1);
        loop {
            count = self.assigned.wait_while(count, threads);
            if !self.claim(count) {
                continue;
            }
            if !self.run_claimed() {
                return;
            }
            threads = team_size();
            self.completed.set(count);
            full_fence();
            self.completed.wake(&self.primary);
        }
    }
}

struct Worker {
    slot: Arc<WorkerSlot>,
    /// The number of its last job.
    count: u32,
    /// The CPU that it must not use.
    avoided_cpu: Option<usize>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// Starts a worker; `None` if the system provides no thread.
    fn start(number: usize) -> Option<Self> {
        let slot = Arc::new(WorkerSlot {
            assigned: Signal::default(),
            claimed: AtomicU32::new(0),
            completed: Signal::default(),
            job: UnsafeCell::new(Job::Exit),
            primary: std::thread::current(),
            thread_id: AtomicI32::new(0),
        });
        let builder = std::thread::Builder::new().name(format!("kernels-{number}")).stack_size(STACK_BYTES);
        let thread = builder.spawn({
            let slot = Arc::clone(&slot);
            move || slot.worker_loop()
        });
        Some(Self { slot, count: 0, avoided_cpu: None, thread: thread.ok()? })
    }

    fn assign(&mut self, job: Job) {
        self.count = self.count.wrapping_add(1);
        self.slot.assign(self.count, job);
    }

    fn wake(&self) {
        self.slot.assigned.wake(self.thread.thread());
    }

    /// Allows the worker all CPUs of the calling thread except `cpu`.
    fn avoid(&mut self, cpu: Option<usize>) {
        let thread_id = self.slot.thread_id.load(Ordering::Relaxed);
        if cpu != self.avoided_cpu && thread_id != 0 && load::allow_own_cpus_except(cpu, thread_id) {
            self.avoided_cpu = cpu;
        }
    }
}

/// The worker threads of one thread, kept from region to region.
struct Pool {
    workers: Vec<Worker>,
    barrier: Option<Box<Barrier>>,
}

impl Pool {
    const fn new() -> Self {
        Self { workers: Vec::new(), barrier: None }
    }

    /// Starts workers until there are `count`, or until the system refuses.
    fn grow(&mut self, count: usize) {
        let missing = self.workers.len() + 1..=count;
        self.workers.extend(missing.map_while(Worker::start));
        let workers = self.workers.iter().map(|worker| worker.thread.thread().clone());
        let threads = std::iter::once(std::thread::current()).chain(workers).collect();
        self.barrier =
            Some(Box::new(Barrier { arrived: AtomicU32::new(0), phase: Signal::default(), threads }));
    }

    /// Starts a region, and returns the context of the thread that opens it.
    fn begin(&mut self, threads: usize, function: Function, data: *mut c_void, start: Start) -> TeamContext {
        if self.workers.len() + 1 < threads {
            self.grow(threads - 1);
        }
        let size = threads.min(self.workers.len() + 1);
        let barrier = self.barrier.as_deref().map_or(std::ptr::null(), |barrier| &raw const *barrier);
        let workers = &mut self.workers[..size - 1];
        let avoided_cpu = if start == Start::Apart { load::current_cpu() } else { None };
        for (number, worker) in (1..).zip(&mut *workers) {
            if start != Start::Alone {
                worker.avoid(avoided_cpu);
            }
            let context = TeamContext { number, size, in_parallel: size > 1, barrier, ..NO_REGION };
            worker.assign(Job::Region { function, data, context });
        }
        full_fence();
        let sleeps = |worker: &Worker| worker.slot.assigned.has_timed_sleeper();
        let others_sleep = start == Start::Alone && size > 1 && self.workers[..size - 1].iter().all(sleeps);
        if !others_sleep {
            self.wake(size);
        }
        TeamContext { number: 0, size, in_parallel: size > 1, barrier, others_sleep }
    }

    /// Wakes the workers of a region of `size` threads; call [`full_fence`] before.
    fn wake(&self, size: usize) {
        self.workers[..size - 1].iter().for_each(Worker::wake);
    }

    /// Runs the parts of a region of `size` threads that no worker has claimed, if `may_claim`, and waits for
    /// the rest.
    fn end(&mut self, size: usize, may_claim: bool, others_sleep: bool) {
        if others_sleep && !may_claim {
            full_fence();
            self.wake(size);
        }
        let workers = &self.workers[..size - 1];
        let is_oversubscribed =
            || WaitPolicy::from_env() == WaitPolicy::Adaptive && load::is_oversubscribed(size);
        if may_claim && (others_sleep || is_oversubscribed()) {
            for Worker { slot, count, .. } in workers {
                if slot.claim(*count) {
                    slot.run_claimed();
                    slot.completed.set(*count);
                }
            }
        }
        for Worker { slot, count, .. } in workers {
            slot.completed.wait_while(count.wrapping_sub(1), size);
        }
        load::sample(now());
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.assign(Job::Exit));
        full_fence();
        self.workers.iter().for_each(Worker::wake);
        for worker in self.workers.drain(..) {
            // A thread that panicked has already reported it.
            let _ = worker.thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
