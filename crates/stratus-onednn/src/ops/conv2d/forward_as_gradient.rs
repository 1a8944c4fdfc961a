//! The gradient of the input of a 1×1 convolution, as a convolution of the output's gradient with transposed
//! weights. oneDNN's kernels for AVX2 compute the forward pass faster than the gradient.

use super::context::{ConvContext, Pass, is_pointwise, window};
use crate::ffi::{Argument, MemoryDescQuery, PrimitiveDesc, Propagation, arg};
use crate::native::simd::Isa;
use crate::native::threads::ThreadTeam;
use crate::ops::candidates::{NativeKernel, primitive_step, reorder_suffix};
use crate::ops::{Candidate, Implementation, KernelBuilder};
use stratus_engine::StepKernel;
use stratus_graph::ops::Conv2d;

/// The prefix of the names of these candidates.
const PREFIX: &str = "forward:";

/// Only this family is tried: `brgconv` uses its forward kernels for this gradient already.
const FAMILY: &str = "jit_1x1";

struct ForwardAsGradient {
    desc: PrimitiveDesc,
    team: ThreadTeam,
}

/// Returns a candidate for the input's gradient.
pub(super) fn backward_data(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
) -> Result<Option<Candidate>, String> {
    if builder.cpu.level.isa() != Isa::Avx2 || !is_pointwise(context.conv) {
        return Ok(None);
    }
    let Some(desc) = convolution_of_gradient(builder, context)? else { return Ok(None) };
    let weights = desc.desc(MemoryDescQuery::Weights)?.transposed()?;
    let Ok(layout) = weights.layout() else { return Ok(None) };
    let suffix = reorder_suffix(context.weights, &layout)?;
    let name = format!("{PREFIX}{}{suffix}", desc.implementation());
    let operands = context.operands(builder, Pass::BackwardData, weights)?;
    let convolution = ForwardAsGradient { desc, team: builder.cpu.team.clone() };
    Ok(Some(Candidate { name, implementation: Implementation::Native(Box::new(convolution)), operands }))
}

/// The forward convolution that computes the input's gradient, with weights in the layout that oneDNN
/// prefers.
fn convolution_of_gradient(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
) -> Result<Option<PrimitiveDesc>, String> {
    let conv = context.conv;
    let swapped_channels =
        Conv2d { in_channels: conv.out_channels, out_channels: conv.in_channels, bias: false, ..*conv };
    let weights = builder.onednn.any(&swapped_channels.weight_shape(), context.compute)?;
    let (descs, window) = ([context.y, &weights, context.x], window(&swapped_channels));
    let made =
        builder.onednn.convolution_forward(Propagation::Training, descs, None, &window, &builder.plain);
    let Ok(mut desc) = made else { return Ok(None) };
    while !desc.implementation().starts_with(FAMILY) {
        if !desc.advance() {
            return Ok(None);
        }
    }
    Ok(Some(desc))
}

impl NativeKernel for ForwardAsGradient {
    fn scratch_bytes(&self) -> usize {
        self.desc.scratch_bytes()
    }

    /// The step has `dy, weights, dx, scratch?`, as the primitive does.
    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        let descs = [
            (arg::SRC, self.desc.desc(MemoryDescQuery::Src)?),
            (arg::WEIGHTS, self.desc.desc(MemoryDescQuery::Weights)?),
            (arg::DST, self.desc.desc(MemoryDescQuery::Dst)?),
        ];
        let arguments = descs.each_ref().map(|(arg, desc)| Argument { arg: *arg, desc });
        primitive_step(&self.desc, &arguments, &self.team)
    }
}
