//! Layer normalisation over the channels of each pixel.
//!
//! ```text
//! x̂ = (x - mean) / sqrt(variance + ε)        y = w x̂ + b          of each pixel's channels
//! g = w dy            dx = (g - mean(g) - x̂ mean(g x̂)) / sqrt(variance + ε)
//! dw = Σ dy x̂         db = Σ dy               over samples and pixels
//! ```
//!
//! Mean and variance are computed again in the backward pass: a pixel's channels lie together, and reading
//! them is what takes the time.

use super::{KernelSpec, Tiling, expect_counts, expect_same_shape, expect_shape, image_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;
use stratus_graph::ops::LayerNorm2d;

/// `(x [N,C,H,W], weight [C], bias [C]) -> y`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerNormForward {
    /// Attributes.
    pub norm: LayerNorm2d,
}

/// `(x, dy, weight) -> dx`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerNormBackward {
    /// Attributes.
    pub norm: LayerNorm2d,
}

/// `(x, dy) -> dweight [C], dbias [C]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerNormGradients {
    /// Attributes.
    pub norm: LayerNorm2d,
}

pub(super) fn lower(op: &LayerNorm2d, node: &Node, to: &mut Lowering) -> Result<(), EngineError> {
    let inputs = vec![to.input(node, 0), to.parameter(node, 0), to.parameter(node, 1)];
    let y = to.output(node);
    to.push(node, LayerNormForward { norm: *op }, inputs, vec![], vec![y]);
    Ok(())
}

/// Checks two maps of one shape and what there is for each of their channels.
fn check_all(norm: &LayerNorm2d, maps: [&Value; 2], channels: &[&Value]) -> Result<(), String> {
    let [_, of, ..] = image_shape(maps[0])?;
    if of != norm.channels {
        return Err(format!("`{}` has {of} channels, the norm takes {}", maps[0].name, norm.channels));
    }
    expect_same_shape(maps[0], maps[1])?;
    channels.iter().try_for_each(|value| expect_shape(value, &[norm.channels]))
}

impl KernelSpec for LayerNormForward {
    fn name(&self) -> &'static str {
        "layer_norm_forward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[3, 0, 1]])?;
        check_all(&self.norm, [operands[0], operands[3]], &operands[1..3])
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    /// As the graph counts them.
    fn flops(&self, operands: &[&Value]) -> u64 {
        8 * operands[0].elements() as u64
    }

    fn differentiate(&self, step: &Step, to: &mut Differentiator) -> Result<(), EngineError> {
        let [x, weight, bias] = step.inputs[..] else { return Err(to.no_derivative(step)) };
        let Some(dy) = to.gradient(step.outputs[0]) else { return Ok(()) };
        let norm = self.norm;
        if to.wants_gradient(x) {
            to.add_gradient(x, |to, dx| {
                let inputs = vec![x, dy, weight];
                to.push(step, LayerNormBackward { norm }, Phase::BackwardData, inputs, vec![], vec![dx]);
            });
        }
        if to.wants_gradient(weight) || to.wants_gradient(bias) {
            let outputs = vec![to.parameter_gradient(weight), to.parameter_gradient(bias)];
            let kernel = LayerNormGradients { norm };
            to.push(step, kernel, Phase::BackwardWeights, vec![x, dy], vec![], outputs);
        }
        Ok(())
    }
}

impl KernelSpec for LayerNormBackward {
    fn name(&self) -> &'static str {
        "layer_norm_backward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[3, 0, 1]])?;
        check_all(&self.norm, [operands[0], operands[1]], &operands[2..3])?;
        expect_same_shape(operands[0], operands[3])
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    /// The statistics again, two sums and the gradient.
    fn flops(&self, operands: &[&Value]) -> u64 {
        14 * operands[0].elements() as u64
    }
}

impl KernelSpec for LayerNormGradients {
    fn name(&self) -> &'static str {
        "layer_norm_gradients"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, 2]])?;
        check_all(&self.norm, [operands[0], operands[1]], &operands[2..4])
    }

    fn tiling(&self) -> Tiling {
        Tiling::Sums
    }

    /// The statistics again, and two sums.
    fn flops(&self, operands: &[&Value]) -> u64 {
        9 * operands[0].elements() as u64
    }
}
