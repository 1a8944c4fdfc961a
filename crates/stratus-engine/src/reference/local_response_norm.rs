//! Local response normalisation across channels.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::Value;
use crate::ops::{LrnBackward, LrnForward};
use std::ops::Range;
use stratus_graph::ops::LocalResponseNorm;

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
