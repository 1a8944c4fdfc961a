//! Weights of several convolutions one behind the other: filters lie one after the other, so that all weights are one row each.

use super::concat::{channels_last, join, take_out};
use super::convert::check_types;
use super::{Maker, OnGpu, Operand};
use crate::processor::Made;
use stratus_engine::ops::{JoinWeights, SplitGradient};

/// The number of elements of each, all of which lie with their channels last.
fn elements(operands: &[Operand]) -> Result<Vec<usize>, String> {
    check_types(operands)?;
    operands.iter().map(|operand| Ok(channels_last(operand)?.iter().product())).collect()
}

impl OnGpu for JoinWeights {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        let elements = elements(operands)?;
        join("join_weights", operands, 1, &elements[..elements.len() - 1], maker)
    }
}

impl OnGpu for SplitGradient {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        let elements = elements(operands)?;
        let [_, filter @ ..] = operands[1].image()?;
        let before = self.first * filter.iter().product::<usize>();
        take_out("split_gradient", operands, 1, before, [elements[0], elements[1]], maker)
    }
}
