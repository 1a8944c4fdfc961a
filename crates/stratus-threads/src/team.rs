//! Teams of threads, one for each thread that asks for one.
//!
//! A *parallel region* is a function that every thread of a team calls. The thread that opens the region is
//! number 0 and takes part. The others sleep or spin between regions, each at a slot of its own, where it
//! finds its next region and says that it is done: so a region of few threads disturbs no others.
//!
//! A thread's part of a region is *claimed*: by itself when it begins, or by the thread that opened the
//! region when that is done with its own and the other has not begun, since the system has not given it a
//! processor. Parts that wait for each other (barriers) do so in spite of that, as every part has a thread
//! that will come.

use crate::load;
use crate::wait::{Policy, Signal, now, publish};
use std::cell::{Cell, RefCell, UnsafeCell};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};

/// What the threads of a team call: a function in C, and what it is given.
pub type Function = unsafe extern "C" fn(*mut c_void);

/// Bytes of a thread's stack: as much as the system gives a program's first thread. The library's kernels
/// have buffers there.
const STACK: usize = 8 << 20;

/// Where a thread is.
#[derive(Clone, Copy)]
struct Place {
    /// Its number in the team.
    number: usize,
    /// The threads of the team.
    size: usize,
    /// Whether it is in a region of several threads, be it in another within that.
    in_parallel: bool,
    /// What the team's threads wait for together; null in teams of one.
    barrier: *const Barrier,
}

/// Outside of regions.
const OUTSIDE: Place = Place { number: 0, size: 1, in_parallel: false, barrier: std::ptr::null() };

thread_local! {
    static PLACE: Cell<Place> = const { Cell::new(OUTSIDE) };
    /// Where it was before each of the regions that it is in.
    static BEFORE: RefCell<Vec<Place>> = const { RefCell::new(Vec::new()) };
    /// Threads of the regions that it opens; 0: [`default_threads`].
    static THREADS: Cell<usize> = const { Cell::new(0) };
    static POOL: RefCell<Pool> = const { RefCell::new(Pool::new()) };
}

/// The calling thread's number in its team, from 0.
#[must_use]
pub fn thread_number() -> usize {
    PLACE.get().number
}

/// The threads of the calling thread's team; 1 outside of regions.
#[must_use]
pub fn team_size() -> usize {
    PLACE.get().size
}

/// Whether the calling thread is in a region of several threads.
pub fn in_parallel() -> bool {
    PLACE.get().in_parallel
}

/// Threads of the regions that the calling thread opens.
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

/// `OMP_NUM_THREADS`, or the processors that this process may use: those of its affinity, but no more than
/// the share of processors that its control group has, by which containers and batch systems limit it.
fn default_threads() -> usize {
    static DEFAULT: OnceLock<usize> = OnceLock::new();
    *DEFAULT.get_or_init(|| {
        let asked = std::env::var("OMP_NUM_THREADS").ok();
        asked.as_deref().and_then(asked_threads).unwrap_or_else(usable_processors)
    })
}

/// As many processors as this process may use at once.
pub fn usable_processors() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// What `OMP_NUM_THREADS` asks for: a list has a number for each depth of regions.
fn asked_threads(list: &str) -> Option<usize> {
    list.split(',').next()?.trim().parse().ok().filter(|threads| *threads > 0)
}

/// Whether the calling thread had better do alone what it has for a team of `threads`: other programs want
/// the processors, and it would wait for the team most of the time. To be asked before every region, as this
/// is also where it is found out.
#[must_use]
pub fn is_better_alone(threads: usize) -> bool {
    load::look(now());
    Policy::of_environment() == Policy::Adaptive && load::is_better_alone(threads)
}

/// Calls `function(data)` on every thread of a team, and returns when all have returned. Within a region, and
/// where the system gives no more threads, the team is smaller.
///
/// # Safety
/// `function` may be called with `data` by any number of threads at a time, and does not unwind.
#[expect(unsafe_code, reason = "the function is C's")]
pub unsafe fn parallel(threads: usize, function: Function, data: *mut c_void) {
    // SAFETY: the caller vouches for the function; the region is closed below.
    unsafe {
        open(threads, function, data);
        function(data);
    }
    close(false);
}

