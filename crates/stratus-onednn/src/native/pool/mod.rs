//! Pooling as a separate step; pooling fused with batch norm is in [`crate::native::norm::batch::pooled`].

pub mod average;
pub(crate) mod index;
pub mod max;
pub(crate) mod ordered;
