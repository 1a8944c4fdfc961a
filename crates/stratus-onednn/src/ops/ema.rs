//! The exponential moving average of weights.

use super::native::native_step;
use super::sgd::UNSUPPORTED_DTYPES;
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::prepare::{LayoutNeeds, PlanBuilder};
use stratus_engine::ops::EmaUpdate;
use stratus_engine::{DType, Step};

impl CpuOp for EmaUpdate {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 2])?;
        if operands.one_type(&[0, 2])? != DType::F32 {
            return Err(UNSUPPORTED_DTYPES.to_owned());
        }
        let (ema, cpu) = (*self, cpu.clone());
        Ok(native_step(0, move |o| {
            let iteration = o.elements::<f64>(1).get(1).copied().unwrap_or(0.0);
            cpu.ema(ema.gain(iteration) as f32, o.elements(0), o.elements(2));
        }))
    }

    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        plan.add_sharing_layout(step, step.inputs[0], step.updates[0])
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.weights([step.inputs[0], step.updates[0]]);
    }
}
