//! Training for int8 inference, which runs on processors only.

use super::{BuildResult, GpuOp, KernelBuilder, Operand};
use stratus_engine::ops::{FakeQuantise, FakeQuantiseBackward, FakeQuantiseWeights};

/// The reason why there is no kernel.
const REASON: &str = "fake quantisation runs on the CPU only";

impl GpuOp for FakeQuantise {
    fn build(&self, _operands: &[Operand], _counts: [usize; 3], _builder: &KernelBuilder<'_>) -> BuildResult {
        Err(REASON.to_owned())
    }
}

impl GpuOp for FakeQuantiseBackward {
    fn build(&self, _operands: &[Operand], _counts: [usize; 3], _builder: &KernelBuilder<'_>) -> BuildResult {
        Err(REASON.to_owned())
    }
}

impl GpuOp for FakeQuantiseWeights {
    fn build(&self, _operands: &[Operand], _counts: [usize; 3], _builder: &KernelBuilder<'_>) -> BuildResult {
        Err(REASON.to_owned())
    }
}
