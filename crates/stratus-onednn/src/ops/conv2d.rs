//! Convolution: each function lists the ways a step can be run, on oneDNN first, given the layouts of the maps around it.

use super::{
    Candidate, Maker, Ways, descs, direct, drop_fallbacks, fills_tiles_of, multiplies_bf16, wide, winograd,
};
use crate::ffi::{DataType, Desc, PrimitiveDesc, Propagation, Which, Window, arg};
use stratus_engine::Layout;
use stratus_graph::ops::Conv2d;

/// The operands' layouts and types.
pub(crate) struct Around<'a> {
    /// Attributes.
    pub conv: &'a Conv2d,
    /// Input map.
    pub x: &'a Desc,
    /// Output map.
    pub y: &'a Desc,
    /// Type of the weights that kernels read.
    pub compute: DataType,
}

impl Around<'_> {
    /// Images, and the height and width of the input, where both maps lie channels last.
    pub(super) fn channels_last(&self) -> Result<Option<(usize, [usize; 2])>, String> {
        let (x, y) = (self.x.layout()?, self.y.layout()?);
        let lie_well = [&x, &y].iter().all(|map| map.same_bytes(&Layout::channels_last(&map.shape)));
        let &[batch, _, height, width] = &x.shape[..] else { return Ok(None) };
        Ok(lie_well.then_some((batch, [height, width])))
    }
}

pub(super) fn window(conv: &Conv2d) -> Window {
    let numbers = |list: [usize; 2]| list.map(|n| n as i64);
    Window {
        strides: numbers(conv.stride),
        dilations: conv.dilation.map(|d| d as i64 - 1),
        before: numbers(conv.padding_before),
        after: numbers(conv.padding_after),
    }
}

/// oneDNN's shape of the weights: groups are a dimension of their own.
pub(crate) fn weight_shape(conv: &Conv2d) -> Vec<usize> {
    let [o, i, h, w] = conv.weight_shape();
    if conv.groups == 1 { vec![o, i, h, w] } else { vec![conv.groups, o / conv.groups, i, h, w] }
}

pub(super) fn bias(maker: &Maker<'_>, conv: &Conv2d) -> Result<Option<Desc>, String> {
    conv.bias.then(|| maker.context.strided(&[conv.out_channels], DataType::F32, &[1])).transpose()
}

/// A forward descriptor with weights of any layout, as the gradients need it for a hint.
pub(super) fn hint(maker: &Maker<'_>, around: &Around<'_>) -> Result<PrimitiveDesc, String> {
    let weights = maker.context.any(&weight_shape(around.conv), around.compute)?;
    let descs = [around.x, &weights, around.y];
    maker.context.convolution_forward(Propagation::Training, descs, None, &window(around.conv), &maker.plain)
}

/// Adds to the library's ways in bf16 the one in f32, where that may be worth a try: not where there are instructions for bf16 and channels for them.
fn or_wide(
    around: &Around<'_>,
    listed: Result<Vec<Candidate>, String>,
    wide: impl FnOnce() -> Result<Option<Candidate>, String>,
) -> Result<Vec<Candidate>, String> {
    let is_twice_as_fast = fills_tiles_of(around.conv)
        && listed.iter().flatten().any(|candidate| multiplies_bf16(&candidate.name));
    if around.compute == DataType::F32 || is_twice_as_fast {
        return listed;
    }
    let Some(wide) = wide()? else { return listed };
    let mut candidates = listed.unwrap_or_default();
    candidates.push(wide);
    drop_fallbacks(&mut candidates);
    Ok(candidates)
}

/// Whether an implementation of the gradient of the weights is known to be wrong for a convolution, of maps that lie as `x` and `y`.
pub(super) fn is_hazardous(
    conv: &Conv2d,
    compute: DataType,
    x: &Layout,
    y: &Layout,
    implementation: &str,
) -> bool {
    const LARGEST_BLOCK: usize = 16;
    let strided = conv.stride != [1, 1];
    // oneDNN issue 6035, in all releases up to 3.12: for strided 1x1 convolutions of maps that lie channels last, these kernels write as many
    // channels as a vector register holds into a workspace that has room for those of the input.
    let overruns = implementation.starts_with("jit_1x1")
        && conv.kernel == [1, 1]
        && strided
        && conv.in_channels / conv.groups.max(1) < LARGEST_BLOCK
        && x.blocks.is_empty();
    // Found here with 3.2: where an output row is one pixel, the bf16 kernels multiply scratch that they never wrote for the taps that fall on
    // the horizontal padding. Later kernels of the same family are not trusted more.
    let reads_garbage = compute == DataType::Bf16
        && (implementation.starts_with("jit") || implementation.starts_with("brg"))
        && y.shape.last() == Some(&1)
        && conv.stride[1] > 1
        && conv.padding_before[1] + conv.padding_after[1] > 0;
    overruns || reads_garbage
}

