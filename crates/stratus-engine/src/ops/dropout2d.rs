//! Spatial dropout and stochastic depth in training. Their mask is drawn like that of [`Dropout`], one
//! element per channel of a sample or per sample.

use super::{
    Dropout, ITERATION_SCALAR_FIELDS, KernelSpec, Mask, Tiling, WorkKind, expect_counts, expect_same_shape,
    expect_shape,
};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::ops::image_shape;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;
use stratus_graph::ops::{Dropout2d as Op, StochasticDepth};

/// `(x [N,C,H,W], scalars) -> y`: a channel of a sample is 0 with probability `p`, the others are multiplied
/// by `1 / (1 - p)`. The same kernel computes `dx` from `dy`.
///
/// Channel `c` of sample `n` of the whole batch is element `n C + c` of the layer's [`Mask`], independent of
/// layout and tiles. With `whole_samples`, sample `n` is element `n`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dropout2d {
    /// The probability of dropping a channel.
    pub p: f32,
    /// The layer's index: layers have different masks.
    pub layer: u32,
    /// True if all channels of a sample are dropped or kept together (stochastic depth).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "whole")]
    pub whole_samples: bool,
}

impl Dropout2d {
    fn elementwise(&self) -> Dropout {
        Dropout { p: self.p, layer: self.layer }
    }

    /// The mask of an iteration, given its [`ITERATION_SCALAR_FIELDS`].
    #[must_use]
    pub fn mask(&self, scalars: &[f64]) -> Mask {
        self.elementwise().mask(scalars)
    }

    /// The factor of kept channels.
    #[must_use]
    pub fn scale(&self) -> f64 {
        self.elementwise().scale()
    }
}

pub(super) fn lower(op: &Op, node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    lower_with(op.p, false, node, lowering)
}

pub(super) fn lower_stochastic_depth(
    op: &StochasticDepth,
    node: &Node,
    lowering: &mut Lowering,
) -> Result<(), EngineError> {
    lower_with(op.p, true, node, lowering)
}

fn lower_with(p: f32, whole: bool, node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    if !lowering.is_training(node) || p == 0.0 {
        return lowering.alias(node);
    }
    let (x, scalars) = (lowering.input(node, 0), lowering.iteration_scalars());
    let y = lowering.output(node);
    let kernel = Dropout2d { p, layer: lowering.layer_index(), whole_samples: whole };
    lowering.push(node, kernel, vec![x, scalars], vec![], vec![y]);
    Ok(())
}

impl KernelSpec for Dropout2d {
    fn name(&self) -> &'static str {
        if self.whole_samples { "stochastic_depth" } else { "dropout2d" }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, 1]])?;
        if !(0.0..1.0).contains(&self.p) {
            return Err(format!("`p` must be in [0, 1), got {}", self.p));
        }
        image_shape(operands[0])?;
        expect_shape(operands[1], &[ITERATION_SCALAR_FIELDS.len()])?;
        expect_same_shape(operands[0], operands[2])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        // The mask depends on the sample's position in the batch, which a kernel knows from its tile.
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let [x, scalars] = step.inputs[..] else { return Err(backward.no_derivative(step)) };
        let Some(dy) = backward.gradient(step.outputs[0]) else { return Ok(()) };
        if backward.requires_grad(x) {
            backward.add_gradient(x, |backward, dx| {
                backward.push(step, *self, Phase::BackwardData, vec![dy, scalars], vec![], vec![dx]);
            });
        }
        Ok(())
    }
}
