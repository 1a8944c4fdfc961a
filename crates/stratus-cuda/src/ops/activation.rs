//! Smooth activations. The kernels of `elementwise.cu` are named like those of the program.

use super::convert::map;
use super::{GpuOp, KernelBuilder, Operand};
use crate::processor::Implementation;
use stratus_engine::ops::{Activation, ActivationBackward, ActivationForward};

impl<A: Activation> GpuOp for ActivationForward<A> {
    fn build(
        &self,
        operands: &[Operand],
        _counts: [usize; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        map(A::FORWARD, operands, builder, [])
    }
}

impl<A: Activation> GpuOp for ActivationBackward<A> {
    fn build(
        &self,
        operands: &[Operand],
        _counts: [usize; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        // The kernel's addresses are in the order of the operands: `x`, `dy`, `dx`.
        map(A::BACKWARD, operands, builder, [])
    }
}
