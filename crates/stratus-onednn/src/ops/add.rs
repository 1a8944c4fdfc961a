//! Elementwise sums of maps.

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::native::simd::Bf16;
use stratus_engine::DType;
use stratus_engine::ops::AddForward;

impl CpuOp for AddForward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let result = operands.values.len() - 1;
        let (both, relu, cpu) = (result > 1, self.relu, cpu.clone());
        operands.expect_same_layout(&(0..=result).collect::<Vec<_>>())?;
        let from = operands.one_type(&(0..result).collect::<Vec<_>>())?;
        Ok(match (from, operands.dtype(result)) {
            // Outputs of linear layers have the master precision.
            (DType::F32, Some(DType::Bf16)) => native_step(0, move |o| {
                let a = &*o.elements::<f32>(0);
                let b = if both { &*o.elements(1) } else { a };
                cpu.add::<f32, Bf16>(relu, a, b, o.elements(result));
            }),
            _ => typed!(operands.one_type(&[0, result])?, E => native_step(0, move |o| {
                let a = &*o.elements::<E>(0);
                let b = if both { &*o.elements(1) } else { a };
                cpu.add::<E, E>(relu, a, b, o.elements(result));
            })),
        })
    }
}
