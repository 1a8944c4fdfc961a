//! The gradient of the input of a 1×1 convolution, as a convolution of the output's gradient with transposed
//! weights. oneDNN's kernels for AVX2 compute the forward pass faster than the gradient.

use super::context::{ConvContext, Pass, window};
use crate::ffi::{Argument, Desc, Kernel, MemoryDescQuery, PrimitiveDesc, Propagation, arg};
use crate::native::threads::ThreadTeam;
use crate::ops::candidates::NativeKernel;
use crate::ops::{Candidate, Implementation, KernelBuilder, REORDERED};
use stratus_engine::{Operands, StepKernel};
use stratus_graph::ops::Conv2d;

/// The prefix of the names of these candidates.
const PREFIX: &str = "transposed:";

/// The only kernels that differ between the passes: those of the `brgconv` family use one for both.
const IMPLEMENTATION_PREFIX: &str = "jit_1x1";

struct TransposedConvolution {
    desc: PrimitiveDesc,
    team: ThreadTeam,
}

struct TransposedConvolutionKernel {
    kernel: Kernel,
    team: ThreadTeam,
}

/// Returns a candidate for the input's gradient.
pub(super) fn backward_data(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
) -> Result<Option<Candidate>, String> {
    let Some(transposed) = transposed(context.conv) else { return Ok(None) };
    let onednn = builder.onednn;
    let of_conv = |desc: &PrimitiveDesc| desc.desc(MemoryDescQuery::Weights)?.transposed();
    let candidate = |desc: PrimitiveDesc, suffix: &str| -> Result<Candidate, String> {
        let name = format!("{PREFIX}{}{suffix}", desc.implementation());
        let operands = context.operands(builder, Pass::BackwardData, of_conv(&desc)?)?;
        let convolution = TransposedConvolution { desc, team: builder.cpu.team.clone() };
        Ok(Candidate { name, implementation: Implementation::Native(Box::new(convolution)), operands })
    };
    let find = |weights: &Desc| {
        let (propagation, window) = (Propagation::Training, window(&transposed));
        let descs = [context.y, weights, context.x];
        let mut desc = onednn.convolution_forward(propagation, descs, None, &window, &builder.plain).ok()?;
        while !desc.implementation().starts_with(IMPLEMENTATION_PREFIX) {
            if !desc.advance() {
                return None;
            }
        }
        Some(desc)
    };
    if let Some(decided) = context.weights
        && let Some(desc) = find(&decided.transposed()?)
    {
        return candidate(desc, "").map(Some);
    }
    let any = onednn.any(&transposed.weight_shape(), context.compute)?;
    let Some(desc) = find(&any) else { return Ok(None) };
    candidate(desc, if context.weights.is_some() { REORDERED } else { "" }).map(Some)
}

/// The convolution of the output's gradient, if it is one: with one tap, and an output for each input pixel.
fn transposed(conv: &Conv2d) -> Option<Conv2d> {
    let is_product = conv.kernel == [1, 1]
        && conv.stride == [1, 1]
        && [conv.padding_before, conv.padding_after] == [[0, 0]; 2]
        && conv.groups == 1;
    is_product.then_some(Conv2d {
        in_channels: conv.out_channels,
        out_channels: conv.in_channels,
        bias: false,
        ..*conv
    })
}

impl NativeKernel for TransposedConvolution {
    fn scratch_bytes(&self) -> usize {
        self.desc.scratch_bytes()
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        let descs = [
            (arg::SRC, self.desc.desc(MemoryDescQuery::Src)?),
            (arg::WEIGHTS, self.desc.desc(MemoryDescQuery::Weights)?),
            (arg::DST, self.desc.desc(MemoryDescQuery::Dst)?),
        ];
        let arguments = descs.each_ref().map(|(arg, desc)| Argument { arg: *arg, desc });
        let kernel = Kernel::new(&self.desc, &arguments)?;
        Ok(Box::new(TransposedConvolutionKernel { kernel, team: self.team.clone() }))
    }
}

impl StepKernel for TransposedConvolutionKernel {
    /// The step has `dy, weights, dx, scratch?`, as the primitive does.
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        // The thread count is per calling thread, which may differ from the one that prepared the step.
        self.team.apply_thread_count();
        self.kernel.execute(|position| operands.take(position))
    }
}
