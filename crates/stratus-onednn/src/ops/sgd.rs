//! Stochastic gradient descent.

use super::native::native_step;
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::{CpuContext, SgdConstants};
use crate::prepare::{LayoutNeeds, PlanBuilder};
use stratus_engine::ops::SgdUpdate;
use stratus_engine::{DType, Step};

/// The error of optimisers for other types than f32 parameters with a bf16 copy.
pub(super) const UNSUPPORTED_DTYPES: &str = "only f32 parameters with a bf16 copy are supported";

impl CpuOp for SgdUpdate {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 2, 3, 4])?;
        let has_other_copy = operands.dtype(4).is_some_and(|dtype| dtype != DType::Bf16);
        if operands.one_type(&[0, 2, 3])? != DType::F32 || has_other_copy {
            return Err(UNSUPPORTED_DTYPES.to_owned());
        }
        let (sgd, cpu) = (*self, cpu.clone());
        Ok(native_step(0, move |o| {
            let rates = SgdConstants::from_scalars(sgd, o.elements(1));
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
