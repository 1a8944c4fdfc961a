//! Per-channel bias.

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::bias::{add_bias, bias_gradient};
use crate::native::by_channel::{constants_scratch_bytes, sums_scratch_bytes};
use crate::native::elementwise::CpuContext;
use stratus_engine::ops::{AddBias, BiasGradient};

impl CpuOp for AddBias {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let (geometry, cpu) = (operands.geometry(1)?, cpu.clone());
        Ok(typed!(operands.one_type(&[1])?, E => native_step(constants_scratch_bytes(&geometry), move |o| {
            add_bias::<E>(&cpu, &geometry, o.elements(0), o.elements(1), o.elements(2));
        })))
    }
}

impl CpuOp for BiasGradient {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let (geometry, cpu) = (operands.geometry(0)?, cpu.clone());
        let scratch = sums_scratch_bytes(&cpu, &geometry);
        Ok(typed!(operands.one_type(&[0])?, E => native_step(scratch, move |o| {
            bias_gradient::<E>(&cpu, &geometry, o.elements(0), o.elements(1), o.take(2));
        })))
    }
}
