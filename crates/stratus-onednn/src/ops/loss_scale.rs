//! The scale of the loss, which only f16 needs.

use super::{NativeStep, OnCpu, StepOperands};
use crate::native::elementwise::CpuContext;
use stratus_engine::ops::{AdjustLossScale, FindOverflow};

pub(super) const REFUSAL: &str = "only losses of f16 are scaled, which is for GPUs";

impl OnCpu for AdjustLossScale {
    fn build(&self, _operands: &StepOperands, _cpu: &CpuContext) -> Result<NativeStep, String> {
        Err(REFUSAL.to_owned())
    }
}

impl OnCpu for FindOverflow {
    fn build(&self, _operands: &StepOperands, _cpu: &CpuContext) -> Result<NativeStep, String> {
        Err(REFUSAL.to_owned())
    }
}
