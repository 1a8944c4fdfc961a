//! The common part of all activations.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{ActivationBackward, ActivationForward};

/// An activation in double precision, from its definition.
pub(super) trait ActivationFunction {
    /// `f(x)`.
    fn value(x: f64) -> f64;
    /// `f'(x)`.
    fn derivative(x: f64) -> f64;
}

impl<F: ActivationFunction + Send> ReferenceKernel for ActivationForward<F> {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, y] = operands else { return Err(unexpected_operands()) };
        y.fill_with(|position| F::value(x.get(position)));
        Ok(())
    }
}

impl<F: ActivationFunction + Send> ReferenceKernel for ActivationBackward<F> {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, dy, dx] = operands else { return Err(unexpected_operands()) };
        dx.fill_with(|position| dy.get(position) * F::derivative(x.get(position)));
        Ok(())
    }
}
