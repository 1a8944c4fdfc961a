//! A factor for each channel of a sample.

use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_same_shape, expect_shape, image_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;

/// `(x [N,C,H,W], s [N,C,1,1]) -> y`: every pixel of a channel is multiplied by its factor. The same kernel
/// computes `dx` from `(dy, s)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChannelScale;

/// `(x, dy) -> ds`: the sum of `x dy` over the pixels of each channel of each sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChannelScaleGradient;

/// `(dy [N,C,H,W], s [N,C,1,1], dmean [N,C,1,1]) -> dx = dy s + dmean / (H W)`: the gradient of a map
/// that is scaled, and whose mean over the pixels of each channel is used as well, as in
/// squeeze-and-excitation blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChannelScaleMeanBackward;

pub(super) fn lower(node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    let inputs = lowering.distinct_inputs(node);
    let y = lowering.output(node);
    lowering.push(node, ChannelScale, inputs, vec![], vec![y]);
    Ok(())
}

/// Checks a map and a value for each of its channels.
fn expect_one_per_channel(map: &Value, values: &Value) -> Result<(), String> {
    let [n, c, ..] = image_shape(map)?;
    expect_shape(values, &[n, c, 1, 1])
}

impl KernelSpec for ChannelScale {
    fn name(&self) -> &'static str {
        "channel_scale"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, 1]])?;
        expect_one_per_channel(operands[0], operands[1])?;
        expect_same_shape(operands[0], operands[2])
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
            backward.add_gradient(factors, |backward, gradient| {
                let kernel = ChannelScaleGradient;
                backward.push(step, kernel, Phase::BackwardData, vec![x, dy], vec![], vec![gradient]);
            });
        }
        Ok(())
    }
}

impl KernelSpec for ChannelScaleMeanBackward {
    fn name(&self) -> &'static str {
        "channel_scale_mean_backward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[3, 0, 1]])?;
        expect_one_per_channel(operands[0], operands[1])?;
        expect_one_per_channel(operands[0], operands[2])?;
        expect_same_shape(operands[0], operands[3])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    /// A product and a sum for each element.
    fn flops(&self, operands: &[&Value]) -> u64 {
        2 * operands[0].elements() as u64
    }
}

impl KernelSpec for ChannelScaleGradient {
    fn name(&self) -> &'static str {
        "channel_scale_gradient"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, 1]])?;
        expect_same_shape(operands[0], operands[1])?;
        expect_one_per_channel(operands[0], operands[2])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    /// A product and a sum for each element.
    fn flops(&self, operands: &[&Value]) -> u64 {
        2 * operands[0].elements() as u64
    }
}
