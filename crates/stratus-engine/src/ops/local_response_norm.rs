//! Local response normalisation across channels.

use super::{KernelSpec, Tiling, expect_counts, expect_same_shape, image_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;
use stratus_graph::ops::LocalResponseNorm;

/// `x -> y = x * scale^-beta`, where `scale` is `k` plus `alpha` times the mean square of the neighbouring
/// channels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LrnForward {
    /// Attributes.
    pub norm: LocalResponseNorm,
}

/// `(x, dy) -> dx`. The scales are recomputed, which costs less than writing and reading them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LrnBackward {
    /// Attributes.
    pub norm: LocalResponseNorm,
}

pub(super) fn lower(op: &LocalResponseNorm, node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    let (x, y) = (lowering.input(node, 0), lowering.output(node));
    lowering.push(node, LrnForward { norm: *op }, vec![x], vec![], vec![y]);
    Ok(())
}

fn check_map(norm: &LocalResponseNorm, x: &Value) -> Result<(), String> {
    image_shape(x)?;
    if norm.size == 0 {
        return Err("the window must have at least one channel".to_owned());
    }
    Ok(())
}

/// The same count as in the graph: a square and an addition per channel of the window, then scale, add, power
/// and divide.
fn flops(norm: &LocalResponseNorm, x: &Value) -> u64 {
    (x.elements() as u64).saturating_mul((norm.size as u64).saturating_mul(2).saturating_add(4))
}

impl KernelSpec for LrnForward {
    fn name(&self) -> &'static str {
        "local_response_norm_forward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        check_map(&self.norm, operands[0])?;
        expect_same_shape(operands[0], operands[1])
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        flops(&self.norm, operands[0])
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let (x, y) = (step.inputs[0], step.outputs[0]);
        let Some(dy) = backward.gradient(y) else { return Ok(()) };
        if backward.requires_grad(x) {
            backward.add_gradient(x, |backward, dx| {
                let kernel = LrnBackward { norm: self.norm };
                backward.push(step, kernel, Phase::BackwardData, vec![x, dy], vec![], vec![dx]);
            });
        }
        Ok(())
    }
}

impl KernelSpec for LrnBackward {
    fn name(&self) -> &'static str {
        "local_response_norm_backward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, 1]])?;
        check_map(&self.norm, operands[0])?;
        expect_same_shape(operands[0], operands[1])?;
        expect_same_shape(operands[0], operands[2])
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    /// Recomputing the scales, and summing over the windows that contain a channel.
    fn flops(&self, operands: &[&Value]) -> u64 {
        2 * flops(&self.norm, operands[0])
    }
}
