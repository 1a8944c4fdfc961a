//! Local response normalisation.

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::native::norm::local_response::Lrn;
use stratus_engine::ops::{LrnBackward, LrnForward};

impl CpuOp for LrnForward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let norm = Lrn::new(&self.norm, operands.common_geometry(0)?, cpu);
        Ok(typed!(operands.one_type(&[0, 1])?, E => native_step(norm.scratch_bytes(), move |o| {
            norm.forward::<E>(o.elements(0), o.elements(1), o.elements(2));
        })))
    }
}

impl CpuOp for LrnBackward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let norm = Lrn::new(&self.norm, operands.common_geometry(0)?, cpu);
        Ok(typed!(operands.one_type(&[0, 1, 2])?, E => native_step(norm.scratch_bytes(), move |o| {
            norm.backward::<E>(o.elements(0), o.elements(1), o.elements(2), o.elements(3));
        })))
    }
}
