//! Dropout of channels (spatial dropout) and of samples (stochastic depth).

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{Dropout2d, ITERATION_SCALAR_FIELDS};

impl ReferenceKernel for Dropout2d {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], tile: Tile) -> Result<(), String> {
        let [x, scalars, y] = operands else { return Err(unexpected_operands()) };
        let mut numbers = [0.0; ITERATION_SCALAR_FIELDS.len()];
        scalars.read(0, &mut numbers);
        let (mask, scale) = (self.mask(&numbers), self.scale());
        let [batch, channels, height, width] = x.image();
        let each = if self.whole_samples { channels * height * width } else { height * width };
        // Mask elements are counted over the whole batch.
        let first = tile.global_position() * batch * if self.whole_samples { 1 } else { channels };
        y.fill_with(|position| {
            let keeps = mask.keeps((first + position / each) as u64);
            if keeps { x.get(position) * scale } else { 0.0 }
        });
        Ok(())
    }
}
