//! The CUDA backend, emulated and compiled; on a GPU where there is one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod compiles;
mod depthwise;
mod f32;
mod first_layer;
mod marks;
mod oracle;
mod session;
