//! Gradient clipping by the global norm.

use super::loss_scale::read;
use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{ClipFactor, ClipGradient, SumOfSquares};

impl ReferenceKernel for SumOfSquares {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [gradient, norm] = operands else { return Err(unexpected_operands()) };
        let squares: f64 = (0..gradient.len()).map(|position| gradient.get(position).powi(2)).sum();
        let before = if self.first { 0.0 } else { norm.get(0) };
        norm.write(0, &[before + squares, 1.0]);
        Ok(())
    }
}

impl ReferenceKernel for ClipFactor {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let (scale, norm) = match operands {
            [norm] => (1.0, norm),
            [scale, norm] => (read(scale).scale, norm),
            _ => return Err(unexpected_operands()),
        };
        norm.set(1, self.factor(norm.get(0), scale));
        Ok(())
    }
}

impl ReferenceKernel for ClipGradient {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [norm, gradient] = operands else { return Err(unexpected_operands()) };
        let factor = norm.get(1);
        (0..gradient.len()).for_each(|position| gradient.set(position, factor * gradient.get(position)));
        Ok(())
    }
}
