//! ReLU that is not fused.

use super::convert::{check_types, common_element_count, elementwise};
use super::{BuildResult, GpuOp, KernelBuilder, Operand, long};
use crate::processor::{Argument, Implementation};
use stratus_engine::ops::{ReluBackward, ReluForward};

/// The ceiling as a parameter; NaN, which no number reaches, if there is none.
fn ceiling(ceiling: Option<f32>) -> Argument {
    Argument::Float(ceiling.unwrap_or(f32::NAN))
}

impl GpuOp for ReluForward {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        check_types(operands)?;
        let count = common_element_count(operands)?;
        let types = [&operands[0], &operands[1]].map(Operand::dtype);
        let (source, vector) = elementwise(types[0], types[0], types[1], count);
        let arguments = vec![Argument::Operand(0), Argument::Operand(1), long(count), ceiling(self.ceiling)];
        let launch = builder.grid_stride(&source, "relu_forward", count / vector, arguments)?;
        Ok(Implementation::native("relu", vec![launch], 0))
    }
}

impl GpuOp for ReluBackward {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        check_types(operands)?;
        let count = common_element_count(operands)?;
        let types = [&operands[0], &operands[1], &operands[2]].map(Operand::dtype);
        let (source, vector) = elementwise(types[0], types[1], types[2], count);
        let addresses = (0..3).map(Argument::Operand);
        let arguments = addresses.chain([long(count), ceiling(self.ceiling)]).collect();
        let launch = builder.grid_stride(&source, "relu_backward", count / vector, arguments)?;
        Ok(Implementation::native("relu_backward", vec![launch], 0))
    }
}
