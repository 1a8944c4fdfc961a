//! Stochastic gradient descent.

use super::native::native_step;
use super::{NativeStep, OnCpu, StepOperands};
use crate::native::elementwise::{CpuContext, Rates};
use crate::prepare::{LayoutNeeds, PlanBuilder};
use stratus_engine::ops::SgdUpdate;
use stratus_engine::{DType, Step};

/// What optimisers say of other types than f32 parameters with a bf16 copy.
pub(super) const TYPES: &str = "it has a kernel for f32 with a copy in bf16 alone";

impl OnCpu for SgdUpdate {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 2, 3, 4])?;
        let has_other_copy = operands.dtype(4).is_some_and(|dtype| dtype != DType::Bf16);
        if operands.one_type(&[0, 2, 3])? != DType::F32 || has_other_copy {
            return Err(TYPES.to_owned());
        }
        let (sgd, cpu) = (*self, cpu.clone());
        Ok(native_step(0, move |o| {
            let rates = Rates::of(sgd, o.elements(1));
            cpu.sgd(rates, o.elements(0), o.elements(2), o.elements(3), o.elements(4));
        }))
    }

    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        plan.add_update(step)
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.updated_weights(step);
    }
}
