//! Joins the weights of several convolutions, and splits their gradient.

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::prepare::{LayoutNeeds, PlanBuilder};
use stratus_engine::ops::{JoinWeights, SplitGradient};
use stratus_engine::{Layout, Step};

impl CpuOp for JoinWeights {
    /// All are row-major (see [`Self::prepare`]), so joining concatenates them.
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let [weights, ..] = operands.counts;
        let cpu = cpu.clone();
        Ok(typed!(operands.one_type(&(0..=weights).collect::<Vec<_>>())?, E => native_step(0, move |o| {
            let joined = o.elements::<E>(weights);
            let mut first = 0;
            for position in 0..weights {
                let weight = o.elements::<E>(position);
                cpu.copy(weight, &mut joined[first..first + weight.len()]);
                first += weight.len();
            }
        })))
    }

    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        let mut joined = step.clone();
        for id in &mut joined.inputs {
            let plain = Layout::plain(plan.shape(*id));
            if !plan.layout_or(*id, &plain).same_bytes(&plain) {
                *id = plan.reordered(step, *id, plain, "joined")?;
            }
        }
        let output = joined.outputs[0];
        plan.set_layout(output, Layout::plain(plan.shape(output)));
        plan.add_native(joined, false)
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.weights(step.operands());
    }
}

impl CpuOp for SplitGradient {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let split = &operands.values[1];
        let first = split.elements() / split.shape[0].max(1) * self.first;
        let cpu = cpu.clone();
        Ok(typed!(operands.one_type(&[0, 1])?, E => native_step(0, move |o| {
            let (joined, split) = (o.elements::<E>(0), o.elements::<E>(1));
            cpu.copy(&joined[first..first + split.len()], split);
        })))
    }

    /// Row-major, like the joined gradient and all joined weights.
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        let [joined, split] = [step.inputs[0], step.outputs[0]].map(|id| Layout::plain(plan.shape(id)));
        let layout = plan.layout_or(step.inputs[0], &joined);
        if !layout.is_row_major() {
            return Err(format!("the gradient of joined weights has the layout {}", layout.tag));
        }
        plan.add_native_gradient(step, split, PlanBuilder::push)
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.weights(step.operands());
    }
}
