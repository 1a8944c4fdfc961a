//! Fused convolution in inference, which runs on processors only.

use super::{BuildResult, GpuOp, KernelBuilder, Operand};
use stratus_engine::ops::Conv2dInference;

impl GpuOp for Conv2dInference {
    fn build(&self, _operands: &[Operand], _counts: [usize; 3], _builder: &KernelBuilder<'_>) -> BuildResult {
        Err("fused convolutions in inference are not supported on GPUs".to_owned())
    }
}
