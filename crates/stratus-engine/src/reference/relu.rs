//! ReLU. NaN propagates, so that a diverged run shows.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{ReluBackward, ReluForward};

/// `max(x, 0)`; NaN propagates.
pub(super) fn apply_relu(x: f64) -> f64 {
    if x <= 0.0 { 0.0 } else { x }
}

impl ReferenceKernel for ReluForward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, y] = operands else { return Err(unexpected_operands()) };
        // Without a ceiling, the comparison with NaN is always false.
        let ceiling = self.ceiling.map_or(f64::NAN, f64::from);
        y.fill_with(|position| {
            let x = x.get(position);
            if x >= ceiling { ceiling } else { apply_relu(x) }
        });
        Ok(())
    }
}

impl ReferenceKernel for ReluBackward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [y, dy, dx] = operands else { return Err(unexpected_operands()) };
        let ceiling = self.ceiling.map_or(f64::NAN, f64::from);
        dx.fill_with(|position| {
            let y = y.get(position);
            if y <= 0.0 || y.is_nan() || y >= ceiling { 0.0 } else { dy.get(position) }
        });
        Ok(())
    }
}
