//! The gradient of a fully connected layer and its update, a row of weights at a time.

use super::sgd::step;
use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::LinearUpdate;

impl ReferenceKernel for LinearUpdate {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, dy, scalars, parameter, velocity, outputs @ ..] = operands else {
            return Err(unexpected_operands());
        };
        let (copy, dbias) = match (outputs, self.linear.bias) {
            ([], false) => (None, None),
            ([copy], false) => (Some(copy), None),
            ([dbias], true) => (None, Some(dbias)),
            ([copy, dbias], true) => (Some(copy), Some(dbias)),
            _ => return Err(unexpected_operands()),
        };
        let (batch, inputs, results) = (x.shape[0], self.linear.in_features, self.linear.out_features);
        let gradient = |position: usize| -> f64 {
            let (o, i) = (position / inputs, position % inputs);
            (0..batch).map(|n| dy.get(n * results + o) * x.get(n * inputs + i)).sum()
        };
        step(self.sgd, scalars, gradient, parameter, velocity, copy);
        if let Some(dbias) = dbias {
            dbias.fill_with(|o| (0..batch).map(|n| dy.get(n * results + o)).sum());
        }
        Ok(())
    }
}
