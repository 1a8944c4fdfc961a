//! Multiplication by a constant.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::Scale;

impl ReferenceKernel for Scale {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, y] = operands else { return Err(unexpected_operands()) };
        y.fill_with(|position| f64::from(self.factor) * x.get(position));
        Ok(())
    }
}
