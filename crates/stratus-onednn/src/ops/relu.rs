//! ReLU that is not fused.

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::native::simd::Bf16;
use stratus_engine::DType;
use stratus_engine::ops::{ReluBackward, ReluForward};

impl CpuOp for ReluForward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 1])?;
        let (ceiling, cpu) = (self.ceiling, cpu.clone());
        Ok(match (operands.dtype(0), operands.dtype(1)) {
            // Outputs of linear layers have the master precision.
            (Some(DType::F32), Some(DType::Bf16)) => {
                native_step(0, move |o| cpu.relu::<f32, Bf16>(ceiling, o.elements(0), o.elements(1)))
            }
            _ => typed!(operands.one_type(&[0, 1])?, E => {
                native_step(0, move |o| cpu.relu::<E, E>(ceiling, o.elements(0), o.elements(1)))
            }),
        })
    }
}

impl CpuOp for ReluBackward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 1, 2])?;
        let (ceiling, cpu) = (self.ceiling, cpu.clone());
        Ok(typed!(operands.one_type(&[0, 1, 2])?, E => native_step(0, move |o| {
            cpu.relu_backward::<E>(ceiling, o.elements(0), o.elements(1), o.elements(2));
        })))
    }
}
