//! Multiplication by a constant.

use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_same_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;
use stratus_graph::ops::Scale as Op;

/// `x -> y = factor * x`. The same kernel computes `dx` from `dy`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scale {
    /// The factor.
    pub factor: f32,
}

pub(super) fn lower(op: &Op, node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    let x = lowering.input(node, 0);
    // Logits keep the master precision.
    let y = lowering.output_matching(node, x);
    lowering.push(node, Scale { factor: op.factor }, vec![x], vec![], vec![y]);
    Ok(())
}

impl KernelSpec for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        if !self.factor.is_finite() {
            return Err(format!("`factor` must be finite, got {}", self.factor));
        }
        expect_same_shape(operands[0], operands[1])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let Some(dy) = backward.gradient(step.outputs[0]) else { return Ok(()) };
        if backward.requires_grad(step.inputs[0]) {
            backward.add_gradient(step.inputs[0], |backward, dx| {
                backward.push(step, *self, Phase::BackwardData, vec![dy], vec![], vec![dx]);
            });
        }
        Ok(())
    }
}
