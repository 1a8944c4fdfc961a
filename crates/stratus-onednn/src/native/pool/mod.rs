//! Pooling: alone ([`max`], [`average`]), and the largest behind batch norm and ReLU ([`fused`]).

pub mod average;
pub mod fused;
pub mod max;
mod ordered;
mod pairs;
