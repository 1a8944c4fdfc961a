//! Gradient clipping by the global norm.

use super::loss_scale::UNSUPPORTED_LOSS_SCALE;
use super::native::native_step;
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::{CpuContext, SQUARES_PER_SUM};
use crate::prepare::{LayoutNeeds, PlanBuilder};
use stratus_engine::ops::{ClipFactor, ClipGradient, SumOfSquares};
use stratus_engine::{DType, Step};

const UNSUPPORTED_DTYPES: &str = "only f32 is supported";

impl CpuOp for SumOfSquares {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        if operands.dtype(0) != Some(DType::F32) {
            return Err(UNSUPPORTED_DTYPES.to_owned());
        }
        // Padding is zero, so it may be summed too.
        let sums = operands.layouts[0].elements().div_ceil(SQUARES_PER_SUM);
        let (first, cpu) = (self.first, cpu.clone());
        Ok(native_step(sums * size_of::<f64>(), move |o| {
            let squares = cpu.sum_of_squares(o.elements(0), o.elements(2));
            if let [sum, factor] = o.elements::<f64>(1) {
                (*sum, *factor) = (if first { squares } else { *sum + squares }, 1.0);
            }
        }))
    }

    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        plan.add_sharing_layout(step, step.inputs[0], step.inputs[0])
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.weights([step.inputs[0]]);
    }
}

impl CpuOp for ClipFactor {
    fn build(&self, _operands: &StepOperands, _cpu: &CpuContext) -> Result<NativeStep, String> {
        if self.loss_scaled {
            return Err(UNSUPPORTED_LOSS_SCALE.to_owned());
        }
        let clip = *self;
        Ok(native_step(0, move |o| {
            if let [squares, factor] = o.elements::<f64>(0) {
                *factor = clip.factor(*squares, 1.0);
            }
        }))
    }
}

impl CpuOp for ClipGradient {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        if operands.dtype(1) != Some(DType::F32) {
            return Err(UNSUPPORTED_DTYPES.to_owned());
        }
        let cpu = cpu.clone();
        Ok(native_step(0, move |o| {
            let factor = o.elements::<f64>(0).get(1).copied().unwrap_or(1.0);
            cpu.multiply(factor as f32, o.elements(1));
        }))
    }

    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        plan.add_sharing_layout(step, step.updates[0], step.updates[0])
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.weights([step.updates[0]]);
    }
}
