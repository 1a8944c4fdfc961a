//! Sums over the parts of a batch, and what is exchanged with other workers.

use super::native::{fallible, native_step};
use super::{NativeStep, OnCpu, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::prepare::{LayoutNeeds, PlanBuilder};
use stratus_engine::exchange::UNCONNECTED;
use stratus_engine::ops::{AddParts, BUCKET_VALUES, ExchangeSums, Transfer};
use stratus_engine::{DType, Layout, Operands, Step};

impl OnCpu for AddParts {
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
            other => Err(format!("there is no kernel for {other}")),
        }
    }

    /// Sum and levels have the layout of the parts. Where the parameter has another, the sum is reordered
    /// when all parts are added.
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        let part = step.inputs[0];
        let made = plan.layout_or(part, &Layout::plain(plan.shape(part)));
        for &level in &step.outputs[1..] {
            plan.layout_or(level, &made);
        }
        plan.add_native_gradient(step, made, PlanBuilder::push_behind)
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.weights(step.operands());
    }
}

/// Adds a part to the levels below it that are complete, and puts the sum where it belongs; see
/// [`AddParts::turn`]. A level that was added is free, so that sums are made in place.
fn add_part<T: bytemuck::Pod>(
    add: AddParts,
    operands: &mut Operands<'_>,
    copy: &dyn Fn(&[T], &mut [T]),
    plus: &dyn Fn(&[T], &mut [T]),
) {
    let turn = add.turn(operands.tile().micro_batch);
    let part: &mut [T] = operands.elements(0);
    let sum: &mut [T] = operands.elements(1);
    let mut levels: [&mut [T]; BUCKET_VALUES] = std::array::from_fn(|_| Default::default());
    for (level, slice) in levels.iter_mut().enumerate().take(add.levels()) {
        *slice = operands.elements(2 + level);
    }
    let mut made: &[T] = part;
    let (complete, rest) = levels.split_at_mut(turn.levels);
    for level in complete {
        plus(made, level);
        made = level;
    }
    match turn.to {
        _ if turn.adds_sum => plus(made, sum),
        // The levels that are complete come before the one that is begun.
        Some(_) => rest.iter_mut().take(1).for_each(|level| copy(made, level)),
        None => copy(made, sum),
    }
}

impl OnCpu for ExchangeSums {
    fn build(&self, _operands: &StepOperands, _cpu: &CpuContext) -> Result<NativeStep, String> {
        Ok(fallible(|_| Err(UNCONNECTED.to_owned())))
    }

    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        plan.add_native(step.clone(), false)
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.weights(step.operands());
    }
}

impl OnCpu for Transfer {
    fn build(&self, _operands: &StepOperands, _cpu: &CpuContext) -> Result<NativeStep, String> {
        Ok(fallible(|_| Err(UNCONNECTED.to_owned())))
    }

    /// What is handed over has the layout that it has in the uncut program.
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        plan.add_native(step.clone(), false)
    }
}
