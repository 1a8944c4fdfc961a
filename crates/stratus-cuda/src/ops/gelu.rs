//! The Gaussian error linear unit.

use super::convert::map;
use super::{Maker, OnGpu, Operand};
use crate::processor::Made;
use stratus_engine::ops::{GeluBackward, GeluForward};

impl OnGpu for GeluForward {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        map("gelu_forward", operands, maker, [])
    }
}

impl OnGpu for GeluBackward {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        // The kernel's order of addresses is that of the operands: `x`, `dy`, `dx`.
        map("gelu_backward", operands, maker, [])
    }
}
