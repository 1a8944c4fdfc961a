//! Import and export of ONNX models.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod damage;
mod fixtures;
mod limits;
mod products;
mod refusals;
mod resizing;
mod written_out;
mod zoo;

use stratus_testing::allocator::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