/// Opens a region: the other threads of the team begin to call `function(data)`, which the calling one has to
/// do itself before it calls [`close`].
///
/// # Safety
/// As for [`parallel`], until [`close`] has returned.
#[expect(unsafe_code, reason = "the function is C's")]
pub unsafe fn open(threads: usize, function: Function, data: *mut c_void) {
    let before = PLACE.get();
    BEFORE.with_borrow_mut(|places| places.push(before));
    let place = if threads <= 1 || before.in_parallel {
        Place { in_parallel: before.in_parallel, ..OUTSIDE }
    } else {
        POOL.with_borrow_mut(|pool| pool.begin(threads, function, data))
    };
    PLACE.set(place);
}

/// Waits until all threads of the region that was opened last are done. Where the calling thread `may_claim`
/// the parts of others, the function has to accept several on one thread, in any order.
pub fn close(may_claim: bool) {
    let size = team_size();
    if size > 1 {
        POOL.with_borrow_mut(|pool| pool.end(size, may_claim));
    }
    PLACE.set(BEFORE.with_borrow_mut(Vec::pop).unwrap_or(OUTSIDE));
}

/// Waits until every thread of the team has come here.
pub fn barrier() {
    let Place { size, barrier, .. } = PLACE.get();
    if size > 1 {
        // SAFETY: the barrier of a region is in the pool of the thread that opened it, which changes it only
        // outside of regions.
        #[expect(unsafe_code, reason = "a region's threads share its barrier")]
        unsafe { &*barrier }.wait(size as u32);
    }
}

/// What all threads of a team wait for.
struct Barrier {
    arrived: AtomicU32,
    /// How often all have arrived.
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
        publish();
        self.threads.iter().for_each(|thread| self.phase.wake(thread));
    }
}

/// What a thread does next.
#[derive(Clone, Copy)]
enum Job {
    /// It takes part in a region.
    Region { function: Function, data: *mut c_void, place: Place },
    /// It ends.
    End,
}

/// Between the thread that opens regions and one that takes part in them.
struct Slot {
    /// Counts what the thread was asked to do.
    asked: Signal,
    /// The count of what was last begun, by the thread or in its place.
    claimed: AtomicU32,
    /// Counts what it has done.
    done: Signal,
    /// What it was asked to do: written before `asked`, read after `claimed`, and not written again before
    /// `done` has the same count.
    job: UnsafeCell<Job>,
    /// The thread that opens the regions.
    primary: Thread,
}

// SAFETY: one thread writes the job and one reads it, at times that its counters keep apart. What a region's
// function and data may be used for, whoever opens the region vouches for.
#[expect(unsafe_code, reason = "the job is handed over by the counters")]
unsafe impl Sync for Slot {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "as above")]
unsafe impl Send for Slot {}

impl Slot {
    /// Gives the thread its next job.
    fn ask(&self, count: u32, job: Job) {
        // SAFETY: the thread has done what it was asked before, and looks at the job only when `asked` says
        // so.
        #[expect(unsafe_code, reason = "the job is handed over by the counters")]
        unsafe {
            *self.job.get() = job;
        }
        self.asked.set(count);
    }

