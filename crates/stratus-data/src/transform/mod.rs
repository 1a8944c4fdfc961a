//! Transforms from a stored image to a sample of a batch: crop and resize, rotate and zoom, change colours,
//! mirror and shift, normalise, mix.
//!
//! ```text
//!   stored image ──frame, affine──▶ 8-bit sample ──colour──▶ ──pixels──▶ batch ──mix──▶ batch
//!   stored mask  ──mask─────────────────────────────────────────────────▶ labels
//! ```
//!
//! [`augment`] draws the random parameters of each step. `view` transforms whole batches, for test-time
//! augmentation.

pub(crate) mod affine;
pub mod augment;
pub mod colour;
pub mod frame;
pub(crate) mod mask;
pub mod mix;
pub mod pixels;
mod resize;
#[cfg(test)]
mod torchvision_tests;
pub(crate) mod view;
