//! An allocator that ends the process if an input needs more memory than any file may. libFuzzer's own limit
//! of single allocations needs a sanitizer, which stable Rust lacks.

#![allow(unsafe_code, reason = "`GlobalAlloc` is an unsafe trait; this one counts and forwards")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The maximum number of bytes that one input may make the parsers hold.
const MAX_BYTES: usize = 256 << 20;

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The bytes before the input.
static BASE_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The system allocator with a limit on the live bytes of all threads.
pub struct LimitedAllocator;

/// Starts to count for an input.
pub fn begin() {
    let live = LIVE_BYTES.load(Relaxed);
    BASE_BYTES.store(live, Relaxed);
    PEAK_BYTES.store(live, Relaxed);
}

/// The most bytes that were live at once since [`begin`], without those from before.
pub fn peak() -> usize {
    PEAK_BYTES.load(Relaxed).saturating_sub(BASE_BYTES.load(Relaxed))
}

fn add(bytes: usize) {
    let live = LIVE_BYTES.fetch_add(bytes, Relaxed).wrapping_add(bytes);
    PEAK_BYTES.fetch_max(live, Relaxed);
    if live.saturating_sub(BASE_BYTES.load(Relaxed)) > MAX_BYTES && BASE_BYTES.load(Relaxed) > 0 {
        // The limit must not hold while the message and the stack trace are made.
        BASE_BYTES.store(0, Relaxed);
        eprintln!("an allocation of {bytes} bytes exceeds {} MiB of one input", MAX_BYTES >> 20);
        eprintln!("{}", std::backtrace::Backtrace::force_capture());
        std::process::abort();
    }
}

fn remove(bytes: usize) {
    LIVE_BYTES.fetch_sub(bytes, Relaxed);
}

// SAFETY: every call is forwarded unchanged to the system allocator; counting accesses no memory of the
// caller.
unsafe impl GlobalAlloc for LimitedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller guarantees the requirements.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller guarantees the requirements.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        remove(layout.size());
        // SAFETY: the caller guarantees the requirements.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both blocks may exist for a moment, but the system usually grows or maps the old one.
        remove(layout.size());
        add(size);
        // SAFETY: the caller guarantees the requirements.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
