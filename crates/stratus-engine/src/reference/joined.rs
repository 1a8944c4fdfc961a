//! Concatenation of the weights of several convolutions, which are contiguous in row-major order.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{JoinWeights, SplitGradient};

impl ReferenceKernel for JoinWeights {
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

impl ReferenceKernel for SplitGradient {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [joined, gradient] = operands else { return Err(unexpected_operands()) };
        let [_, filter @ ..] = gradient.image();
        let before = self.first * filter.iter().product::<usize>();
        gradient.fill_with(|position| joined.get(before + position));
        Ok(())
    }
}
