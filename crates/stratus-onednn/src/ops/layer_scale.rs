//! A trained factor per channel.

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::by_channel::{constants_scratch_bytes, sums_scratch_bytes};
use crate::native::elementwise::CpuContext;
use crate::native::layer_scale::{layer_scale, layer_scale_gradient};
use stratus_engine::ops::{LayerScale, LayerScaleGradient};

impl CpuOp for LayerScale {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 2])?;
        let (map, cpu) = (operands.geometry(0)?, cpu.clone());
        let scratch = constants_scratch_bytes(&map);
        Ok(typed!(operands.one_type(&[0, 2])?, E => native_step(scratch, move |o| {
            let (x, factors, y) = (o.elements(0), o.elements(1), o.elements(2));
            layer_scale::<E>(&cpu, &map, x, factors, y, o.elements(3));
        })))
    }
}

impl CpuOp for LayerScaleGradient {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 1])?;
        let (map, cpu) = (operands.geometry(0)?, cpu.clone());
        let scratch = sums_scratch_bytes(&cpu, &map);
        Ok(typed!(operands.one_type(&[0, 1])?, E => native_step(scratch, move |o| {
            let (maps, gradient) = ([&*o.elements(0), &*o.elements(1)], o.elements(2));
            layer_scale_gradient::<E>(&cpu, &map, maps, gradient, o.take(3));
        })))
    }
}
