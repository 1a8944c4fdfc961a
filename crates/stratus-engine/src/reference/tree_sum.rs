//! Sums over batch parts.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::exchange::NOT_CONNECTED_ERROR;
use crate::ops::{AllReduceBucket, TreeSum};

impl ReferenceKernel for TreeSum {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], tile: Tile) -> Result<(), String> {
        let [part, sum, levels @ ..] = operands else { return Err(unexpected_operands()) };
        let turn = self.step_for(tile.micro_batch);
        for position in 0..part.len() {
            // Each sum is rounded to the stored type, so it goes through the tensor's type.
            let mut result = part.get(position);
            for level in &levels[..turn.levels] {
                result = sum.rounded(level.get(position) + result);
            }
            if turn.adds_sum {
                result = sum.rounded(sum.get(position) + result);
            }
            match turn.to {
                Some(level) => levels[level].set(position, result),
                None => sum.set(position, result),
            }
        }
        Ok(())
    }
}

impl ReferenceKernel for AllReduceBucket {
    fn run(&self, _operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        Err(NOT_CONNECTED_ERROR.to_owned())
    }
}
