//! The rectifier, where it could not be fused.

use super::convert::{alike, check_types, elementwise};
use super::{Maker, OnGpu, Operand, long};
use crate::processor::{Argument, Made};
use stratus_engine::ops::{ReluBackward, ReluForward};

/// Nothing is at least what is not a number.
fn ceiling(ceiling: Option<f32>) -> Argument {
    Argument::Float(ceiling.unwrap_or(f32::NAN))
}

impl OnGpu for ReluForward {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        check_types(operands)?;
        let count = alike(operands)?;
        let types = [&operands[0], &operands[1]].map(Operand::dtype);
        let (source, vector) = elementwise(types[0], types[0], types[1], count);
        let arguments = vec![Argument::Operand(0), Argument::Operand(1), long(count), ceiling(self.ceiling)];
        let launch = maker.spread(&source, "relu_forward", count / vector, arguments)?;
        Ok(Made::of("relu", vec![launch], 0))
    }
}

impl OnGpu for ReluBackward {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        check_types(operands)?;
        let count = alike(operands)?;
        let types = [&operands[0], &operands[1], &operands[2]].map(Operand::dtype);
        let (source, vector) = elementwise(types[0], types[1], types[2], count);
        let addresses = (0..3).map(Argument::Operand);
        let arguments = addresses.chain([long(count), ceiling(self.ceiling)]).collect();
        let launch = maker.spread(&source, "relu_backward", count / vector, arguments)?;
        Ok(Made::of("relu_backward", vec![launch], 0))
    }
}
