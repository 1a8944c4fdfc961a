//! Convolutions.
//!
//! Few channels: [`direct`], and for the gradients of their weights [`window_gradient`]. Many channels of bf16 maps: [`panels`] and [`panel_gradient`] on [`tiles`], few of them [`tap_gradient`]. Dense 3×3
//! kernels: [`winograd`].

pub mod direct;
pub mod direct_forward;
pub mod direct_gradient;
#[cfg(target_arch = "x86_64")]
pub mod panel_gradient;
#[cfg(target_arch = "x86_64")]
pub mod panels;
#[cfg(target_arch = "x86_64")]
pub mod tap_gradient;
#[cfg(target_arch = "x86_64")]
mod taps;
#[cfg(target_arch = "x86_64")]
pub mod tiles;
#[cfg(target_arch = "x86_64")]
pub mod window_gradient;
pub mod winograd;
