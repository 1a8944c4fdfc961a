//! Normalisation: over the batch (with ReLU and pooling), over all channels, and over neighbouring channels.

pub mod batch;
mod batch_backward;
mod group;
pub mod layer;
pub mod local_response;
pub(crate) mod loops;
mod pixels;
