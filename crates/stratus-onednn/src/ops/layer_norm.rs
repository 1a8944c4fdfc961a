//! Layer normalisation over the channels of each pixel.

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::native::norm::layer::LayerNorm;
use stratus_engine::ops::{LayerNormBackward, LayerNormForward, LayerNormGradients};

/// The normalisation of the step's maps at these positions.
fn norm(
    epsilon: f32,
    operands: &StepOperands,
    maps: &[usize],
    cpu: &CpuContext,
) -> Result<LayerNorm, String> {
    operands.expect_same_layout(maps)?;
    Ok(LayerNorm::new(epsilon, operands.geometry(0)?, cpu))
}

impl CpuOp for LayerNormForward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let norm = norm(self.norm.epsilon, operands, &[0, 3], cpu)?;
        Ok(typed!(operands.one_type(&[0, 3])?, E => native_step(norm.scratch_bytes(), move |o| {
            let parameters = [&*o.elements(1), &*o.elements(2)];
            norm.forward::<E>(o.elements(0), parameters, o.elements(3), o.elements(4));
        })))
    }
}

impl CpuOp for LayerNormBackward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let norm = norm(self.norm.epsilon, operands, &[0, 1, 3], cpu)?;
        Ok(typed!(operands.one_type(&[0, 1, 3])?, E => native_step(norm.scratch_bytes(), move |o| {
            let (x, dy, weight, dx) = (o.elements(0), o.elements(1), o.elements(2), o.elements(3));
            norm.backward::<E>(x, dy, weight, dx, o.elements(4));
        })))
    }
}

impl CpuOp for LayerNormGradients {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let norm = norm(self.norm.epsilon, operands, &[0, 1], cpu)?;
        let scratch = norm.gradients_scratch_bytes();
        Ok(typed!(operands.one_type(&[0, 1])?, E => native_step(scratch, move |o| {
            let (x, dy, gradients) = (o.elements(0), o.elements(1), [o.elements(2), o.elements(3)]);
            norm.gradients::<E>(x, dy, gradients, o.take(4));
        })))
    }
}
