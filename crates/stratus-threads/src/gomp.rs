//! The functions of the GNU OpenMP interface (libgomp's and OpenMP's own API) that compiled libraries call,
//! under their C names.

use crate::{load, team};
use std::cell::Cell;
use std::ffi::{c_int, c_long, c_uint, c_void};
use team::Function;

/// The functions implemented here. A library that imports other functions of this interface needs its own
/// OpenMP runtime for all of them.
pub const PROVIDED_SYMBOLS: [&str; 14] = [
    "GOMP_barrier",
    "GOMP_loop_end",
    "GOMP_loop_end_nowait",
    "GOMP_loop_static_next",
    "GOMP_loop_static_start",
    "GOMP_parallel",
    "GOMP_parallel_end",
    "GOMP_parallel_start",
    "omp_get_max_threads",
    "omp_get_num_procs",
    "omp_get_num_threads",
    "omp_get_thread_num",
    "omp_in_parallel",
    "omp_set_num_threads",
];

/// Returns whether libraries loaded from now on resolve these functions to this program's.
#[must_use]
pub fn are_exported() -> bool {
    #[cfg(unix)]
    #[expect(unsafe_code, reason = "asks the dynamic linker")]
    {
        let ours = GOMP_parallel as *const () as *mut c_void;
        // SAFETY: looks up a name among the exports of the program and its libraries.
        ours == unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"GOMP_parallel".as_ptr()) }
    }
    #[cfg(not(unix))]
    false
}

/// The number of threads of a region; 0 requests the default.
fn requested_threads(threads: c_uint) -> usize {
    if threads == 0 { team::max_threads() } else { threads as usize }
}

/// `#pragma omp parallel`.
///
/// # Safety
/// As for [`team::parallel`].
#[expect(unsafe_code, reason = "called by C")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GOMP_parallel(
    function: Function,
    data: *mut c_void,
    threads: c_uint,
    _flags: c_uint,
) {
    // SAFETY: the caller's contract.
    unsafe {
        team::open_region(requested_threads(threads), function, data);
        function(data);
    }
    team::close_region(true);
}

/// The start of `#pragma omp parallel`, as emitted by compilers before GCC 4.9: the caller then calls the
/// function itself.
///
/// # Safety
/// As for [`team::open_region`].
#[expect(unsafe_code, reason = "called by C")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GOMP_parallel_start(function: Function, data: *mut c_void, threads: c_uint) {
    // SAFETY: the caller's contract.
    unsafe { team::open_region(requested_threads(threads), function, data) };
}

/// The end of `#pragma omp parallel`, as emitted by compilers before GCC 4.9.
#[expect(unsafe_code, reason = "called by C")]
#[unsafe(no_mangle)]
pub extern "C" fn GOMP_parallel_end() {
    team::close_region(true);
}

/// `#pragma omp barrier`.
#[expect(unsafe_code, reason = "called by C")]
#[unsafe(no_mangle)]
pub extern "C" fn GOMP_barrier() {
    team::barrier();
}

/// The state of a statically scheduled loop in one of its threads.
#[derive(Clone, Copy)]
struct StaticLoop {
    start: i64,
    increment: i64,
    /// The number of iterations of the whole loop.
    count: i64,
    /// Iterations per chunk; 0: one chunk per thread, of nearly equal length.
    chunk: i64,
    /// Chunks that the thread has taken.
    taken: i64,
}

impl StaticLoop {
    fn new(start: i64, end: i64, increment: i64, chunk: i64) -> Self {
        let rounding = if increment > 0 { increment - 1 } else { increment + 1 };
        let count = if increment == 0 { 0 } else { ((end - start + rounding) / increment).max(0) };
        Self { start, increment, count, chunk, taken: 0 }
    }

    /// The next chunk of thread `number` of `size`: its first value and its (exclusive) end.
    fn next(&mut self, number: i64, size: i64) -> Option<[i64; 2]> {
        let [first, end] = if self.chunk > 0 {
            let first = (self.taken * size + number) * self.chunk;
            [first, (first + self.chunk).min(self.count)]
        } else if self.taken == 0 {
            // The first threads take one iteration more if the count is not divisible.
            let (each, more) = (self.count / size, self.count % size);
            let first = number * each + number.min(more);
            [first, first + each + i64::from(number < more)]
        } else {
            return None;
        };
        self.taken += 1;
        let value = |iteration: i64| self.start + iteration * self.increment;
        (first < end).then(|| [value(first), value(end)])
    }
}

