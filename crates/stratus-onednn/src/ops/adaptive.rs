//! Optimisers with per-element rates.

use super::native::native_step;
use super::sgd::UNSUPPORTED_DTYPES;
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::prepare::{LayoutNeeds, PlanBuilder};
use stratus_engine::ops::AdaptiveUpdate;
use stratus_engine::{DType, Step};

impl CpuOp for AdaptiveUpdate {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let states = self.rule.states().len();
        let (first, copy) = (3, 3 + states);
        let masters: Vec<usize> = [0, 2].into_iter().chain(first..copy).collect();
        operands.expect_same_layout(&[masters.as_slice(), &[copy]].concat())?;
        let has_other_copy = operands.dtype(copy).is_some_and(|dtype| dtype != DType::Bf16);
        if operands.one_type(&masters)? != DType::F32 || has_other_copy {
            return Err(UNSUPPORTED_DTYPES.to_owned());
        }
        let (update, cpu) = (*self, cpu.clone());
        Ok(native_step(0, move |o| {
            let second = if states > 1 { o.elements(first + 1) } else { &mut [] };
            let states = [o.elements(first), second];
            let (scalars, gradient, parameter) = (o.elements(1), o.elements(0), o.elements(2));
            cpu.adaptive(update, scalars, gradient, parameter, states, o.elements(copy));
        }))
    }

    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        plan.add_update(step)
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.updated_weights(step);
    }
}
