//! Vectorised kernels of our own for what oneDNN has not, does not fuse, or does slowly: convolution of few channels, of small maps on tiles of bf16,
//! batch norm with ReLU and pooling, the stem of a network, pooling alone, local response normalisation, loss, optimiser.
//!
//! They run on the library's own OpenMP threads (two pools would fight for the same cores) and are compiled three times over, for AVX-512,
//! AVX2 and the baseline ([`simd`]). Work is split by the number of threads alone and partial sums are added in a fixed order: the same
//! inputs give the same bits.
#![allow(unsafe_code)] // The jump into a team of threads, the jump into code for instructions that were seen, stores past the caches.

pub mod avg_pool;
pub mod batch_norm;
mod batch_norm_backward;
pub mod concat;
mod correlation;
pub mod direct_conv;
mod direct_gradient;
pub mod dropout;
pub mod elementwise;
pub mod lanes;
pub mod loss;
pub mod lrn;
pub mod max_pool;
pub mod narrow_product;
mod norm_loops;
#[cfg(target_arch = "x86_64")]
pub mod panel_conv;
pub mod pool;
mod pool_pairs;
pub mod relayout;
pub mod rows;
pub mod simd;
pub mod stem;
#[cfg(target_arch = "x86_64")]
pub mod tap_gradient;
#[cfg(target_arch = "x86_64")]
mod taps;
pub mod threads;
#[cfg(target_arch = "x86_64")]
pub mod tiles;
#[cfg(target_arch = "x86_64")]
pub mod weight_gradient;
pub mod winograd;
