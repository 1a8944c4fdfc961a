//! Int8 inference, which runs on processors only.

use super::{BuildResult, GpuOp, KernelBuilder, Operand};
use stratus_engine::ops::{Quantise, QuantisedConv2d};

/// The reason why there is no kernel.
const REASON: &str = "int8 runs on the CPU only";

impl GpuOp for Quantise {
    fn build(&self, _operands: &[Operand], _counts: [usize; 3], _builder: &KernelBuilder<'_>) -> BuildResult {
        Err(REASON.to_owned())
    }
}

impl GpuOp for QuantisedConv2d {
    fn build(&self, _operands: &[Operand], _counts: [usize; 3], _builder: &KernelBuilder<'_>) -> BuildResult {
        Err(REASON.to_owned())
    }
}
