//! ReLU, with or without a ceiling, that was not fused.

use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_same_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{EngineError, Phase, Step, Value, ValueId};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;

/// `x -> y = max(x, 0)`, clamped to `ceiling` if set.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReluForward {
    /// The largest result: 6 for ReLU6.
    pub ceiling: Option<f32>,
}

/// `(y, dy) -> dx`: `dy` where `0 < y < ceiling`, else 0. It reads the output, so that the input is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReluBackward {
    /// The ceiling of the forward pass.
    pub ceiling: Option<f32>,
}

pub(super) fn lower(ceiling: Option<f32>, node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    let x = lowering.input(node, 0);
    let y = lowering.output_like(node, x);
    lowering.push(node, ReluForward { ceiling }, vec![x], vec![], vec![y]);
    Ok(())
}

/// Adds the masking of `dy` by `y > 0` for a kernel with fused ReLU, unless `dy` is already masked; returns
/// the masked gradient.
pub(super) fn backward_through_relu(
    step: &Step,
    y: ValueId,
    dy: ValueId,
    backward: &mut Differentiator,
) -> ValueId {
    if backward.gradient_is_masked(y) {
        return dy;
    }
    let masked = backward.partial_gradient(y, "masked");
    let kernel = ReluBackward { ceiling: None };
    backward.push(step, kernel, Phase::BackwardData, vec![y, dy], vec![], vec![masked]);
    masked
}

impl KernelSpec for ReluForward {
    fn name(&self) -> &'static str {
        if self.ceiling.is_some() { "clipped_relu_forward" } else { "relu_forward" }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        expect_same_shape(operands[0], operands[1])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64 * if self.ceiling.is_some() { 2 } else { 1 }
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let (x, y) = (step.inputs[0], step.outputs[0]);
        let Some(dy) = backward.gradient(y) else { return Ok(()) };
        if !backward.requires_grad(x) {
            return Ok(());
        }
        if self.ceiling.is_none() && backward.gradient_is_masked(y) {
            backward.share_gradient(step, x, dy);
        } else {
            backward.add_gradient(x, |backward, dx| {
                let kernel = ReluBackward { ceiling: self.ceiling };
                backward.push(step, kernel, Phase::BackwardData, vec![y, dy], vec![], vec![dx]);
            });
        }
        Ok(())
    }
}

impl KernelSpec for ReluBackward {
    fn name(&self) -> &'static str {
        if self.ceiling.is_some() { "clipped_relu_backward" } else { "relu_backward" }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, 1]])?;
        expect_same_shape(operands[0], operands[1])?;
        expect_same_shape(operands[0], operands[2])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64 * if self.ceiling.is_some() { 2 } else { 1 }
    }
}
