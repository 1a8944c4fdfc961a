//! From the bytes of stored pixels to the numbers that a network reads.

use super::{Reference, Tensor, Tile, unexpected_operands};
use crate::ops::NormalisePixels;

impl Reference for NormalisePixels {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [images, y] = operands else { return Err(unexpected_operands()) };
        let [_, channels, height, width] = images.image();
        // Not in double precision, as other kernels: the roundings to f32 are what it is.
        y.fill_with(|position| {
            let channel = position / (height * width) % channels;
            f64::from(self.of(channel, images.get(position) as u8))
        });
        Ok(())
    }
}
