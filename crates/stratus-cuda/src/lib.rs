//! GPU kernels. Convolutions and matrix products are cuDNN's and cuBLAS's, or native where those are faster;
//! everything else is native CUDA C (`source/`), compiled by NVRTC for the GPU at hand. All libraries are
//! loaded at run time: the same binary runs on machines without them.
//!
//! Feature maps are laid out channels last, `[N, H, W, C]` in memory. A step enqueues its work into one
//! stream, in the order of the program, and returns.

mod backend;
#[cfg(feature = "emulation")]
mod emulation;
mod ffi;
mod gpu;
mod gpu_libraries;
mod layouts;
mod measured;
mod ops;
mod prepare;
mod processor;
mod source;
mod sources;
mod step_clock;

pub use backend::{Cuda, LibraryVersion, NotFound, Settings, survey};
pub use ffi::libraries::ENVIRONMENT;
