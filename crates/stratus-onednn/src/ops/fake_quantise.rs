//! Maps and weights in real numbers, rounded as in int8.

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::prepare::{LayoutNeeds, PlanBuilder};
use stratus_engine::ops::{FakeQuantise, FakeQuantiseBackward, FakeQuantiseWeights};
use stratus_engine::{DType, Layout, Step};

impl CpuOp for FakeQuantise {
    /// The padding of blocked layouts stays 0, which is always the number of a byte.
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 1])?;
        let (bytes, cpu) = (self.bytes, cpu.clone());
        Ok(typed!(operands.one_type(&[0, 1])?, E => {
            native_step(0, move |o| cpu.fake_quantise::<E>(bytes, o.elements(0), o.elements(1)))
        }))
    }
}

impl CpuOp for FakeQuantiseBackward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 1, 2])?;
        let (bytes, cpu) = (self.bytes, cpu.clone());
        Ok(typed!(operands.one_type(&[0, 1, 2])?, E => native_step(0, move |o| {
            cpu.fake_quantise_backward::<E>(bytes, o.elements(0), o.elements(1), o.elements(2));
        })))
    }
}

impl CpuOp for FakeQuantiseWeights {
    /// Both are row-major (see [`Self::prepare`]), so output channels are contiguous.
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        if operands.dtype(0) != Some(DType::F32) {
            return Err("weights are rounded from single precision only".to_owned());
        }
        let channels = operands.values[0].shape.first().copied().unwrap_or(1);
        let (limit, cpu) = (f32::from(self.max_weight), cpu.clone());
        Ok(typed!(operands.one_type(&[1])?, E => native_step(0, move |o| {
            cpu.fake_quantise_weights::<E>(channels, limit, o.elements(0), o.elements(1));
        })))
    }

    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        let (mut row_major, [weight, rounded]) = (step.clone(), [step.inputs[0], step.outputs[0]]);
        let plain = Layout::plain(plan.shape(weight));
        if !plan.layout_or(weight, &plain).same_bytes(&plain) {
            row_major.inputs[0] = plan.reordered(step, weight, plain.clone(), "rounded")?;
        }
        plan.set_layout(rounded, plain);
        plan.add_native(row_major, false)
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.weights(step.operands());
    }
}
