//! Convolution in groups of few channels by native kernels.

use super::context::{ConvContext, Pass};
use super::native_pass::{self, PassKernel, PassOperands};
use crate::native::conv::grouped::GroupedConv;
use crate::native::lanes::LaneElement;
use crate::ops::{Candidate, KernelBuilder};
use bytemuck::cast_slice_mut;

/// A pass; `relu` applies to the forward pass.
#[derive(Clone)]
struct GroupedPass {
    conv: GroupedConv,
    pass: Pass,
    relu: bool,
}

/// Returns a candidate for a pass; `relu` applies to the forward pass.
pub(super) fn candidate(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
    pass: Pass,
    relu: bool,
) -> Result<Option<Candidate>, String> {
    let Some((batch, input)) = context.channels_last()? else { return Ok(None) };
    let Some(conv) = GroupedConv::new(context.conv, batch, input, builder.cpu) else { return Ok(None) };
    native_pass::candidate(builder, context, (pass, "grouped:"), GroupedPass { conv, pass, relu }).map(Some)
}

impl PassKernel for GroupedPass {
    fn scratch_bytes(&self) -> usize {
        self.conv.scratch_bytes()
    }

    fn run<E: LaneElement>(&self, operands: PassOperands<'_, E>) {
        let PassOperands { inputs: [first, second], result, scratch, .. } = operands;
        let (conv, scratch) = (&self.conv, cast_slice_mut(scratch));
        match self.pass {
            Pass::Forward => conv.forward(first, second, self.relu, cast_slice_mut(result), scratch),
            Pass::BackwardData => conv.backward_data(first, second, cast_slice_mut(result), scratch),
            Pass::BackwardWeights => conv.gradient(first, second, cast_slice_mut(result), scratch),
        }
    }
}
