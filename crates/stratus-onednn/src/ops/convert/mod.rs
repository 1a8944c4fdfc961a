//! Changes of type and layout, and sums of gradients over tiles and micro-batches.

mod transfer;

pub(crate) use transfer::transfer;

use super::native::{native_step, typed};
use super::{NativeStep, OnCpu, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::native::simd::Bf16;
use crate::prepare::{LayoutNeeds, PlanBuilder};
use stratus_engine::ops::{Accumulate, AddTiles, Convert, Flatten, Reorder};
use stratus_engine::{DType, Layout, Step};

impl OnCpu for Convert {
    /// Another type in the same layout.
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

    /// The two get the same layout where only one, or none, is decided.
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        let (from, to) = (step.inputs[0], step.outputs[0]);
        let decided = plan.layout(to).or_else(|| plan.layout(from)).cloned();
        let layout = decided.unwrap_or_else(|| Layout::plain(plan.shape(from)));
        let [source, target] = [from, to].map(|id| plan.layout_or(id, &layout));
        if source.same_bytes(&target) { plan.add_native(step.clone(), false) } else { plan.transfer(step) }
    }
}

impl OnCpu for Reorder {
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        plan.transfer(step)
    }
}

impl OnCpu for Flatten {
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        plan.transfer(step)
    }
}

impl OnCpu for AddTiles {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 1])?;
        let cpu = cpu.clone();
        Ok(typed!(operands.one_type(&[0, 1])?, E => native_step(0, move |o| {
            cpu.add_tile::<E>(o.tile().is_first_of_all(), o.elements(0), o.elements(1));
        })))
    }

    /// The sum has the tiles' layout. Where the parameter has another, the sum is reordered when all tiles
    /// are added.
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        let part = step.inputs[0];
        let made = plan.layout_or(part, &Layout::plain(plan.shape(part)));
        plan.add_native_gradient(step, made, PlanBuilder::push_behind)
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.weights([step.inputs[0], step.outputs[0]]);
    }
}

impl OnCpu for Accumulate {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 1])?;
        let cpu = cpu.clone();
        Ok(typed!(operands.one_type(&[0, 1])?, E => native_step(0, move |o| {
            cpu.accumulate::<E>(o.elements(0), o.elements(1));
        })))
    }
}
