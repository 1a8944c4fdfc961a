//! Pooling that is a step of its own; fused behind batch norm it is in [`crate::native::norm::pooled`].

pub mod average;
pub(crate) mod index;
pub mod max;
pub(crate) mod ordered;
