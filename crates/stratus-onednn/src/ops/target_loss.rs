//! The loss of several targets per sample, its metrics and the gradient of the outputs.

use super::native::{fallible, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::native::target_loss::{Loss, target_loss};
use crate::prepare::PlanBuilder;
use stratus_engine::ops::TargetLoss;
use stratus_engine::{DType, Step};

impl CpuOp for TargetLoss {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let targets = operands.values.first().and_then(|v| v.shape.get(1).copied()).unwrap_or(1);
        if operands.dtype(0) != Some(DType::F32) {
            return Err("the outputs must be f32".to_owned());
        }
        let TargetLoss { function, auxiliary, smoothing, class_weighted, partial, .. } = *self;
        let (factor, is_auxiliary) = (self.factor(), auxiliary.is_some());
        let [at_weights, _, at_counts, at_metrics, at_gradient] = self.positions();
        let cpu = cpu.clone();
        Ok(typed!(operands.dtype(at_gradient).unwrap_or(DType::F32), E => fallible(move |o| {
            let (outputs, labels, metrics) = (o.elements(0), o.elements(1), o.elements(at_metrics));
            let weights = class_weighted.then(|| &*o.elements(at_weights));
            let label_counts = partial.then(|| &*o.elements(at_counts));
            let loss = Loss {
                function,
                targets,
                factor,
                is_auxiliary,
                smoothing,
                weights,
                label_counts,
                tile: o.tile(),
            };
            target_loss::<E>(&cpu, outputs, labels, loss, metrics, o.elements(at_gradient))
        })))
    }

    /// It is never measured, because it would reject the benchmark's values as labels.
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        plan.add_native(step.clone(), false)
    }
}
