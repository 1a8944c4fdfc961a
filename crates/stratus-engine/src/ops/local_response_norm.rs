//! Local response normalisation across channels.

use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_same_shape, image_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::reference::{ReferenceKernel, Tensor, unexpected_operands};
use crate::{EngineError, Phase, Step, Tile, Value};
use serde::{Deserialize, Serialize};
use std::ops::Range;
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

    fn work_kind(&self) -> WorkKind {
        WorkKind::Normalisation
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

    fn work_kind(&self) -> WorkKind {
        WorkKind::Normalisation
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    /// Recomputing the scales, and summing over the windows that contain a channel.
    fn flops(&self, operands: &[&Value]) -> u64 {
        2 * flops(&self.norm, operands[0])
    }
}

/// The channels that are summed for channel `c`.
fn window(norm: &LocalResponseNorm, c: usize, channels: usize) -> Range<usize> {
    c.saturating_sub(norm.size / 2)..c.saturating_add((norm.size - 1) / 2).saturating_add(1).min(channels)
}

/// `k + alpha / size * sum of squares` around channel `c`; the pixel's channels are `stride` apart from
/// `first` on.
fn scale(
    norm: &LocalResponseNorm,
    x: &Tensor<'_>,
    first: usize,
    stride: usize,
    c: usize,
    channels: usize,
) -> f64 {
    let squares: f64 = window(norm, c, channels).map(|i| x.get(first + i * stride).powi(2)).sum();
    f64::from(norm.k) + f64::from(norm.alpha) / norm.size as f64 * squares
}

/// The position of the first channel of every pixel.
fn pixels([batch, channels, height, width]: [usize; 4]) -> impl Iterator<Item = usize> {
    let pixels = height * width;
    (0..batch).flat_map(move |n| (0..pixels).map(move |pixel| n * channels * pixels + pixel))
}

impl ReferenceKernel for LrnForward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, y] = operands else { return Err(unexpected_operands()) };
        let [_, channels, height, width] = x.image();
        let (stride, beta) = (height * width, f64::from(self.norm.beta));
        for first in pixels(x.image()) {
            for c in 0..channels {
                let scale = scale(&self.norm, x, first, stride, c, channels);
                let position = first + c * stride;
                y.set(position, x.get(position) * scale.powf(-beta));
            }
        }
        Ok(())
    }
}

impl ReferenceKernel for LrnBackward {
    /// The scales of a pixel.
    fn scratch(&self, operands: &[&Value]) -> usize {
        operands[0].shape[1]
    }

    /// The gradient of a channel is its own gradient times its scale, plus contributions of all outputs whose
    /// window contains it.
    fn run(&self, operands: &mut [Tensor<'_>], scales: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, dy, dx] = operands else { return Err(unexpected_operands()) };
        let [_, channels, height, width] = x.image();
        let (stride, beta) = (height * width, f64::from(self.norm.beta));
        let slope = 2.0 * beta * f64::from(self.norm.alpha) / self.norm.size as f64;
        for first in pixels(x.image()) {
            for (c, scale_of) in scales.iter_mut().enumerate() {
                *scale_of = scale(&self.norm, x, first, stride, c, channels);
            }
            for c in 0..channels {
                let position = first + c * stride;
                let mut gradient = dy.get(position) * scales[c].powf(-beta);
                for other in (0..channels).filter(|&other| window(&self.norm, other, channels).contains(&c)) {
                    let at = first + other * stride;
                    gradient -=
                        slope * x.get(position) * dy.get(at) * x.get(at) * scales[other].powf(-beta - 1.0);
                }
                dx.set(position, gradient);
            }
        }
        Ok(())
    }
}
