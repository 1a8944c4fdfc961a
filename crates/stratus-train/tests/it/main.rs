//! Training: parity with PyTorch, of networks and of losses, fine-tuning, images as bytes, allocations.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod allocations;
mod bytes;
mod common;
mod finetune;
mod parity;
mod target_losses;

use stratus_testing::allocator::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
