//! Normalisation of images stored as bytes.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::NormalisePixels;

impl ReferenceKernel for NormalisePixels {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [images, y] = operands else { return Err(unexpected_operands()) };
        let [_, channels, height, width] = images.image();
        // In f32 instead of double precision, because the intermediate roundings are specified.
        y.fill_with(|position| {
            let channel = position / (height * width) % channels;
            f64::from(self.normalise(channel, images.get(position) as u8))
        });
        Ok(())
    }
}
