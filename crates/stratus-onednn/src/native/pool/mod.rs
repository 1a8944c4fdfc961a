//! Pooling: alone ([`max`], [`average`]), and the largest behind batch norm and ReLU ([`fused`], [`overlapping`]).

pub mod average;
pub mod fused;
pub mod max;
mod ordered;
pub mod overlapping;
mod pairs;
