//! A session allocates when it is made and never after.

#![allow(
    unsafe_code,
    reason = "a global allocator that counts is an unsafe trait; it only forwards to the system's"
)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{published_digits, session, training_program};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use stratus_engine::session::Hyper;
use stratus_engine::{Clock, Precision};

thread_local! {
    /// Allocations of this thread: other threads are the test harness.
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is forwarded unchanged to the system's allocator; counting touches no memory of the caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn running_allocates_nothing() {
    for precision in [Precision::F32, Precision::Bf16] {
        let program = training_program(&published_digits(), precision, 4);
        let mut session = session(&program);
        let mut inputs = session.inputs(0).unwrap();
        let mut clock = Clock::new(program.steps.len());
        let before = COUNT.with(Cell::get);
        assert!(before > 0, "the allocator counts nothing");
        for _ in 0..2 {
            clock.begin_iteration();
            session.set_hyper(Hyper { learning_rate: 0.1, iteration: 0, seed: 0 });
            session
                .run(0, inputs.images.as_mut_slice(), inputs.labels.as_mut_slice(), &mut clock, 0)
                .unwrap();
            assert!(session.metrics().samples > 0.0);
        }
        assert_eq!(COUNT.with(Cell::get), before);
    }
}
