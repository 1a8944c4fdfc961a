//! The exponential moving average of weights.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::EmaUpdate;

impl ReferenceKernel for EmaUpdate {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [value, scalars, average] = operands else { return Err(unexpected_operands()) };
        let gain = self.gain(scalars.get(1));
        for position in 0..average.len() {
            let before = average.get(position);
            average.set(position, before + gain * (value.get(position) - before));
        }
        Ok(())
    }
}
