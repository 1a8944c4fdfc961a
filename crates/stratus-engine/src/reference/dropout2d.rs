//! Spatial dropout: every channel of a sample asks the mask, or every sample.

use super::{Reference, Tensor, Tile, unexpected_operands};
use crate::ops::{Dropout2d, HYPER};

impl Reference for Dropout2d {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], tile: Tile) -> Result<(), String> {
        let [x, hyper, y] = operands else { return Err(unexpected_operands()) };
        let mut numbers = [0.0; HYPER.len()];
        hyper.read(0, &mut numbers);
        let (mask, scale) = (self.mask(&numbers), self.scale());
        let [batch, channels, height, width] = x.image();
        let each = if self.whole { channels * height * width } else { height * width };
        // The mask counts over the whole batch.
        let first = tile.in_batch() * batch * if self.whole { 1 } else { channels };
        y.fill_with(|position| {
            let keeps = mask.keeps((first + position / each) as u64);
            if keeps { x.get(position) * scale } else { 0.0 }
        });
        Ok(())
    }
}
