//! Dropout: every element asks the mask.

use super::{Reference, Tensor, Tile, unexpected_operands};
use crate::ops::{Dropout, HYPER};

impl Reference for Dropout {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], tile: Tile) -> Result<(), String> {
        let [x, hyper, y] = operands else { return Err(unexpected_operands()) };
        let mut numbers = [0.0; HYPER.len()];
        hyper.read(0, &mut numbers);
        let (mask, scale) = (self.mask(&numbers), self.scale());
        // The mask counts over the whole batch.
        let first = tile.in_batch() * x.len();
        y.fill_with(
            |position| {
                if mask.keeps((first + position) as u64) { x.get(position) * scale } else { 0.0 }
            },
        );
        Ok(())
    }
}
