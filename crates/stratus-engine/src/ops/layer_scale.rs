//! A trained factor for each channel.

use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_same_shape, expect_shape, image_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;

/// `(x [N,C,H,W], factors [C,1,1]) -> y`. The same kernel computes `dx` from `(dy, factors)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LayerScale;

/// `(x, dy) -> dfactors [C,1,1]`: the sum of `x dy` over samples and pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LayerScaleGradient;

pub(super) fn lower(node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    let inputs = vec![lowering.input(node, 0), lowering.parameter(node, 0)];
    let y = lowering.output(node);
    lowering.push(node, LayerScale, inputs, vec![], vec![y]);
    Ok(())
}

/// Checks two maps of one shape and a factor for each of their channels.
fn check_all(maps: [&Value; 2], factors: &Value) -> Result<(), String> {
    let [_, channels, ..] = image_shape(maps[0])?;
    expect_same_shape(maps[0], maps[1])?;
    expect_shape(factors, &[channels, 1, 1])
}

impl KernelSpec for LayerScale {
    fn name(&self) -> &'static str {
        "layer_scale"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, 1]])?;
        check_all([operands[0], operands[2]], operands[1])
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
        let [x, factors] = step.inputs[..] else { return Err(backward.no_derivative(step)) };
        let Some(dy) = backward.gradient(step.outputs[0]) else { return Ok(()) };
        if backward.requires_grad(x) {
            backward.add_gradient(x, |backward, dx| {
                backward.push(step, Self, Phase::BackwardData, vec![dy, factors], vec![], vec![dx]);
            });
        }
        if backward.requires_grad(factors) {
            let gradient = backward.parameter_gradient(factors);
            let kernel = LayerScaleGradient;
            backward.push(step, kernel, Phase::BackwardWeights, vec![x, dy], vec![], vec![gradient]);
        }
        Ok(())
    }
}

impl KernelSpec for LayerScaleGradient {
    fn name(&self) -> &'static str {
        "layer_scale_gradient"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, 1]])?;
        check_all([operands[0], operands[1]], operands[2])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::PartialSums
    }

    /// A product and a sum for each element.
    fn flops(&self, operands: &[&Value]) -> u64 {
        2 * operands[0].elements() as u64
    }
}
