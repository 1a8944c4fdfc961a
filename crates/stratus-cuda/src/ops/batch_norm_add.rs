//! Batch normalisation fused with the following residual addition and ReLU.

use super::batch_norm::{INVERSE_DEVIATION_GIVEN, Maps, addresses, reduce_gradients};
use super::{BuildResult, GpuOp, KernelBuilder, Operand};
use crate::processor::{Argument, Implementation};
use stratus_engine::ops::{
    BatchNormAddApply, BatchNormAddReluGradients, ChannelOffsets, FusedActivation, KernelSpec,
};

/// Checks that maps have the same type.
fn expect_same_type(operands: &[&Operand]) -> Result<(), String> {
    let first = operands[0];
    match operands.iter().find(|operand| operand.dtype() != first.dtype()) {
        Some(other) => Err(format!("`{}` and `{}` have different types", first.value.name, other.value.name)),
        None => Ok(()),
    }
}

impl GpuOp for BatchNormAddApply {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        expect_same_type(&[&operands[5], &operands[6]])?;
        let maps = Maps::new(self.norm.channels, ChannelOffsets::default(), &operands[0], &operands[6])?;
        let mut arguments = [0, 5, 6].map(Argument::Operand).to_vec();
        arguments.extend(addresses(1, 4).chain([INVERSE_DEVIATION_GIVEN]).chain(maps.extents()?));
        let (source, shape) = (
            maps.source("batch_norm", FusedActivation::relu_if(self.relu)),
            maps.pass(maps.pixels_of_x(), builder),
        );
        let launch = builder.launch(&source, "batch_norm_add_apply", shape, arguments)?;
        Ok(Implementation::native(self.name(), vec![launch], 0))
    }
}

impl GpuOp for BatchNormAddReluGradients {
    fn build(&self, operands: &[Operand], counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let dy = counts[0];
        let part = (counts[0] == 5).then_some(4);
        let maps_of_y: Vec<&Operand> = [1, dy].into_iter().chain(part).map(|at| &operands[at]).collect();
        expect_same_type(&maps_of_y)?;
        let maps = Maps::new(self.norm.channels, ChannelOffsets::default(), &operands[0], &operands[1])?;
        // The ReLU mask is derived from the output.
        let source = maps.source("batch_norm_sums", FusedActivation::Identity);
        let positions = [0, 1].into_iter().chain(part).chain([dy, 2]);
        let [rows, width, ..] = maps.extents()?;
        let arguments = positions.map(Argument::Operand).chain([rows, width]).collect();
        let name =
            if part.is_some() { "batch_norm_add_masked_gradients" } else { "batch_norm_masked_gradients" };
        let (launch, partial_sums) = maps.sums((&source, name), maps.pixels_of_x(), arguments, builder)?;
        let reduce = reduce_gradients(&source, &partial_sums, 3, dy + 1, builder)?;
        Ok(Implementation::native(self.name(), vec![launch, reduce], partial_sums.bytes))
    }
}
