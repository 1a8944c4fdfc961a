//! A factor for each channel of a sample.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{ChannelScale, ChannelScaleGradient, ChannelScaleMeanBackward};

impl ReferenceKernel for ChannelScale {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, factors, y] = operands else { return Err(unexpected_operands()) };
        let [.., height, width] = x.image();
        y.fill_with(|position| x.get(position) * factors.get(position / (height * width)));
        Ok(())
    }
}

impl ReferenceKernel for ChannelScaleMeanBackward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [dy, factors, dmean, dx] = operands else { return Err(unexpected_operands()) };
        let [.., height, width] = dy.image();
        let pixels = height * width;
        dx.fill_with(|position| {
            let channel = position / pixels;
            dy.get(position) * factors.get(channel) + dmean.get(channel) / pixels as f64
        });
        Ok(())
    }
}

impl ReferenceKernel for ChannelScaleGradient {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, dy, gradient] = operands else { return Err(unexpected_operands()) };
        let [.., height, width] = x.image();
        let pixels = height * width;
        gradient.fill_with(|channel| {
            (channel * pixels..(channel + 1) * pixels).map(|at| x.get(at) * dy.get(at)).sum()
        });
        Ok(())
    }
}
