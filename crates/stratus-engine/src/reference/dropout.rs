//! Dropout of elements.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{Dropout, ITERATION_SCALAR_FIELDS};

impl ReferenceKernel for Dropout {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], tile: Tile) -> Result<(), String> {
        let [x, scalars, y] = operands else { return Err(unexpected_operands()) };
        let mut numbers = [0.0; ITERATION_SCALAR_FIELDS.len()];
        scalars.read(0, &mut numbers);
        let (mask, scale) = (self.mask(&numbers), self.scale());
        // Mask elements are counted over the whole batch.
        let first = tile.global_position() * x.len();
        y.fill_with(
            |position| {
                if mask.keeps((first + position) as u64) { x.get(position) * scale } else { 0.0 }
            },
        );
        Ok(())
    }
}
