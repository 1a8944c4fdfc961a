//! The Gaussian error linear unit.

use super::{KernelSpec, Tiling, expect_counts, expect_same_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;

/// `x -> y = x * P(z <= x)` for `z` of the standard normal distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GeluForward;

/// `(x, dy) -> dx = dy * (P(z <= x) + x * p(x))`, where `p` is the distribution's density. Two inputs may
/// have one output, so that the input is needed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GeluBackward;

pub(super) fn lower(node: &Node, to: &mut Lowering) -> Result<(), EngineError> {
    let (x, y) = (to.input(node, 0), to.output(node));
    to.push(node, GeluForward, vec![x], vec![], vec![y]);
    Ok(())
}

impl KernelSpec for GeluForward {
    fn name(&self) -> &'static str {
        "gelu_forward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        expect_same_shape(operands[0], operands[1])
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    /// As the graph counts them.
    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64
    }

    fn differentiate(&self, step: &Step, to: &mut Differentiator) -> Result<(), EngineError> {
        let (x, y) = (step.inputs[0], step.outputs[0]);
        let Some(dy) = to.gradient(y) else { return Ok(()) };
        if to.wants_gradient(x) {
            to.add_gradient(x, |to, dx| {
                to.push(step, GeluBackward, Phase::BackwardData, vec![x, dy], vec![], vec![dx]);
            });
        }
        Ok(())
    }
}

impl KernelSpec for GeluBackward {
    fn name(&self) -> &'static str {
        "gelu_backward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, 1]])?;
        expect_same_shape(operands[0], operands[1])?;
        expect_same_shape(operands[0], operands[2])
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    /// As many as the forward pass and the product with the gradient.
    fn flops(&self, operands: &[&Value]) -> u64 {
        2 * operands[0].elements() as u64
    }
}
