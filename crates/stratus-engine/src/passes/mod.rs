//! From a network's graph to the program that is planned, one pass after the other. Each is a pure function,
//! and verifies the program it returns.
//!
//! | pass | what it does |
//! |---|---|
//! | [`lower`] | graph to forward steps, with the loss |
//! | [`fuse`] | merges steps, for devices that gain from it |
//! | [`images`] | takes images as bytes and normalises them in the first step |
//! | [`differentiate`] | adds the backward steps |
//! | [`recompute`] | computes activations a second time instead of keeping them |
//! | [`stage`] | takes the part of a pipeline's process, and the transfers to and from the others |
//! | [`micro_batch`] | runs forward and backward pass for one part of the batch after the other |
//! | [`parts`] | the same for parts that several workers share out, and their exchange |
//! | [`tile`] | or runs stretches of steps tile by tile, so that maps stay in the caches |
//! | [`update`] | adds the optimiser's steps |
//! | [`average`] | adds those of the weights' moving average |

pub mod average;
pub mod differentiate;
pub mod fuse;
pub mod images;
mod label_counts;
pub mod lower;
pub mod micro_batch;
pub mod parts;
pub mod recompute;
pub mod stage;
pub mod tile;
pub mod update;