/// Ways to run the forward pass; `weights` is their layout, where it is decided.
pub(crate) fn forward(
    maker: &Maker<'_>,
    around: &Around<'_>,
    relu: bool,
    training: bool,
    weights: Option<&Desc>,
) -> Result<Vec<Candidate>, String> {
    let any = maker.context.any(&weight_shape(around.conv), around.compute)?;
    let bias = bias(maker, around.conv)?;
    let propagation = if training { Propagation::Training } else { Propagation::Inference };
    let attributes = if relu { &maker.relu } else { &maker.plain };
    let window = window(around.conv);
    let ways = Ways {
        make: &|weights| {
            let descs = [around.x, weights, around.y];
            maker.context.convolution_forward(propagation, descs, bias.as_ref(), &window, attributes)
        },
        operands: &|desc| {
            let mut operands = descs(desc, &[(arg::SRC, Which::Src), (arg::WEIGHTS, Which::Weights)])?;
            if let Some(bias) = &bias {
                operands.push((arg::BIAS, bias.duplicate()?));
            }
            operands.push((arg::DST, desc.desc(Which::Dst)?));
            Ok(operands)
        },
        usable: &|_| true,
    };
    let wide = || wide::forward(maker, around, relu, propagation, weights);
    let mut candidates = or_wide(around, ways.list(maker, weights, &any), wide)?;
    candidates.extend(direct::forward(maker, around, relu, weights)?);
    candidates.extend(winograd::forward(maker, around, relu, weights)?);
    #[cfg(target_arch = "x86_64")]
    candidates.extend(super::panels::forward(maker, around, relu, weights)?);
    Ok(candidates)
}

/// Ways to make the input's gradient; `weights` is their layout, where it is decided.
pub(crate) fn backward_data(
    maker: &Maker<'_>,
    around: &Around<'_>,
    weights: Option<&Desc>,
) -> Result<Vec<Candidate>, String> {
    let hint = hint(maker, around)?;
    let any = maker.context.any(&weight_shape(around.conv), around.compute)?;
    let window = window(around.conv);
    let list =
        [(arg::DIFF_DST, Which::DiffDst), (arg::WEIGHTS, Which::Weights), (arg::DIFF_SRC, Which::DiffSrc)];
    let ways = Ways {
        make: &|weights| {
            let descs = [around.x, weights, around.y];
            maker.context.convolution_backward_data(descs, &window, &hint, &maker.plain)
        },
        operands: &|desc| descs(desc, &list),
        usable: &|_| true,
    };
    let wide = || wide::backward_data(maker, around, weights);
    let mut candidates = or_wide(around, ways.list(maker, weights, &any), wide)?;
    candidates.extend(winograd::backward_data(maker, around, weights)?);
    #[cfg(target_arch = "x86_64")]
    candidates.extend(super::panels::backward_data(maker, around, weights)?);
    Ok(candidates)
}

/// Ways to make the gradients of weight and bias; `weights` is the layout in which the gradient is wanted, where there is one.
pub(crate) fn backward_weights(
    maker: &Maker<'_>,
    around: &Around<'_>,
    weights: Option<&Desc>,
) -> Result<Vec<Candidate>, String> {
    let hint = hint(maker, around)?;
    let any = maker.context.any(&weight_shape(around.conv), DataType::F32)?;
    let bias = bias(maker, around.conv)?;
    let window = window(around.conv);
    let (x, y) = (around.x.layout()?, around.y.layout()?);
    let ways = Ways {
        make: &|weights| {
            let descs = [around.x, weights, around.y];
            let context = maker.context;
            context.convolution_backward_weights(descs, bias.as_ref(), &window, &hint, &maker.plain)
        },
        operands: &|desc| {
            let list = [
                (arg::SRC, Which::Src),
                (arg::DIFF_DST, Which::DiffDst),
                (arg::DIFF_WEIGHTS, Which::DiffWeights),
            ];
            let mut operands = descs(desc, &list)?;
            if let Some(bias) = &bias {
                operands.push((arg::DIFF_BIAS, bias.duplicate()?));
            }
            Ok(operands)
        },
        usable: &|implementation| !is_hazardous(around.conv, around.compute, &x, &y, implementation),
    };
    let wide = || wide::backward_weights(maker, around, weights);
    let mut candidates = or_wide(around, ways.list(maker, weights, &any), wide)?;
    candidates.extend(direct::backward_weights(maker, around, weights)?);
    candidates.extend(winograd::backward_weights(maker, around, weights)?);
    #[cfg(target_arch = "x86_64")]
    candidates.extend(super::panels::backward_weights(maker, around, weights)?);
    Ok(candidates)
}
