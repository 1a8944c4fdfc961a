//! Per-channel bias that is not fused.

use super::conv2d::add_bias;
use super::linear::sum_rows;
use super::{GpuOp, KernelBuilder, Operand};
use crate::ops::convert::check_types;
use crate::processor::{Argument, Implementation};
use stratus_engine::ops::{AddBias, BiasGradient};

impl GpuOp for AddBias {
    fn build(
        &self,
        operands: &[Operand],
        _counts: [usize; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        check_types(operands)?;
        let y = (Argument::Operand(1), &operands[1]);
        let launch = add_bias(Argument::Operand(0), y, false, builder)?;
        Ok(Implementation::native("add_bias", vec![launch], 0))
    }
}

impl GpuOp for BiasGradient {
    fn build(
        &self,
        operands: &[Operand],
        _counts: [usize; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        check_types(operands)?;
        sum_rows(&operands[0], [0, 1], 0, builder)
    }
}
