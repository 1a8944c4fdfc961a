//! Layer normalisation over the channels of each pixel.
//!
//! ```text
//! x̂ = (x - mean) / sqrt(variance + ε)        y = w x̂ + b          of each pixel's channels
//! g = w dy            dx = (g - mean(g) - x̂ mean(g x̂)) / sqrt(variance + ε)
//! dw = Σ dy x̂         db = Σ dy               over samples and pixels
//! ```
//!
//! Mean and variance are recomputed in the backward pass, which reads a pixel's channels anyway; memory
//! bandwidth dominates.

use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_same_shape, expect_shape, image_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{EngineError, Kernel, Phase, Step, Value};
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

pub(super) fn lower(op: &LayerNorm2d, node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    let inputs = vec![lowering.input(node, 0), lowering.parameter(node, 0), lowering.parameter(node, 1)];
    let y = lowering.output(node);
    lowering.push(node, LayerNormForward { norm: *op }, inputs, vec![], vec![y]);
    Ok(())
}

/// Checks maps of one shape with these channels, and values per channel.
pub(super) fn check_all(channels: usize, maps: &[&Value], per_channel: &[&Value]) -> Result<(), String> {
    let [_, found, ..] = image_shape(maps[0])?;
    if found != channels {
        return Err(format!("`{}`: expected {channels} channels, got {found}", maps[0].name));
    }
    maps.iter().try_for_each(|map| expect_same_shape(maps[0], map))?;
    per_channel.iter().try_for_each(|value| expect_shape(value, &[channels]))
}

/// Adds the derivative of a norm's step `(x, weight, bias) -> y`, or `x -> y` without parameters: the steps
/// of `data`, `(x, dy, weight) -> dx`, and of `weights`, `(x, dy) -> dweight, dbias`.
pub(super) fn differentiate(
    step: &Step,
    data: impl Into<Kernel>,
    weights: impl Into<Kernel>,
    backward: &mut Differentiator,
) -> Result<(), EngineError> {
    let (&x, parameters) = step.inputs.split_first().ok_or_else(|| backward.no_derivative(step))?;
    let Some(dy) = backward.gradient(step.outputs[0]) else { return Ok(()) };
    if backward.requires_grad(x) {
        backward.add_gradient(x, |backward, dx| {
            let inputs = [x, dy].into_iter().chain(parameters.first().copied()).collect();
            backward.push(step, data, Phase::BackwardData, inputs, vec![], vec![dx]);
        });
    }
    if parameters.iter().any(|&parameter| backward.requires_grad(parameter)) {
        let outputs = parameters.iter().map(|&parameter| backward.parameter_gradient(parameter));
        let outputs = outputs.collect();
        backward.push(step, weights, Phase::BackwardWeights, vec![x, dy], vec![], outputs);
    }
    Ok(())
}

impl KernelSpec for LayerNormForward {
    fn name(&self) -> &'static str {
        "layer_norm_forward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[3, 0, 1]])?;
        check_all(self.norm.channels, &[operands[0], operands[3]], &operands[1..3])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Normalisation
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    /// The same count as in the graph.
    fn flops(&self, operands: &[&Value]) -> u64 {
        8 * operands[0].elements() as u64
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let norm = self.norm;
        differentiate(step, LayerNormBackward { norm }, LayerNormGradients { norm }, backward)
    }
}

impl KernelSpec for LayerNormBackward {
    fn name(&self) -> &'static str {
        "layer_norm_backward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[3, 0, 1]])?;
        check_all(self.norm.channels, &[operands[0], operands[1], operands[3]], &operands[2..3])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Normalisation
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    /// Recomputing the statistics, two sums, and the gradient.
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
        check_all(self.norm.channels, &operands[..2], &operands[2..4])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Normalisation
    }

    fn tiling(&self) -> Tiling {
        Tiling::PartialSums
    }

    /// Recomputing the statistics, and two sums.
    fn flops(&self, operands: &[&Value]) -> u64 {
        9 * operands[0].elements() as u64
    }
}
