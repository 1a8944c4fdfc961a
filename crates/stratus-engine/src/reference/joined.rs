//! Weights of several convolutions one behind the other: in row-major order each is one stretch of numbers.

use super::{Reference, Tensor, Tile, unexpected_operands};
use crate::ops::{JoinWeights, SplitGradient};

impl Reference for JoinWeights {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [weights @ .., joined] = operands else { return Err(unexpected_operands()) };
        let mut at = 0;
        for weight in weights {
            let count = weight.image().iter().product();
            for position in 0..count {
                joined.set(at + position, weight.get(position));
            }
            at += count;
        }
        Ok(())
    }
}

impl Reference for SplitGradient {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [joined, own] = operands else { return Err(unexpected_operands()) };
        let [_, filter @ ..] = own.image();
        let before = self.first * filter.iter().product::<usize>();
        own.fill_with(|position| joined.get(before + position));
        Ok(())
    }
}
