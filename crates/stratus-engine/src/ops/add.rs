//! The sum of two values, alone or fused with ReLU.

use super::relu::backward_through_relu;
use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_same_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{EngineError, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;

/// `(a, b) -> y = a + b`. With one input both are the same value: `y = a + a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AddForward {
    /// True if ReLU is applied to the result.
    pub relu: bool,
}

pub(super) fn lower(node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    let mut inputs = vec![lowering.unflattened_input(node, 0), lowering.unflattened_input(node, 1)];
    inputs.dedup();
    let y = lowering.output(node);
    lowering.push(node, AddForward { relu: false }, inputs, vec![], vec![y]);
    Ok(())
}

impl KernelSpec for AddForward {
    fn name(&self) -> &'static str {
        if self.relu { "add_relu_forward" } else { "add_forward" }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, 1], [1, 0, 1]])?;
        operands[1..].iter().try_for_each(|other| expect_same_shape(operands[0], other))
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64 * if self.relu { 2 } else { 1 }
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let (inputs, y) = (&step.inputs, step.outputs[0]);
        let Some(mut dy) = backward.gradient(y) else { return Ok(()) };
        if !inputs.iter().any(|&input| backward.requires_grad(input)) {
            return Ok(());
        }
        if self.relu {
            dy = backward_through_relu(step, y, dy, backward);
        }
        // Both derivatives are 1, so one gradient value serves all inputs.
        let twice = (inputs.len() == 1).then(|| inputs[0]);
        for &input in inputs.iter().chain(&twice) {
            if backward.requires_grad(input) {
                backward.share_gradient(step, input, dy);
            }
        }
        Ok(())
    }
}
