//! Vectorised kernels of our own for what oneDNN has not, does not fuse, or does slowly: convolution of few channels, of small maps on tiles of bf16,
//! of dense 3×3 kernels by minimal filtering ([`conv`]), batch norm, with ReLU and pooling behind it, and local response normalisation ([`norm`]), pooling alone
//! ([`pool`]), the stem of a network ([`stem`]), loss, optimiser and what lies between.
//!
//! They run on the library's own OpenMP threads ([`threads`]; two pools would fight for the same cores) and are compiled three times over, for
//! AVX-512, AVX2 and the baseline ([`simd`], [`lanes`]). Work is split by the number of threads alone and partial sums are added in a fixed order: the
//! same inputs give the same bits.
#![allow(unsafe_code)] // The jump into a team of threads, the jump into code for instructions that were seen, stores past the caches.

pub mod adaptive;
pub mod concat;
pub mod conv;
pub mod dropout;
pub mod elementwise;
pub mod few_outputs;
pub mod gelu;
pub mod lanes;
pub mod loss;
pub mod norm;
pub mod pixels;
pub mod pool;
pub mod relayout;
pub mod rows;
pub mod simd;
pub mod stem;
pub mod threads;
