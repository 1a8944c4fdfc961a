//! Smooth activations.

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::activation::ActivationFunction;
use crate::native::elementwise::CpuContext;
use crate::native::rows::MapGeometry;
use crate::native::simd::{Bf16, Element};
use stratus_engine::DType;
use stratus_engine::ops::{ActivationBackward, ActivationForward};

impl<F: ActivationFunction> CpuOp for ActivationForward<F> {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 1])?;
        // The output's padding must be zero: cleared if f(0) is not zero. Gradients of padding are zero
        // because `dy` is.
        let has_padding = operands.layouts[1].elements() > operands.values[1].elements();
        let padded = (has_padding && F::value(0.0) != 0.0).then(|| operands.geometry(1)).transpose()?;
        Ok(match (operands.dtype(0), operands.dtype(1)) {
            // Outputs of linear layers have the master precision.
            (Some(DType::F32), Some(DType::Bf16)) => forward::<F, f32, Bf16>(cpu.clone(), padded),
            _ => typed!(operands.one_type(&[0, 1])?, E => forward::<F, E, E>(cpu.clone(), padded)),
        })
    }
}

/// `padded`: the output's geometry, if its padding has to be cleared.
fn forward<F: ActivationFunction, A: Element, B: Element>(
    cpu: CpuContext,
    padded: Option<MapGeometry>,
) -> NativeStep {
    native_step(0, move |o| {
        let y = o.elements::<B>(1);
        cpu.activation::<F, A, B>(o.elements(0), y);
        if let Some(geometry) = &padded {
            geometry.clear_padding(y);
        }
    })
}

impl<F: ActivationFunction> CpuOp for ActivationBackward<F> {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 1, 2])?;
        let cpu = cpu.clone();
        Ok(match (operands.dtype(0), operands.one_type(&[1, 2])?) {
            (Some(DType::F32), DType::Bf16) => native_step(0, move |o| {
                cpu.activation_backward::<F, f32, Bf16>(o.elements(0), o.elements(1), o.elements(2));
            }),
            _ => typed!(operands.one_type(&[0, 1, 2])?, E => native_step(0, move |o| {
                cpu.activation_backward::<F, E, E>(o.elements(0), o.elements(1), o.elements(2));
            })),
        })
    }
}
