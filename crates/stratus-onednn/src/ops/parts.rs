//! Sums over the parts of a batch, and communication with other workers.

use super::native::{fallible, native_step};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::prepare::{LayoutNeeds, PlanBuilder};
use stratus_engine::exchange::NOT_CONNECTED_ERROR;
use stratus_engine::ops::{AllReduceBucket, MAX_BUCKET_VALUES, StageTransfer, TreeSum};
use stratus_engine::{DType, Layout, Operands, Step};

impl CpuOp for TreeSum {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let positions: Vec<usize> = (0..operands.values.len()).collect();
        operands.expect_same_layout(&positions)?;
        let (add, cpu) = (*self, cpu.clone());
        match operands.one_type(&positions)? {
            DType::F32 => Ok(native_step(0, move |o| {
                let plus = |x: &[f32], sum: &mut [f32]| cpu.accumulate(x, sum);
                add_part(add, o, &|x, y| cpu.copy(x, y), &plus);
            })),
            // Metrics: a few numbers.
            DType::F64 => Ok(native_step(0, move |o| {
                let plus = |x: &[f64], sum: &mut [f64]| {
                    sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
                };
                add_part(add, o, &|x, y| y.copy_from_slice(x), &plus);
            })),
            other => Err(format!("no kernel for {other}")),
        }
    }

    /// Sum and levels have the layout of the parts. If the parameter has another, the sum is reordered.
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        let part = step.inputs[0];
        let layout = plan.layout_or(part, &Layout::plain(plan.shape(part)));
        for &level in &step.outputs[1..] {
            plan.layout_or(level, &layout);
        }
        plan.add_native_gradient(step, layout, PlanBuilder::push_reorder_of_sum)
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.weights(step.operands());
    }
}

/// Adds a part to the complete levels below it, and stores the sum in the target level or in the output; see
/// [`TreeSum::step_for`]. An added level is free, so sums are computed in place.
fn add_part<T: bytemuck::Pod>(
    add: TreeSum,
    operands: &mut Operands<'_>,
    copy: &dyn Fn(&[T], &mut [T]),
    plus: &dyn Fn(&[T], &mut [T]),
) {
    let turn = add.step_for(operands.tile().micro_batch);
    let part: &mut [T] = operands.elements(0);
    let sum: &mut [T] = operands.elements(1);
    let mut levels: [&mut [T]; MAX_BUCKET_VALUES] = std::array::from_fn(|_| Default::default());
    for (level, slice) in levels.iter_mut().enumerate().take(add.levels()) {
        *slice = operands.elements(2 + level);
    }
    let mut partial: &[T] = part;
    let (complete, rest) = levels.split_at_mut(turn.levels);
    for level in complete {
        plus(partial, level);
        partial = level;
    }
    match turn.to {
        _ if turn.adds_sum => plus(partial, sum),
        // The complete levels precede the one that is started.
        Some(_) => rest.iter_mut().take(1).for_each(|level| copy(partial, level)),
        None => copy(partial, sum),
    }
}

impl CpuOp for AllReduceBucket {
    fn build(&self, _operands: &StepOperands, _cpu: &CpuContext) -> Result<NativeStep, String> {
        Ok(fallible(|_| Err(NOT_CONNECTED_ERROR.to_owned())))
    }

    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        plan.add_native(step.clone(), false)
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.weights(step.operands());
    }
}

impl CpuOp for StageTransfer {
    fn build(&self, _operands: &StepOperands, _cpu: &CpuContext) -> Result<NativeStep, String> {
        Ok(fallible(|_| Err(NOT_CONNECTED_ERROR.to_owned())))
    }

    /// A transferred value keeps its layout from the unpartitioned program.
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        plan.add_native(step.clone(), false)
    }
}
