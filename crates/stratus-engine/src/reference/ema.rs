//! The exponential moving average of weights.

use super::{Reference, Tensor, Tile, unexpected_operands};
use crate::ops::EmaUpdate;

impl Reference for EmaUpdate {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [value, hyper, average] = operands else { return Err(unexpected_operands()) };
        let gain = self.gain(hyper.get(1));
        for position in 0..average.len() {
            let before = average.get(position);
            average.set(position, before + gain * (value.get(position) - before));
        }
        Ok(())
    }
}
