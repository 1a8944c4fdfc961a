//! The loss, its metrics and the gradient of the logits.

use super::native::{fallible, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::native::loss::{Loss, softmax_cross_entropy};
use crate::prepare::PlanBuilder;
use stratus_engine::ops::SoftmaxCrossEntropy;
use stratus_engine::{DType, Step};

impl CpuOp for SoftmaxCrossEntropy {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let classes = operands.values.first().and_then(|v| v.shape.get(1).copied()).unwrap_or(1);
        if operands.dtype(0) != Some(DType::F32) {
            return Err("the logits must be f32".to_owned());
        }
        let team = cpu.team.clone();
        let SoftmaxCrossEntropy {
            auxiliary,
            main_weight: _,
            smoothing,
            mixed_labels: mixed,
            class_weighted: weighted,
            loss_scaled: _,
            partial,
        } = *self;
        let (factor, is_auxiliary) = (self.factor(), auxiliary.is_some());
        let [at_weights, _, at_counts, at_metrics, at_gradient] = self.positions();
        Ok(typed!(operands.dtype(at_gradient).unwrap_or(DType::F32), E => fallible(move |o| {
            let (logits, labels, metrics) = (o.elements(0), o.elements(1), o.elements(at_metrics));
            let class_weights = weighted.then(|| &*o.elements(at_weights));
            let label_counts = partial.then(|| &*o.elements(at_counts));
            let loss = Loss {
                classes,
                factor,
                is_auxiliary,
                smoothing,
                mixed,
                class_weights,
                label_counts,
                tile: o.tile(),
            };
            softmax_cross_entropy::<E>(&team, logits, labels, loss, metrics, o.elements(at_gradient))
        })))
    }

    /// It is never measured, because it reads no map and would reject the benchmark's values as labels.
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        plan.add_native(step.clone(), false)
    }
}
