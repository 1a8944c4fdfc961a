//! Quantisation: the ranges of a network's maps, from which bytes get their meaning, and its weights in
//! signed bytes.
//!
//! A map has one range, with which each of its numbers becomes one of 256 bytes. The weights of each output
//! channel have a scale of their own.

mod histogram;
mod weights;

pub use histogram::{Histogram, Range, RangeMethod};
pub use weights::{QuantisedWeights, corrected_biases, quantise_weights};
