//! The sum of two values that is not fused.

use super::convert::{check_types, common_element_count, elementwise};
use super::{BuildResult, GpuOp, KernelBuilder, Operand, long};
use crate::processor::{Argument, Implementation};
use stratus_engine::ops::AddForward;

impl GpuOp for AddForward {
    fn build(&self, operands: &[Operand], counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        check_types(operands)?;
        let count = common_element_count(operands)?;
        // With one input, both summands are the same.
        let (second, y) = (counts[0] - 1, counts[0]);
        let (source, vector) =
            elementwise(operands[0].dtype(), operands[second].dtype(), operands[y].dtype(), count);
        let addresses = [0, second, y].map(Argument::Operand);
        let relu = Argument::Int(i32::from(self.relu));
        let arguments = addresses.into_iter().chain([long(count), relu]).collect();
        let name = if self.relu { "add_relu" } else { "add" };
        Ok(Implementation::native(
            name,
            vec![builder.grid_stride(&source, "add", count / vector, arguments)?],
            0,
        ))
    }
}
