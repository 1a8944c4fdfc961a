//! The loss of several targets a sample, its metrics and gradient.

use super::{BuildResult, GpuOp, KernelBuilder, Operand};
use stratus_engine::ops::{KernelSpec, TargetLoss};

impl GpuOp for TargetLoss {
    fn build(&self, _operands: &[Operand], _counts: [usize; 3], _builder: &KernelBuilder<'_>) -> BuildResult {
        Err(format!("no kernel for {}", self.name()))
    }
}
