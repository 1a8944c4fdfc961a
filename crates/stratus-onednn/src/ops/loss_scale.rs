//! Loss scaling, which only f16 needs.

use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use stratus_engine::ops::{AdjustLossScale, FindOverflow};

pub(super) const UNSUPPORTED_LOSS_SCALE: &str = "f16 training (loss scaling) needs a GPU";

impl CpuOp for AdjustLossScale {
    fn build(&self, _operands: &StepOperands, _cpu: &CpuContext) -> Result<NativeStep, String> {
        Err(UNSUPPORTED_LOSS_SCALE.to_owned())
    }
}

impl CpuOp for FindOverflow {
    fn build(&self, _operands: &StepOperands, _cpu: &CpuContext) -> Result<NativeStep, String> {
        Err(UNSUPPORTED_LOSS_SCALE.to_owned())
    }
}
