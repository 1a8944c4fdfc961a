//! A counting allocator, for tests that a hot loop does not allocate, or that a hostile file does not cause
//! allocations beyond its size.

#![allow(unsafe_code, reason = "`GlobalAlloc` is an unsafe trait; this one counts and forwards")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    // The counters are per thread, since other threads run other tests.
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static LARGEST_REQUEST_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The system allocator with counters, to be registered as the `#[global_allocator]` of a test program.
#[derive(Debug)]
pub struct CountingAllocator;

/// The number of allocations by the calling thread.
#[must_use]
pub fn requests() -> u64 {
    COUNT.with(Cell::get)
}

/// The largest single allocation by the calling thread, in bytes.
#[must_use]
pub fn largest_request() -> usize {
    LARGEST_REQUEST_BYTES.with(Cell::get)
}

fn record(bytes: usize) {
    COUNT.with(|count| count.set(count.get() + 1));
    LARGEST_REQUEST_BYTES.with(|largest| largest.set(largest.get().max(bytes)));
}

// SAFETY: every call is forwarded unchanged to the system allocator; counting accesses no memory of the
// caller.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        record(layout.size());
        // SAFETY: the caller guarantees the requirements.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees the requirements.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        record(size);
        // SAFETY: the caller guarantees the requirements.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