thread_local! {
    static LOOP: Cell<StaticLoop> =
        const { Cell::new(StaticLoop { start: 0, increment: 1, count: 0, chunk: 0, taken: 0 }) };
}

/// Starts `#pragma omp for schedule(static, chunk)`: stores the thread's first chunk, and returns whether
/// there is one.
///
/// # Safety
/// `first` and `chunk_end` must be valid for writes.
#[expect(unsafe_code, reason = "called by C")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GOMP_loop_static_start(
    start: c_long,
    end: c_long,
    increment: c_long,
    chunk: c_long,
    first: *mut c_long,
    chunk_end: *mut c_long,
) -> bool {
    LOOP.set(StaticLoop::new(start, end, increment, chunk));
    // SAFETY: the caller's contract.
    unsafe { GOMP_loop_static_next(first, chunk_end) }
}

/// Stores the thread's next chunk, and returns whether there is one.
///
/// # Safety
/// `first` and `chunk_end` must be valid for writes.
#[expect(unsafe_code, reason = "called by C")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GOMP_loop_static_next(first: *mut c_long, chunk_end: *mut c_long) -> bool {
    let mut state = LOOP.get();
    let chunk = state.next(team::thread_number() as i64, team::team_size() as i64);
    LOOP.set(state);
    let Some(chunk) = chunk else { return false };
    // SAFETY: the caller's contract. The values are within the loop's bounds.
    unsafe { (*first, *chunk_end) = (chunk[0] as c_long, chunk[1] as c_long) };
    true
}

/// Ends a loop and waits for the team.
#[expect(unsafe_code, reason = "called by C")]
#[unsafe(no_mangle)]
pub extern "C" fn GOMP_loop_end() {
    team::barrier();
}

/// Ends a loop.
#[expect(unsafe_code, reason = "called by C")]
#[unsafe(no_mangle)]
pub extern "C" fn GOMP_loop_end_nowait() {}

/// The number of threads of the next region.
#[expect(unsafe_code, reason = "called by C")]
#[unsafe(no_mangle)]
pub extern "C" fn omp_get_max_threads() -> c_int {
    team::max_threads() as c_int
}

/// The number of CPUs available to this process.
#[expect(unsafe_code, reason = "called by C")]
#[unsafe(no_mangle)]
pub extern "C" fn omp_get_num_procs() -> c_int {
    load::usable_cpus() as c_int
}

/// The number of threads of the team.
#[expect(unsafe_code, reason = "called by C")]
#[unsafe(no_mangle)]
pub extern "C" fn omp_get_num_threads() -> c_int {
    team::team_size() as c_int
}

/// The thread's number in its team.
#[expect(unsafe_code, reason = "called by C")]
#[unsafe(no_mangle)]
pub extern "C" fn omp_get_thread_num() -> c_int {
    team::thread_number() as c_int
}

/// Returns whether the thread is in a region of several threads.
#[expect(unsafe_code, reason = "called by C")]
#[unsafe(no_mangle)]
pub extern "C" fn omp_in_parallel() -> c_int {
    team::in_parallel().into()
}

/// Sets the number of threads of the next regions.
#[expect(unsafe_code, reason = "called by C")]
#[unsafe(no_mangle)]
pub extern "C" fn omp_set_num_threads(threads: c_int) {
    team::set_max_threads(threads.max(1) as usize);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn chunks_of_all_threads_cover_the_loop(
            start in -50i64..50, length in 0i64..200,
            increment in (-7i64..7).prop_filter("none", |n| *n != 0),
            chunk in 0i64..9, size in 1i64..9,
        ) {
            let end = start + length * increment.signum();
            let mut seen = Vec::new();
            let mut largest = 0;
            let mut smallest = i64::MAX;
            for number in 0..size {
                let mut state = StaticLoop::new(start, end, increment, chunk);
                let mut mine = 0;
                while let Some([first, chunk_end]) = state.next(number, size) {
                    let mut value = first;
                    while if increment > 0 { value < chunk_end } else { value > chunk_end } {
                        seen.push(value);
                        value += increment;
                        mine += 1;
                    }
                }
                largest = largest.max(mine);
                smallest = smallest.min(mine);
            }
            let mut expected = Vec::new();
            let mut value = start;
            while if increment > 0 { value < end } else { value > end } {
                expected.push(value);
                value += increment;
            }
            seen.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(seen, expected);
            if chunk == 0 {
                prop_assert!(largest - smallest <= 1);
            }
        }
    }
}
