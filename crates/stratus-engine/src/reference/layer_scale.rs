//! A trained factor for each channel.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{LayerScale, LayerScaleGradient};

impl ReferenceKernel for LayerScale {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, factors, y] = operands else { return Err(unexpected_operands()) };
        let [_, channels, height, width] = x.image();
        y.fill_with(|at| x.get(at) * factors.get(at / (height * width) % channels));
        Ok(())
    }
}

impl ReferenceKernel for LayerScaleGradient {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, dy, gradient] = operands else { return Err(unexpected_operands()) };
        let [batch, channels, height, width] = x.image();
        let pixels = height * width;
        gradient.fill_with(|channel| {
            let planes = (0..batch).map(|n| (n * channels + channel) * pixels);
            planes.flat_map(|start| start..start + pixels).map(|at| x.get(at) * dy.get(at)).sum()
        });
        Ok(())
    }
}
