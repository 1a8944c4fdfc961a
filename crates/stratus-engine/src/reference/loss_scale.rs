//! The scale of the loss.

use super::{Reference, Tensor, Tile, unexpected_operands};
use crate::ops::{AdjustLossScale, FindOverflow, LOSS_SCALE, LossScale};

/// The numbers of a loss scale.
fn numbers(value: &Tensor<'_>) -> [f64; LOSS_SCALE.len()] {
    std::array::from_fn(|position| value.get(position))
}

/// What a loss scale says.
pub(super) fn read(value: &Tensor<'_>) -> LossScale {
    LossScale::of(numbers(value))
}

impl Reference for FindOverflow {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [gradient, scale] = operands else { return Err(unexpected_operands()) };
        if (0..gradient.len()).any(|position| !gradient.get(position).is_finite()) {
            scale.set(2, 1.0);
        }
        Ok(())
    }
}

impl Reference for AdjustLossScale {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [scale] = operands else { return Err(unexpected_operands()) };
        scale.write(0, &self.next(numbers(scale)));
        Ok(())
    }
}
