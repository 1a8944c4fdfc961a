//! ReLU with a trained slope below 0. The derivative at 0 is the slope, as in PyTorch.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{PreluBackward, PreluForward, PreluGradient};

/// The position of an element's slope among `slopes`.
fn slope_index(x: &Tensor<'_>, slopes: usize, position: usize) -> usize {
    let [_, channels, height, width] = x.image();
    if slopes == 1 { 0 } else { position / (height * width) % channels }
}

impl ReferenceKernel for PreluForward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, slopes, y] = operands else { return Err(unexpected_operands()) };
        y.fill_with(|at| {
            let value = x.get(at);
            if value > 0.0 { value } else { value * slopes.get(slope_index(x, slopes.len(), at)) }
        });
        Ok(())
    }
}

impl ReferenceKernel for PreluBackward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, dy, slopes, dx] = operands else { return Err(unexpected_operands()) };
        dx.fill_with(|at| {
            let slope = if x.get(at) > 0.0 { 1.0 } else { slopes.get(slope_index(x, slopes.len(), at)) };
            slope * dy.get(at)
        });
        Ok(())
    }
}

impl ReferenceKernel for PreluGradient {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, dy, gradient] = operands else { return Err(unexpected_operands()) };
        let slopes = gradient.len();
        gradient.fill_with(|slope| {
            let own = (0..x.len()).filter(|&at| slope_index(x, slopes, at) == slope);
            own.map(|at| if x.get(at) > 0.0 { 0.0 } else { x.get(at) * dy.get(at) }).sum()
        });
        Ok(())
    }
}
