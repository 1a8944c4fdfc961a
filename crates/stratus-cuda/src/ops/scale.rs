//! Multiplication by a fixed number.

use super::convert::map;
use super::{Maker, OnGpu, Operand};
use crate::processor::{Argument, Made};
use stratus_engine::ops::Scale;

impl OnGpu for Scale {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        map("scale", operands, maker, [Argument::Float(self.factor)])
    }
}
