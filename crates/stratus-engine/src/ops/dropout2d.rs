//! Spatial dropout and stochastic depth in training. Their mask is drawn as that of [`Dropout`], once for a
//! channel of a sample, or for a sample.

use super::{Dropout, HYPER, KernelSpec, Mask, Tiling, expect_counts, expect_same_shape, expect_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::ops::image_shape;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;
use stratus_graph::ops::{Dropout2d as Op, StochasticDepth};

/// `(x [N,C,H,W], hyper) -> y`: a channel of a sample is 0 with probability `p`, the others are multiplied by
/// `1 / (1 - p)`. The same kernel on `dy` makes `dx`.
///
/// Channel `c` of sample `n` of the whole batch is element `n C + c` of the layer's [`Mask`], whatever the
/// layout and however the batch is cut into tiles. Where it drops whole samples, sample `n` is element `n`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dropout2d {
    /// The share of channels that are dropped.
    pub p: f32,
    /// The layer's number: layers have different masks.
    pub layer: u32,
    /// Whether all channels of a sample are dropped or kept together: stochastic depth.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
}

impl Dropout2d {
    fn elementwise(&self) -> Dropout {
        Dropout { p: self.p, layer: self.layer }
    }

    /// The mask of an iteration, given its numbers as [`HYPER`] has them.
    #[must_use]
    pub fn mask(&self, hyper: &[f64]) -> Mask {
        self.elementwise().mask(hyper)
    }

    /// What channels that are kept are multiplied by.
    #[must_use]
    pub fn scale(&self) -> f64 {
        self.elementwise().scale()
    }
}

pub(super) fn lower(op: &Op, node: &Node, to: &mut Lowering) -> Result<(), EngineError> {
    lower_with(op.p, false, node, to)
}

pub(super) fn lower_whole(op: &StochasticDepth, node: &Node, to: &mut Lowering) -> Result<(), EngineError> {
    lower_with(op.p, true, node, to)
}

fn lower_with(p: f32, whole: bool, node: &Node, to: &mut Lowering) -> Result<(), EngineError> {
    if !to.trains(node) || p == 0.0 {
        return to.alias(node);
    }
    let (x, hyper) = (to.input(node, 0), to.hyper());
    let y = to.output(node);
    let kernel = Dropout2d { p, layer: to.layer_number(), whole };
    to.push(node, kernel, vec![x, hyper], vec![], vec![y]);
    Ok(())
}

impl KernelSpec for Dropout2d {
    fn name(&self) -> &'static str {
        if self.whole { "stochastic_depth" } else { "dropout2d" }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, 1]])?;
        if !(0.0..1.0).contains(&self.p) {
            return Err(format!("it drops {} of all channels; it is at least 0 and less than 1", self.p));
        }
        image_shape(operands[0])?;
        expect_shape(operands[1], &[HYPER.len()])?;
        expect_same_shape(operands[0], operands[2])
    }

    fn tiling(&self) -> Tiling {
        // Of a sample and its place in the batch, which a kernel knows from its tile.
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64
    }

    fn differentiate(&self, step: &Step, to: &mut Differentiator) -> Result<(), EngineError> {
        let [x, hyper] = step.inputs[..] else { return Err(to.no_derivative(step)) };
        let Some(dy) = to.gradient(step.outputs[0]) else { return Ok(()) };
        if to.wants_gradient(x) {
            to.add_gradient(x, |to, dx| {
                to.push(step, *self, Phase::BackwardData, vec![dy, hyper], vec![], vec![dx]);
            });
        }
        Ok(())
    }
}
