//! The per-pixel loss, its metrics, the predicted classes and the gradient of the logits.

use super::native::typed;
use super::{CpuOp, NativeStep, StepOperands, native};
use crate::native::elementwise::CpuContext;
use crate::native::pixel_loss::{PixelLoss, PixelOperands, pixel_cross_entropy, scratch_elements};
use crate::prepare::PlanBuilder;
use stratus_engine::ops::PixelCrossEntropy;
use stratus_engine::{DType, Step};

impl CpuOp for PixelCrossEntropy {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let geometry = operands.common_geometry(0)?;
        let PixelCrossEntropy {
            auxiliary,
            main_weight: _,
            smoothing,
            class_weighted: weighted,
            binary,
            predicts,
            loss_scaled: _,
            partial,
        } = *self;
        let [weights, _, label_counts, metrics, predictions, gradient] = self.positions();
        let (factor, is_auxiliary) = (self.factor(), auxiliary.is_some());
        let loss = PixelLoss { geometry, binary, factor, is_auxiliary, smoothing };
        let scratch = operands.values.len();
        let scratch_bytes = scratch_elements(loss.classes(), cpu.team.threads()) * size_of::<f32>();
        let (cpu, has_gradient) = (cpu.clone(), gradient < scratch);
        let logits = operands.dtype(0).unwrap_or(DType::F32);
        let out = if has_gradient { operands.dtype(gradient).unwrap_or(logits) } else { logits };
        Ok(typed!(logits, A => typed!(out, E => NativeStep {
            scratch_bytes,
            ..native::fallible(move |o| {
                let operands = PixelOperands::<A, E> {
                    logits: o.elements(0),
                    labels: o.elements(1),
                    weights: if weighted { o.elements(weights) } else { &mut [] },
                    label_counts: partial.then(|| &*o.elements(label_counts)),
                    metrics: o.elements(metrics),
                    predictions: if predicts { o.elements(predictions) } else { &mut [] },
                    gradient: if has_gradient { o.elements(gradient) } else { &mut [] },
                    scratch: o.elements(scratch),
                };
                pixel_cross_entropy(&cpu, loss, o.tile(), operands)
            })
        })))
    }

    /// It is never measured, because it would reject the benchmark's values as labels.
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        plan.add_native(step.clone(), false)
    }
}
