//! Measures against independent ones: scikit-learn's, and definitions followed word by word.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod boundary;
mod confusion;
mod distance;
mod summary;

use stratus_testing::allocator::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
