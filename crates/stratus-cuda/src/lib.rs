//! GPU kernels. Convolutions and matrix products are cuDNN's and cuBLAS's, everything else is our own CUDA C, compiled by NVRTC for the GPU at
//! hand. All libraries are loaded at run time: the same binary runs where there are none of them.
//!
//! Feature maps lie channels last; a step puts its work into one queue, in the order of the program, and returns.

mod backend;
#[cfg(feature = "emulation")]
mod emulation;
mod ffi;
mod gpu;
mod layouts;
mod library;
mod ops;
mod prepare;
mod processor;
mod source;

pub use backend::{Cuda, Found, NotFound, Settings, survey};
pub use ffi::libraries::ENVIRONMENT;
