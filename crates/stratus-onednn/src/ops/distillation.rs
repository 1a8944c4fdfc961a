//! The loss by the outputs of a teacher.

use super::native::typed;
use super::{CpuOp, NativeStep, StepOperands, native};
use crate::native::distillation::{
    Distillation, DistillationOperands, as_image, distillation_loss, scratch_elements,
};
use crate::native::elementwise::CpuContext;
use crate::native::output_distillation::{Labels, OutputDistillation, OutputOperands, output_distillation};
use crate::prepare::PlanBuilder;
use stratus_engine::ops::{DistillationFunction, DistillationLoss};
use stratus_engine::{DType, Step};

impl CpuOp for DistillationLoss {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let is_matrix = operands.values.first().is_some_and(|logits| logits.shape.len() == 2);
        match self.function {
            DistillationFunction::Softmax => by_sample(self, operands, cpu, is_matrix),
            DistillationFunction::Sigmoid | DistillationFunction::SquaredError => {
                by_output(self, operands, cpu, is_matrix)
            }
        }
    }

    /// It is never measured: it has one kernel.
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        plan.add_native(step.clone(), false)
    }
}

/// The divergence of two distributions over the classes of a sample or pixel.
fn by_sample(
    loss: &DistillationLoss,
    operands: &StepOperands,
    cpu: &CpuContext,
    is_matrix: bool,
) -> Result<NativeStep, String> {
    let [_, at_counts, at_metrics, at_gradient] = loss.positions();
    let geometry = |position| Ok::<_, String>(as_image(operands.geometry(position)?, is_matrix));
    let geometries = [geometry(0)?, geometry(1)?, geometry(at_gradient)?];
    let DistillationLoss { weight, temperature, partial, .. } = *loss;
    let loss = Distillation { weight, temperature, label_stride: loss.label_stride(), geometries };
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

/// Each output compared on its own: targets of a sample, or the only channel of a map.
fn by_output(
    loss: &DistillationLoss,
    operands: &StepOperands,
    cpu: &CpuContext,
    is_matrix: bool,
) -> Result<NativeStep, String> {
    let [_, at_counts, at_metrics, at_gradient] = loss.positions();
    let stride = |position: usize| {
        Ok::<_, String>(if is_matrix { 1 } else { operands.geometry(position)?.pixel_channels })
    };
    let strides = [stride(0)?, stride(1)?, stride(at_gradient)?];
    let DistillationLoss { function, weight, temperature, partial, .. } = *loss;
    let are_logits = function == DistillationFunction::Sigmoid;
    let loss = OutputDistillation { are_logits, weight, temperature, strides };
    let cpu = cpu.clone();
    let logits = operands.dtype(0).unwrap_or(DType::F32);
    let out = operands.dtype(at_gradient).unwrap_or(logits);
    Ok(typed!(logits, A => typed!(out, E => native::native_step(0, move |o| {
        let labels = match is_matrix {
            true => Labels::Targets(o.elements(2)),
            false => Labels::Classes(o.elements(2)),
        };
        let operands = OutputOperands::<A, E> {
            outputs: o.elements(0),
            teacher: o.elements(1),
            labels,
            label_counts: partial.then(|| &*o.elements(at_counts)),
            metrics: o.elements(at_metrics),
            gradient: o.elements(at_gradient),
        };
        output_distillation(&cpu, loss, operands);
    }))))
}
