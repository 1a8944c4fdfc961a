//! Concatenated weights of several convolutions. Filters are contiguous, so each weight is one row of the
//! concatenation.

use super::concat::{channels_last, join, take_columns};
use super::convert::check_types;
use super::{BuildResult, GpuOp, KernelBuilder, Operand};
use stratus_engine::ops::{JoinWeights, SplitGradient};

/// The number of elements of each weight; all are channels last.
fn elements(operands: &[Operand]) -> Result<Vec<usize>, String> {
    check_types(operands)?;
    operands.iter().map(|operand| Ok(channels_last(operand)?.iter().product())).collect()
}

impl GpuOp for JoinWeights {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let elements = elements(operands)?;
        join("join_weights", operands, 1, &elements[..elements.len() - 1], builder)
    }
}

impl GpuOp for SplitGradient {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let elements = elements(operands)?;
        let [_, filter @ ..] = operands[1].image()?;
        let before = self.first * filter.iter().product::<usize>();
        take_columns("split_gradient", operands, 1, before, [elements[0], elements[1]], builder)
    }
}
