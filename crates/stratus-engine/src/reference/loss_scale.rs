//! Dynamic loss scaling.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{AdjustLossScale, FindOverflow, LOSS_SCALE_FIELDS, LossScale};

/// Reads the fields of a loss scale.
fn fields(value: &Tensor<'_>) -> [f64; LOSS_SCALE_FIELDS.len()] {
    std::array::from_fn(|position| value.get(position))
}

/// Reads and decodes a loss scale.
pub(super) fn read(value: &Tensor<'_>) -> LossScale {
    LossScale::from_fields(fields(value))
}

impl ReferenceKernel for FindOverflow {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [gradient, scale] = operands else { return Err(unexpected_operands()) };
        if (0..gradient.len()).any(|position| !gradient.get(position).is_finite()) {
            scale.set(2, 1.0);
        }
        Ok(())
    }
}

impl ReferenceKernel for AdjustLossScale {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [scale] = operands else { return Err(unexpected_operands()) };
        scale.write(0, &self.next(fields(scale)));
        Ok(())
    }
}
