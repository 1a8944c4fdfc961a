//! Depthwise convolution by native kernels, which read channels-last maps in their order.

use super::context::{ConvContext, Pass};
use super::native_pass::{self, PassKernel, PassOperands};
use crate::native::conv::depthwise::DepthwiseConv;
use crate::native::lanes::LaneElement;
use crate::ops::{Candidate, KernelBuilder};
use bytemuck::cast_slice_mut;
use stratus_engine::ops::FusedActivation;

/// A pass; the activation is that of the forward pass.
#[derive(Clone)]
struct DepthwisePass {
    conv: DepthwiseConv,
    pass: Pass,
    activation: FusedActivation,
}

/// Returns a candidate for a pass; the activation is that of the forward pass.
pub(super) fn candidate(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
    pass: Pass,
    activation: FusedActivation,
) -> Result<Option<Candidate>, String> {
    let Some((batch, input)) = context.channels_last()? else { return Ok(None) };
    let Some(conv) = DepthwiseConv::new(context.conv, batch, input, builder.cpu) else { return Ok(None) };
    let kernel = DepthwisePass { conv, pass, activation };
    native_pass::candidate(builder, context, (pass, "depthwise:"), kernel).map(Some)
}

impl PassKernel for DepthwisePass {
    fn scratch_bytes(&self) -> usize {
        match self.pass {
            Pass::Forward | Pass::BackwardData => self.conv.correlation_scratch_bytes(),
            Pass::BackwardWeights => self.conv.gradients_scratch_bytes(),
        }
    }

    fn run<E: LaneElement>(&self, operands: PassOperands<'_, E>) {
        let PassOperands { inputs: [first, second], bias, result, scratch } = operands;
        let (conv, scratch) = (&self.conv, cast_slice_mut(scratch));
        match self.pass {
            Pass::Forward => {
                conv.forward(first, second, bias, self.activation, cast_slice_mut(result), scratch);
            }
            Pass::BackwardData => conv.backward_data(first, second, cast_slice_mut(result), scratch),
            Pass::BackwardWeights => conv.gradients(first, second, cast_slice_mut(result), bias, scratch),
        }
    }
}
