//! The CUDA backend, emulated and compiled; on a GPU if there is one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod compiles;
mod depthwise;
mod direct_sums;
mod f32;
mod first_layer;
mod markers;
mod networks;
mod oracle;
mod session;
