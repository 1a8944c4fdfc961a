//! Counts the labels of a batch by class.

use super::native::native_step;
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::native::label_counts::{count_labels, count_targets, scratch_counts};
use crate::prepare::PlanBuilder;
use stratus_engine::ops::CountLabels;
use stratus_engine::{DType, Step};

impl CpuOp for CountLabels {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let classes = operands.values.get(1).map_or(0, stratus_engine::Value::elements);
        let scratch_bytes = scratch_counts(classes, cpu.team.threads()) * size_of::<u64>();
        let (team, stride) = (cpu.team.clone(), self.stride());
        if operands.dtype(0) == Some(DType::F32) {
            return Ok(native_step(scratch_bytes, move |o| {
                count_targets(&team, o.elements(0), o.elements(1), o.elements(2));
            }));
        }
        Ok(native_step(scratch_bytes, move |o| {
            count_labels(&team, o.elements(0), stride, o.elements(1), o.elements(2));
        }))
    }

    /// It is never measured, because it has no alternatives.
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        plan.add_native(step.clone(), false)
    }
}
