//! Convolution of few input channels by native kernels without packing.

use super::context::{ConvContext, Pass};
use super::native_pass::{self, PassKernel, PassOperands};
use crate::native::conv::direct::DirectConv;
use crate::native::lanes::LaneElement;
use crate::ops::{Candidate, KernelBuilder};
use bytemuck::cast_slice_mut;

/// The computation of a direct convolution.
#[derive(Clone)]
enum DirectPass {
    /// The output, optionally with ReLU.
    Forward { conv: DirectConv, relu: bool },
    /// The gradients of weights and bias.
    Gradients { conv: DirectConv },
}

/// Returns a candidate for the forward pass.
pub(super) fn forward(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
    relu: bool,
) -> Result<Option<Candidate>, String> {
    candidate(builder, context, Pass::Forward, |conv| DirectPass::Forward { conv, relu })
}

/// Returns a candidate for the gradients of weights and bias.
pub(super) fn backward_weights(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
) -> Result<Option<Candidate>, String> {
    candidate(builder, context, Pass::BackwardWeights, |conv| DirectPass::Gradients { conv })
}

fn candidate(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
    pass: Pass,
    kernel: impl FnOnce(DirectConv) -> DirectPass,
) -> Result<Option<Candidate>, String> {
    let Some((batch, input)) = context.channels_last()? else { return Ok(None) };
    let Some(conv) = DirectConv::new(context.conv, batch, input, builder.cpu) else { return Ok(None) };
    native_pass::candidate(builder, context, (pass, ""), kernel(conv)).map(Some)
}

impl PassKernel for DirectPass {
    fn scratch_bytes(&self) -> usize {
        match self {
            Self::Forward { conv, .. } => conv.forward_scratch_bytes(),
            Self::Gradients { conv } => conv.gradients_scratch_bytes(),
        }
    }

    fn run<E: LaneElement>(&self, operands: PassOperands<'_, E>) {
        let PassOperands { inputs: [x, second], bias, result, scratch } = operands;
        let scratch = cast_slice_mut(scratch);
        match self {
            Self::Forward { conv, relu } => {
                conv.forward(x, second, bias, *relu, cast_slice_mut(result), scratch);
            }
            Self::Gradients { conv } => conv.gradients(x, second, cast_slice_mut(result), bias, scratch),
        }
    }
}
