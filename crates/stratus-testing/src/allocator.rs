//! The system allocator with counters, for tests that a hot loop does not allocate, or that a hostile file
//! does not cause allocations beyond its size.

#![allow(unsafe_code, reason = "a global allocator is an unsafe trait; this one only looks and hands on")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    // Of this thread alone: other threads run other tests.
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// Register as the `#[global_allocator]` of a test program.
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
    LARGEST.with(Cell::get)
}

fn note(bytes: usize) {
    COUNT.with(|count| count.set(count.get() + 1));
    LARGEST.with(|largest| largest.set(largest.get().max(bytes)));
}

// SAFETY: every call is forwarded unchanged to the system allocator; counting touches no memory of the
// caller.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: as the caller vouches.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller vouches.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        // SAFETY: as the caller vouches.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
