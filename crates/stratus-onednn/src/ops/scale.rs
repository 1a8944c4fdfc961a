//! Multiplies a map by a factor.

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use stratus_engine::ops::Scale;

impl CpuOp for Scale {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 1])?;
        let (factor, cpu) = (self.factor, cpu.clone());
        Ok(typed!(operands.one_type(&[0, 1])?, E => {
            native_step(0, move |o| cpu.scale::<E>(factor, o.elements(0), o.elements(1)))
        }))
    }
}
