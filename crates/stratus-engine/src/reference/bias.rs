//! A bias for each channel.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{AddBias, BiasGradient};

impl ReferenceKernel for AddBias {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [bias, y] = operands else { return Err(unexpected_operands()) };
        let [_, channels, height, width] = y.image();
        for position in 0..y.len() {
            let channel = position / (height * width) % channels;
            y.set(position, y.get(position) + bias.get(channel));
        }
        Ok(())
    }
}

impl ReferenceKernel for BiasGradient {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [dy, dbias] = operands else { return Err(unexpected_operands()) };
        let [batch, channels, height, width] = dy.image();
        let pixels = height * width;
        dbias.fill_with(|channel| {
            let planes = (0..batch).map(|n| (n * channels + channel) * pixels);
            planes.flat_map(|start| start..start + pixels).map(|position| dy.get(position)).sum()
        });
        Ok(())
    }
}
