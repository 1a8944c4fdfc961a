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
        y.fill_with(|position| rectify(x.get(position)));
        Ok(())
    }
}

impl Reference for ReluBackward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [y, dy, dx] = operands else { return Err(unexpected_operands()) };
        dx.fill_with(|position| if y.get(position) > 0.0 { dy.get(position) } else { 0.0 });
        Ok(())
    }
}
