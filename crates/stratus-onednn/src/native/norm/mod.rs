//! Normalisation: over the batch, with ReLU and pooling behind it, and over neighbouring channels.

pub mod batch;
mod batch_backward;
pub mod local_response;
pub(crate) mod loops;
pub mod pooled;
