//! Normalisation: over the batch, with ReLU and pooling behind it, over all channels, and over neighbouring
//! ones.

pub mod batch;
mod batch_backward;
pub mod layer;
pub mod local_response;
pub(crate) mod loops;
mod pixels;
pub mod pooled;
