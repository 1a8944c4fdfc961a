//! A GPU as the processor that compiles and launches native kernels, and as the device of a session.

mod code;
mod device;
mod processor;

#[cfg(feature = "emulation")]
pub(crate) use code::Compiler;
pub(crate) use code::write_atomically;
pub(crate) use device::GpuDevice;
pub(crate) use processor::GpuProcessor;
