//! Changes of type and layout, and sums of gradients over tiles and micro-batches.

mod conversion;

pub(crate) use conversion::conversion_candidate;

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::native::simd::Bf16;
use crate::prepare::{LayoutNeeds, PlanBuilder};
use stratus_engine::ops::{Accumulate, AddTiles, Convert, Flatten, Reorder};
use stratus_engine::{DType, Layout, Step};

impl CpuOp for Convert {
    /// Converts the type within the same layout.
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 1])?;
        let cpu = cpu.clone();
        Ok(match (operands.dtype(0), operands.dtype(1)) {
            (Some(DType::F32), Some(DType::Bf16)) => {
                native_step(0, move |o| cpu.convert::<f32, Bf16>(o.elements(0), o.elements(1)))
            }
            (Some(DType::Bf16), Some(DType::F32)) => {
                native_step(0, move |o| cpu.convert::<Bf16, f32>(o.elements(0), o.elements(1)))
            }
            _ => typed!(operands.one_type(&[0, 1])?, E => {
                native_step(0, move |o| cpu.convert::<E, E>(o.elements(0), o.elements(1)))
            }),
        })
    }

    /// If at most one of the two layouts is decided, both get the same.
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        let (from, to) = (step.inputs[0], step.outputs[0]);
        let decided = plan.layout(to).or_else(|| plan.layout(from)).cloned();
        let layout = decided.unwrap_or_else(|| Layout::plain(plan.shape(from)));
        let [source, target] = [from, to].map(|id| plan.layout_or(id, &layout));
        if source.same_bytes(&target) {
            plan.add_native(step.clone(), false)
        } else {
            plan.add_conversion(step)
        }
    }
}

impl CpuOp for Reorder {
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        plan.add_conversion(step)
    }
}

impl CpuOp for Flatten {
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        plan.add_conversion(step)
    }
}

impl CpuOp for AddTiles {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 1])?;
        let cpu = cpu.clone();
        Ok(typed!(operands.one_type(&[0, 1])?, E => native_step(0, move |o| {
            cpu.add_tile::<E>(o.tile().starts_sums(), o.elements(0), o.elements(1));
        })))
    }

    /// The sum has the tiles' layout. If the parameter has another, the sum is reordered after all tiles are
    /// added.
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        let part = step.inputs[0];
        let layout = plan.layout_or(part, &Layout::plain(plan.shape(part)));
        plan.add_native_gradient(step, layout, PlanBuilder::push_after_section)
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.weights([step.inputs[0], step.outputs[0]]);
    }
}

impl CpuOp for Accumulate {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 1])?;
        let cpu = cpu.clone();
        Ok(typed!(operands.one_type(&[0, 1])?, E => native_step(0, move |o| {
            cpu.accumulate::<E>(o.elements(0), o.elements(1));
        })))
    }
}
