//! The oneDNN C API, 3.x, loaded at run time: neither headers nor a library are needed to build.
//!
//! `raw` declares the functions; `context` (library and engine), `desc` (memory descriptors), `operations`
//! and `primitive` wrap them in types that release what they own and keep alive what they need. Calls that
//! return a status use [`call!`]. This module contains all unsafe calls into oneDNN.
#![allow(unsafe_code)] // All calls into oneDNN; each block says why it is sound.

/// Calls a function of oneDNN and turns its status into a `Result` whose error names the function: `unsafe {
/// call!(functions, dnnl_stream_create(&raw mut stream, engine, 1)) }?`.
macro_rules! call {
    ($functions:expr, $name:ident($($argument:expr),* $(,)?)) => {
        $crate::ffi::raw::check(($functions.$name)($($argument),*), stringify!($name))
    };
}

mod context;
mod denormals;
mod desc;
#[cfg(target_os = "linux")]
mod imports;
mod operations;
mod primitive;
mod raw;

pub use context::{Attributes, Context, PostOp};
pub use denormals::with_default_fp_mode;
pub use desc::{DataType, Desc};
pub use operations::{Propagation, Window};
pub use primitive::{Argument, Kernel, MemoryDescQuery, PrimitiveDesc};
pub use raw::{LoadError, Runtime};

/// Execution arguments (`DNNL_ARG_*`).
pub mod arg {
    /// Source.
    pub const SRC: i32 = 1;
    /// Destination.
    pub const DST: i32 = 17;
    /// Weights.
    pub const WEIGHTS: i32 = 33;
    /// Bias.
    pub const BIAS: i32 = 41;
    /// Scratchpad.
    pub const SCRATCHPAD: i32 = 80;
    /// The scales of the weights.
    pub const WEIGHT_SCALES: i32 = 4096 | WEIGHTS;
    /// The second operand of a post-op at a position.
    #[must_use]
    pub fn post_op_operand(position: usize) -> i32 {
        (32_768 * (position as i32 + 1)) | 2
    }
    /// Gradient of the source.
    pub const DIFF_SRC: i32 = 129;
    /// Gradient of the destination.
    pub const DIFF_DST: i32 = 145;
    /// Gradient of the weights.
    pub const DIFF_WEIGHTS: i32 = 161;
    /// Gradient of the bias.
    pub const DIFF_BIAS: i32 = 169;
}
