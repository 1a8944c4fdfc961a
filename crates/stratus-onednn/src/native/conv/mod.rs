//! Convolutions for which oneDNN has no fast kernel. Maps are `[N, H, W, C]`.
//!
//! | module | pass | for |
//! |---|---|---|
//! | [`direct`] | all | few input channels: images |
//! | [`depthwise`] | all | one channel a group, at least 16 channels |
//! | [`grouped`] | all | 4, 8, 16, 32, 48 or 64 channels a group, no bias |
//! | [`window_gradient`] | weight gradient | few input channels |
//! | [`panels`] | forward, data gradient | many channels of bf16, on AMX |
//! | [`panel_gradient`] | weight gradient | many channels, on AMX or AVX-512 |
//! | [`tap_gradient`] | weight gradient | 8 or 16 channels of bf16, on AMX |
//! | [`winograd`] | all | dense 3×3 and 5×5; 3×1 and 1×3, also dilated |

mod correlation;
pub mod depthwise;
pub mod direct;
pub mod grouped;
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
