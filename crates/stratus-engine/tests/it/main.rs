//! Integration tests of the engine on the reference backend.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod allocations;
mod average;
mod branches;
mod clip;
mod common;
mod decoder;
mod fake_quantise;
mod fused_activation;
mod gradients;
mod images;
mod inference;
mod loss_scale;
mod losses;
mod micro_batches;
mod operands;
mod programs;
mod quantise;
mod recompute;
mod reference;
mod relu_pool;
mod resize;
mod target_losses;
mod teacher;
mod tiling;
mod training;
mod update;

use stratus_testing::allocator::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
