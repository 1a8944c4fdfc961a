//! Activations. The kernels of `activation.cu` are named like those of the program.

use super::convert::map_in;
use super::{GpuOp, KernelBuilder, Operand};
use crate::processor::{Argument, Implementation};
use stratus_engine::ops::{ActivationBackward, ActivationForward, KernelSpec};
use stratus_graph::ops::Activation;

/// The parameters after those of every elementwise kernel.
fn constants(activation: Activation) -> [Argument; 2] {
    activation.constants().map(Argument::Float)
}

impl GpuOp for ActivationForward {
    fn build(
        &self,
        operands: &[Operand],
        _counts: [usize; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        map_in("activation", self.name(), operands, builder, constants(self.0))
    }
}

impl GpuOp for ActivationBackward {
    fn build(
        &self,
        operands: &[Operand],
        _counts: [usize; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        // The kernel's addresses are in the order of the operands: `x`, `dy`, `dx`.
        map_in("activation", self.name(), operands, builder, constants(self.0))
    }
}
