//! The loss by the logits of a teacher.

use super::native::typed;
use super::{CpuOp, NativeStep, StepOperands, native};
use crate::native::distillation::{
    Distillation, DistillationOperands, as_image, distillation_loss, scratch_elements,
};
use crate::native::elementwise::CpuContext;
use crate::prepare::PlanBuilder;
use stratus_engine::ops::DistillationLoss;
use stratus_engine::{DType, Step};

impl CpuOp for DistillationLoss {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let [_, at_counts, at_metrics, at_gradient] = self.positions();
        let is_matrix = operands.values.first().is_some_and(|logits| logits.shape.len() == 2);
        let geometry = |position| Ok::<_, String>(as_image(operands.geometry(position)?, is_matrix));
        let geometries = [geometry(0)?, geometry(1)?, geometry(at_gradient)?];
        let Self { weight, temperature, partial, .. } = *self;
        let loss = Distillation { weight, temperature, label_stride: self.label_stride(), geometries };
        let scratch = operands.values.len();
        let scratch_bytes = scratch_elements(geometries[0].channels, cpu.team.threads()) * size_of::<f32>();
        let cpu = cpu.clone();
        let logits = operands.dtype(0).unwrap_or(DType::F32);
        let out = operands.dtype(at_gradient).unwrap_or(logits);
        Ok(typed!(logits, A => typed!(out, E => NativeStep {
            scratch_bytes,
            ..native::fallible(move |o| {
                let operands = DistillationOperands::<A, E> {
                    logits: o.elements(0),
                    teacher: o.elements(1),
                    labels: o.elements(2),
                    label_counts: partial.then(|| &*o.elements(at_counts)),
                    metrics: o.elements(at_metrics),
                    gradient: o.elements(at_gradient),
                    scratch: o.elements(scratch),
                };
                distillation_loss(&cpu, loss, operands);
                Ok(())
            })
        })))
    }

    /// It is never measured: it has one kernel.
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        plan.add_native(step.clone(), false)
    }
}
