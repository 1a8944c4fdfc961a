//! Native kernels, for operations that oneDNN does not have, does not fuse, or runs slowly.
//!
//! | module | kernels |
//! |---|---|
//! | [`conv`] | few channels, tiles on AMX, minimal filtering, weight gradients |
//! | [`norm`] | batch norm with ReLU and max-pooling, layer norm |
//! | [`pool`] | max- and average-pooling |
//! | `operations` | operations with one kernel for each step, such as group norm |
//! | [`stem`] | convolution, batch norm, ReLU and max-pooling of images, without storing the large map |
//! | [`relayout`], [`mod@concat`], [`channels`] | copies between layouts and maps |
//! | [`resize`] | bilinear resizing |
//! | [`few_outputs`] | matrix products over few terms |
//! | [`elementwise`], [`dropout`], [`pixels`], [`quantised`] | elementwise operations |
//! | [`bias`], [`channel_scale`], [`layer_scale`], [`dropout2d`], [`prelu`] | one constant per channel |
//! | [`by_channel`] | shared by these: constants per channel, sums over channels |
//! | [`activation`] | activations |
//! | [`loss`], [`pixel_loss`], [`target_loss`], [`adaptive`] | losses, optimisers |
//! | [`distillation`], [`output_distillation`] | losses of a teacher, by class and by single output |
//!
//! They run on oneDNN's threads ([`threads`]) and are compiled three times, for AVX-512, AVX2 and the
//! baseline ([`simd`], [`lanes`]). Work is divided by the number of threads only, and partial sums are added
//! in a fixed order: the same inputs give the same bits.
#![allow(unsafe_code)] // OpenMP calls, code for detected instructions, intrinsics.

pub mod activation;
pub mod adaptive;
pub mod bias;
pub mod by_channel;
pub mod channel_scale;
pub mod channels;
pub mod concat;
pub mod conv;
pub mod distillation;
pub mod dropout;
pub mod dropout2d;
pub mod elementwise;
pub mod fake_quantise;
pub mod few_outputs;
pub mod label_counts;
pub mod lanes;
pub mod layer_scale;
pub mod loss;
pub mod norm;
mod operations;
pub mod output_distillation;
pub mod pixel_loss;
pub mod pixels;
pub mod pool;
pub mod prelu;
pub mod quantised;
pub mod relayout;
pub mod resize;
pub mod rows;
pub mod simd;
pub mod stem;
pub mod target_loss;
pub mod threads;
