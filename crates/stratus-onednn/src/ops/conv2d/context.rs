//! The operands that the candidates of a convolution share.

use crate::ffi::{DataType, Desc, PrimitiveDesc, Propagation, Window, arg};
use crate::ops::KernelBuilder;
use crate::ops::candidates::native_name;
use stratus_engine::Layout;
use stratus_graph::ops::Conv2d;

/// A convolution with the layouts and types of its operands.
#[derive(Clone, Copy)]
pub(crate) struct ConvContext<'a> {
    /// Attributes.
    pub conv: &'a Conv2d,
    /// Input map, or its gradient.
    pub x: &'a Desc,
    /// Output map, or its gradient.
    pub y: &'a Desc,
    /// The weights, or the required layout of their gradient, if decided.
    pub weights: Option<&'a Desc>,
    /// The type of maps and weights.
    pub compute: DataType,
}

/// A pass of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// The output.
    Forward,
    /// The gradient of the input.
    BackwardData,
    /// The gradients of weights and bias.
    BackwardWeights,
}

impl ConvContext<'_> {
    /// The number of images, and the height and width of the input, if both maps are channels last.
    pub(super) fn channels_last(&self) -> Result<Option<(usize, [usize; 2])>, String> {
        let (x, y) = (self.x.layout()?, self.y.layout()?);
        let are_both = [&x, &y].iter().all(|map| map.same_bytes(&Layout::channels_last(&map.shape)));
        let &[batch, _, height, width] = &x.shape[..] else { return Ok(None) };
        Ok(are_both.then_some((batch, [height, width])))
    }

    /// Row-major weights, or their gradient.
    pub(super) fn row_major_weights(
        &self,
        builder: &KernelBuilder<'_>,
        dtype: DataType,
    ) -> Result<Desc, String> {
        let plain = Layout::plain(&weight_shape(self.conv));
        builder.onednn.strided(&plain.shape, dtype, &plain.strides)
    }

    /// The name of a native kernel that takes row-major weights, or computes their gradient in that layout.
    pub(super) fn row_major_name(&self, builder: &KernelBuilder<'_>, family: &str) -> Result<String, String> {
        native_name(family, builder.cpu, self.weights, &Layout::plain(&weight_shape(self.conv)))
    }

    /// The step's operands, with the given weights or their gradient.
    pub(super) fn operands(
        &self,
        builder: &KernelBuilder<'_>,
        pass: Pass,
        weights: Desc,
    ) -> Result<Vec<(i32, Desc)>, String> {
        let (x, y) = (self.x.duplicate()?, self.y.duplicate()?);
        let bias = |argument| Ok::<_, String>(bias(builder, self.conv)?.map(|desc| (argument, desc)));
        Ok(match pass {
            Pass::Forward => {
                let inputs = [(arg::SRC, x), (arg::WEIGHTS, weights)];
                inputs.into_iter().chain(bias(arg::BIAS)?).chain([(arg::DST, y)]).collect()
            }
            Pass::BackwardData => vec![(arg::DIFF_DST, y), (arg::WEIGHTS, weights), (arg::DIFF_SRC, x)],
            Pass::BackwardWeights => {
                let operands = [(arg::SRC, x), (arg::DIFF_DST, y), (arg::DIFF_WEIGHTS, weights)];
                operands.into_iter().chain(bias(arg::DIFF_BIAS)?).collect()
            }
        })
    }
}

/// oneDNN's window of a convolution.
pub(in crate::ops) fn window(conv: &Conv2d) -> Window {
    let numbers = |list: [usize; 2]| list.map(|n| n as i64);
    Window {
        strides: numbers(conv.stride),
        dilations: conv.dilation.map(|d| d as i64 - 1),
        before: numbers(conv.padding_before),
        after: numbers(conv.padding_after),
    }
}

/// oneDNN's shape of the weights: groups are a dimension of their own.
pub(in crate::ops) fn weight_shape(conv: &Conv2d) -> Vec<usize> {
    let [o, i, h, w] = conv.weight_shape();
    if conv.groups == 1 { vec![o, i, h, w] } else { vec![conv.groups, o / conv.groups, i, h, w] }
}

pub(super) fn bias(builder: &KernelBuilder<'_>, conv: &Conv2d) -> Result<Option<Desc>, String> {
    conv.bias.then(|| builder.onednn.strided(&[conv.out_channels], DataType::F32, &[1])).transpose()
}

/// A forward descriptor with weights in any layout, the hint that gradients need.
pub(super) fn hint(builder: &KernelBuilder<'_>, context: &ConvContext<'_>) -> Result<PrimitiveDesc, String> {
    let weights = builder.onednn.any(&weight_shape(context.conv), context.compute)?;
    let descs = [context.x, &weights, context.y];
    let window = window(context.conv);
    builder.onednn.convolution_forward(Propagation::Training, descs, None, &window, &builder.plain)
}

/// Returns whether an implementation of the weight gradient is known to be wrong for a convolution of maps in
/// the layouts `x` and `y`.
pub(super) fn is_hazardous(
    conv: &Conv2d,
    compute: DataType,
    x: &Layout,
    y: &Layout,
    implementation: &str,
) -> bool {
    const MAX_CHANNEL_BLOCK: usize = 16;
    let strided = conv.stride != [1, 1];
    // oneDNN issue 6035, in all releases up to 3.12: for strided 1×1 convolutions of channels-last maps these
    // kernels write a full vector register of channels to a workspace with room for the input's channels
    // only.
    let overruns = implementation.starts_with("jit_1x1")
        && conv.kernel == [1, 1]
        && strided
        && conv.in_channels / conv.groups.max(1) < MAX_CHANNEL_BLOCK
        && x.blocks.is_empty();
    // Observed with 3.2: if an output row has one pixel, or a tap is on the horizontal padding for all pixels
    // of a row, the bf16 kernels multiply scratch that was never written. Later kernels of the family are
    // avoided too.
    let reads_garbage = compute == DataType::Bf16
        && (implementation.starts_with("jit") || implementation.starts_with("brg"))
        && conv.stride[1] > 1
        && (y.shape.last() == Some(&1) || has_tap_on_padding(conv, [x, y].map(|map| map.shape[3])));
    overruns || reads_garbage
}

/// Returns whether some column of the kernel is on the padding at every output, given the widths of the input
/// and the output.
fn has_tap_on_padding(conv: &Conv2d, [input, output]: [usize; 2]) -> bool {
    let (padding, stride) = (conv.padding_before[1], conv.stride[1]);
    let is_inside = |at: usize| (padding..padding + input).contains(&at);
    (0..conv.kernel[1])
        .map(|tap| tap * conv.dilation[1])
        .any(|tap| !(0..output).any(|x| is_inside(x * stride + tap)))
}

/// Returns whether each output reads one pixel, the one at its own position: a product of matrices.
pub(super) fn is_pointwise(conv: &Conv2d) -> bool {
    conv.kernel == [1, 1]
        && conv.stride == [1, 1]
        && [conv.padding_before, conv.padding_after] == [[0, 0]; 2]
        && conv.groups == 1
}

/// Returns whether a convolution's channels fill the tiles of AMX; each group has its own tiles.
pub(in crate::ops) fn fills_amx_tiles(conv: &Conv2d) -> bool {
    let channels = [conv.in_channels, conv.out_channels];
    crate::ops::implementations::fill_amx_tiles(channels.map(|channels| channels / conv.groups.max(1)))
}
