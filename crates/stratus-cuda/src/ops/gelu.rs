//! The Gaussian error linear unit.

use super::convert::map;
use super::{KernelBuilder, OnGpu, Operand};
use crate::processor::Implementation;
use stratus_engine::ops::{GeluBackward, GeluForward};

impl OnGpu for GeluForward {
    fn build(
        &self,
        operands: &[Operand],
        _counts: [usize; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        map("gelu_forward", operands, builder, [])
    }
}

impl OnGpu for GeluBackward {
    fn build(
        &self,
        operands: &[Operand],
        _counts: [usize; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        // The kernel's order of addresses is that of the operands: `x`, `dy`, `dx`.
        map("gelu_backward", operands, builder, [])
    }
}
