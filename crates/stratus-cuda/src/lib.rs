//! GPU kernels. Convolutions and matrix products run on cuDNN and cuBLAS, or on native kernels if those are
//! faster; everything else is native CUDA C (`source/`), compiled by NVRTC for the GPU. All libraries are
//! loaded at run time: the same binary runs on machines without them.
//!
//! Feature maps are channels last, `[N, H, W, C]` in memory. A step enqueues its work into one stream, in the
//! order of the program, and returns.

mod backend;
#[cfg(feature = "emulation")]
mod emulation;
mod exchange;
mod fastest_cache;
mod ffi;
mod gpu;
mod gpu_libraries;
mod layouts;
mod ops;
mod prepare;
mod processor;
mod source;
mod sources;
mod step_clock;
mod timestamps;

pub use backend::{Cuda, GpuUnavailable, LibraryVersion, Settings, detect, gpu_count};
pub use exchange::direct_sum_bytes;
pub use ffi::libraries::{ENVIRONMENT, check_named_folders};
pub use ffi::nccl::version as nccl_version;
