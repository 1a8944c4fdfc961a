//! Normalisation over the batch (with ReLU and pooling), and over all channels.

pub mod batch;
mod batch_backward;
pub mod layer;
pub(crate) mod loops;
pub(crate) mod pixels;
