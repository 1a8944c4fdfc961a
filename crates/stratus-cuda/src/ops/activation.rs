//! Smooth activations. The kernels of `elementwise.cu` are called as those of the program.

use super::convert::map;
use super::{KernelBuilder, OnGpu, Operand};
use crate::processor::Implementation;
use stratus_engine::ops::{Activation, ActivationBackward, ActivationForward};

impl<A: Activation> OnGpu for ActivationForward<A> {
    fn build(
        &self,
        operands: &[Operand],
        _counts: [usize; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        map(A::FORWARD, operands, builder, [])
    }
}

impl<A: Activation> OnGpu for ActivationBackward<A> {
    fn build(
        &self,
        operands: &[Operand],
        _counts: [usize; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        // The kernel's order of addresses is that of the operands: `x`, `dy`, `dx`.
        map(A::BACKWARD, operands, builder, [])
    }
}
