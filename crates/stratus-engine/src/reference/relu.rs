//! The rectifier. NaN passes: a diverged run must show.

use super::{Reference, Tensor, Tile, unexpected_operands};
use crate::ops::{ReluBackward, ReluForward};

/// `max(x, 0)`, and NaN where `x` is.
pub(super) fn rectify(x: f64) -> f64 {
    if x <= 0.0 { 0.0 } else { x }
}

impl Reference for ReluForward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, y] = operands else { return Err(unexpected_operands()) };
        // Nothing is at least NaN.
        let ceiling = self.ceiling.map_or(f64::NAN, f64::from);
        y.fill_with(|position| {
            let x = x.get(position);
            if x >= ceiling { ceiling } else { rectify(x) }
        });
        Ok(())
    }
}

impl Reference for ReluBackward {
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
