//! Batch norm, ReLU and max-pooling in one pass: windows that do not overlap ([`disjoint`]), and all others
//! ([`overlapping`]).

pub mod disjoint;
pub mod overlapping;
mod pairs;
