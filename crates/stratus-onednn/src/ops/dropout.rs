//! Dropout, whose mask is a function of seed, iteration, layer and element.

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::dropout::{DropoutMask, dropout};
use crate::native::elementwise::CpuContext;
use crate::native::simd::Bf16;
use stratus_engine::ops::Dropout;
use stratus_engine::{DType, Layout, Operands, Value};

impl CpuOp for Dropout {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 2])?;
        let (kernel, cpu) = (*self, cpu.clone());
        let elements = operands.values.first().map_or(0, Value::elements);
        let scale = self.scale() as f32;
        let row_major = operands.layouts.first().is_some_and(Layout::is_row_major);
        let geometry = if row_major { None } else { Some(operands.geometry(0)?) };
        let drop = move |o: &mut Operands<'_>| {
            let (mask, first) = (kernel.mask(o.elements(1)), (o.tile().global_position() * elements) as u64);
            DropoutMask { mask, scale, first }
        };
        Ok(match (operands.dtype(0), operands.dtype(2)) {
            // Outputs of linear layers have the master precision.
            (Some(DType::F32), Some(DType::Bf16)) => native_step(0, move |o| {
                let drop = drop(o);
                dropout::<f32, Bf16>(&cpu, &drop, geometry.as_ref(), o.elements(0), o.elements(2));
            }),
            _ => typed!(operands.one_type(&[0, 2])?, E => native_step(0, move |o| {
                let drop = drop(o);
                dropout::<E, E>(&cpu, &drop, geometry.as_ref(), o.elements(0), o.elements(2));
            })),
        })
    }
}