    /// Whether the caller is the first to claim the job of this count.
    fn claim(&self, count: u32) -> bool {
        let before = count.wrapping_sub(1);
        self.claimed.compare_exchange(before, count, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Does the job that the caller has claimed. Whether it was not the last.
    fn perform(&self) -> bool {
        // SAFETY: the job was written before it could be claimed, and only one can claim it.
        #[expect(unsafe_code, reason = "the job is handed over by the counters")]
        let job = unsafe { *self.job.get() };
        let Job::Region { function, data, place } = job else { return false };
        PLACE.set(place);
        // SAFETY: whoever opened the region vouches for the function, until it is closed.
        #[expect(unsafe_code, reason = "the function is C's")]
        unsafe {
            function(data);
        }
        true
    }

    /// What a thread of the pool does.
    fn work(&self) {
        let (mut count, mut threads) = (0, 1);
        loop {
            count = self.asked.wait_while(count, threads);
            if !self.claim(count) {
                continue;
            }
            if !self.perform() {
                return;
            }
            threads = team_size();
            self.done.set(count);
            publish();
            self.done.wake(&self.primary);
        }
    }
}

struct Worker {
    slot: Arc<Slot>,
    /// The count of its last job.
    count: u32,
    thread: JoinHandle<()>,
}

impl Worker {
    /// `None` where the system gives no thread.
    fn start(number: usize) -> Option<Self> {
        let slot = Arc::new(Slot {
            asked: Signal::default(),
            claimed: AtomicU32::new(0),
            done: Signal::default(),
            job: UnsafeCell::new(Job::End),
            primary: std::thread::current(),
        });
        let builder = std::thread::Builder::new().name(format!("kernels-{number}")).stack_size(STACK);
        let thread = builder.spawn({
            let slot = Arc::clone(&slot);
            move || slot.work()
        });
        Some(Self { slot, count: 0, thread: thread.ok()? })
    }

    fn ask(&mut self, job: Job) {
        self.count = self.count.wrapping_add(1);
        self.slot.ask(self.count, job);
    }

    fn wake(&self) {
        self.slot.asked.wake(self.thread.thread());
    }
}

/// The threads that a thread opens regions with: the next regions' are the same.
struct Pool {
    workers: Vec<Worker>,
    barrier: Option<Box<Barrier>>,
}

impl Pool {
    const fn new() -> Self {
        Self { workers: Vec::new(), barrier: None }
    }

    /// Has as many workers as there can be, up to `count`.
    fn grow(&mut self, count: usize) {
        let missing = self.workers.len() + 1..=count;
        self.workers.extend(missing.map_while(Worker::start));
        let workers = self.workers.iter().map(|worker| worker.thread.thread().clone());
        let threads = std::iter::once(std::thread::current()).chain(workers).collect();
        self.barrier =
            Some(Box::new(Barrier { arrived: AtomicU32::new(0), phase: Signal::default(), threads }));
    }

    /// Begins a region; the place of the thread that opens it.
    fn begin(&mut self, threads: usize, function: Function, data: *mut c_void) -> Place {
        if self.workers.len() + 1 < threads {
            self.grow(threads - 1);
        }
        let size = threads.min(self.workers.len() + 1);
        let barrier = self.barrier.as_deref().map_or(std::ptr::null(), |barrier| &raw const *barrier);
        let workers = &mut self.workers[..size - 1];
        for (number, worker) in (1..).zip(&mut *workers) {
            let place = Place { number, size, in_parallel: size > 1, barrier };
            worker.ask(Job::Region { function, data, place });
        }
        publish();
        workers.iter().for_each(Worker::wake);
        Place { number: 0, size, in_parallel: size > 1, barrier }
    }

    /// Does what other threads of a region of `size` have not begun, if it may, and waits for the rest.
    fn end(&mut self, size: usize, may_claim: bool) {
        let workers = &self.workers[..size - 1];
        if may_claim && Policy::of_environment() == Policy::Adaptive && load::is_oversubscribed(size) {
            for Worker { slot, count, .. } in workers {
                if slot.claim(*count) {
                    slot.perform();
                    slot.done.set(*count);
                }
            }
        }
        for Worker { slot, count, .. } in workers {
            slot.done.wait_while(count.wrapping_sub(1), size);
        }
        load::look(now());
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.ask(Job::End));
        publish();
        self.workers.iter().for_each(Worker::wake);
        for worker in self.workers.drain(..) {
            // A thread that panicked has said so.
            let _ = worker.thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
