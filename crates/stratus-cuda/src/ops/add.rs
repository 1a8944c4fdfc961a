//! The sum of two values, where it could not be fused.

use super::convert::{alike, check_types, elementwise};
use super::{Maker, OnGpu, Operand, long};
use crate::processor::{Argument, Made};
use stratus_engine::ops::AddForward;

impl OnGpu for AddForward {
    fn make(&self, operands: &[Operand], counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        check_types(operands)?;
        let count = alike(operands)?;
        // With one input both are the same.
        let (second, y) = (counts[0] - 1, counts[0]);
        let (source, vector) =
            elementwise(operands[0].dtype(), operands[second].dtype(), operands[y].dtype(), count);
        let addresses = [0, second, y].map(Argument::Operand);
        let relu = Argument::Int(i32::from(self.relu));
        let arguments = addresses.into_iter().chain([long(count), relu]).collect();
        let name = if self.relu { "add_relu" } else { "add" };
        Ok(Made::of(name, vec![maker.spread(&source, "add", count / vector, arguments)?], 0))
    }
}
