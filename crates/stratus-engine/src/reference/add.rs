//! The sum of two values.

use super::relu::apply_relu;
use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::AddForward;

impl ReferenceKernel for AddForward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let (a, b, y) = match operands {
            [a, b, y] => (&*a, &*b, y),
            [a, y] => (&*a, &*a, y),
            _ => return Err(unexpected_operands()),
        };
        y.fill_with(|position| {
            let sum = a.get(position) + b.get(position);
            if self.relu { apply_relu(sum) } else { sum }
        });
        Ok(())
    }
}
