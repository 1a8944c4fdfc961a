//! GELU.

use super::native::{native_step, typed};
use super::{NativeStep, OnCpu, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::native::simd::Bf16;
use stratus_engine::DType;
use stratus_engine::ops::{GeluBackward, GeluForward};

impl OnCpu for GeluForward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 1])?;
        let cpu = cpu.clone();
        Ok(match (operands.dtype(0), operands.dtype(1)) {
            // A linear layer's results have the master precision.
            (Some(DType::F32), Some(DType::Bf16)) => {
                native_step(0, move |o| cpu.gelu::<f32, Bf16>(o.elements(0), o.elements(1)))
            }
            _ => typed!(operands.one_type(&[0, 1])?, E => {
                native_step(0, move |o| cpu.gelu::<E, E>(o.elements(0), o.elements(1)))
            }),
        })
    }
}

impl OnCpu for GeluBackward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 1, 2])?;
        let cpu = cpu.clone();
        Ok(match (operands.dtype(0), operands.one_type(&[1, 2])?) {
            (Some(DType::F32), DType::Bf16) => native_step(0, move |o| {
                cpu.gelu_backward::<f32, Bf16>(o.elements(0), o.elements(1), o.elements(2));
            }),
            _ => typed!(operands.one_type(&[0, 1, 2])?, E => native_step(0, move |o| {
                cpu.gelu_backward::<E, E>(o.elements(0), o.elements(1), o.elements(2));
            })),
        })
    }
}
