//! Metrics compared with scikit-learn and with direct implementations of their definitions.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod boundary;
mod confusion;
mod distance;
mod labels;
mod numbers;
mod scikit_learn;
mod score_table;
mod summary;
mod worst;

use stratus_testing::allocator::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
