//! Multiplication by a fixed number.

use super::convert::map;
use super::{BuildResult, GpuOp, KernelBuilder, Operand};
use crate::processor::Argument;
use stratus_engine::ops::Scale;

impl GpuOp for Scale {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        map("scale", operands, builder, [Argument::Float(self.factor)])
    }
}
