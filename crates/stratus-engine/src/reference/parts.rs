//! Sums over parts.

use super::{Reference, Tensor, Tile, unexpected_operands};
use crate::exchange::UNCONNECTED;
use crate::ops::{AddParts, ExchangeSums};

impl Reference for AddParts {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], tile: Tile) -> Result<(), String> {
        let [part, sum, levels @ ..] = operands else { return Err(unexpected_operands()) };
        let turn = self.turn(tile.micro_batch);
        for position in 0..part.len() {
            // Each sum is rounded as it is stored, so it goes through the tensor's type.
            let mut made = part.get(position);
            for level in &levels[..turn.levels] {
                made = sum.rounded(level.get(position) + made);
            }
            if turn.adds_sum {
                made = sum.rounded(sum.get(position) + made);
            }
            match turn.to {
                Some(level) => levels[level].set(position, made),
                None => sum.set(position, made),
            }
        }
        Ok(())
    }
}

impl Reference for ExchangeSums {
    fn run(&self, _operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        Err(UNCONNECTED.to_owned())
    }
}
