//! Convolution on oneDNN: each function lists the ways a step can be run, given the layouts of the maps around it.

use super::{Candidate, Maker, OperandsOf, descs, implementations};
use crate::ffi::{DataType, Desc, PrimitiveDesc, Propagation, Which, Window, arg};
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

fn window(conv: &Conv2d) -> Window {
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

fn bias(maker: &Maker<'_>, conv: &Conv2d) -> Result<Option<Desc>, String> {
    conv.bias.then(|| maker.context.strided(&[conv.out_channels], DataType::F32, &[1])).transpose()
}

/// A forward descriptor with weights of any layout, as the gradients need it for a hint.
fn hint(maker: &Maker<'_>, around: &Around<'_>) -> Result<PrimitiveDesc, String> {
    let weights = maker.context.any(&weight_shape(around.conv), around.compute)?;
    let descs = [around.x, &weights, around.y];
    maker.context.convolution_forward(Propagation::Training, descs, None, &window(around.conv), &maker.plain)
}

/// Ways to run the forward pass; `weights` fixes their layout.
pub(crate) fn forward(
    maker: &Maker<'_>,
    around: &Around<'_>,
    relu: bool,
    training: bool,
    weights: Option<&Desc>,
) -> Result<Vec<Candidate>, String> {
    let any = maker.context.any(&weight_shape(around.conv), around.compute)?;
    let bias = bias(maker, around.conv)?;
    let desc = maker.context.convolution_forward(
        if training { Propagation::Training } else { Propagation::Inference },
        [around.x, weights.unwrap_or(&any), around.y],
        bias.as_ref(),
        &window(around.conv),
        if relu { &maker.relu } else { &maker.plain },
    )?;
    implementations(desc, "", &|desc| {
        let mut operands = descs(desc, &[(arg::SRC, Which::Src), (arg::WEIGHTS, Which::Weights)])?;
        if let Some(bias) = &bias {
            operands.push((arg::BIAS, bias.duplicate()?));
        }
        operands.push((arg::DST, desc.desc(Which::Dst)?));
        Ok(operands)
    })
}

/// Ways to make the input's gradient; `weights` is their layout as it lies, other layouts are offered too.
pub(crate) fn backward_data(
    maker: &Maker<'_>,
    around: &Around<'_>,
    weights: &Desc,
) -> Result<Vec<Candidate>, String> {
    let hint = hint(maker, around)?;
    let any = maker.context.any(&weight_shape(around.conv), around.compute)?;
    let list =
        [(arg::DIFF_DST, Which::DiffDst), (arg::WEIGHTS, Which::Weights), (arg::DIFF_SRC, Which::DiffSrc)];
    either(
        weights,
        &any,
        &|weights| {
            let descs = [around.x, weights, around.y];
            maker.context.convolution_backward_data(descs, &window(around.conv), &hint, &maker.plain)
        },
        &|desc| descs(desc, &list),
    )
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
    let make = |weights: &Desc| {
        let descs = [around.x, weights, around.y];
        let window = window(around.conv);
        maker.context.convolution_backward_weights(descs, bias.as_ref(), &window, &hint, &maker.plain)
    };
    let operands = |desc: &PrimitiveDesc| {
        let mut operands = descs(
            desc,
            &[
                (arg::SRC, Which::Src),
                (arg::DIFF_DST, Which::DiffDst),
                (arg::DIFF_WEIGHTS, Which::DiffWeights),
            ],
        )?;
        if let Some(bias) = &bias {
            operands.push((arg::DIFF_BIAS, bias.duplicate()?));
        }
        Ok(operands)
    };
    match weights {
        Some(weights) => either(weights, &any, &make, &operands),
        None => implementations(make(&any)?, "", &operands),
    }
}

/// Implementations that take the weights as they lie, and those for which they are reordered first (marked `+reorder`).
pub(super) fn either(
    fixed: &Desc,
    any: &Desc,
    make: &dyn Fn(&Desc) -> Result<PrimitiveDesc, String>,
    operands: &OperandsOf<'_>,
) -> Result<Vec<Candidate>, String> {
    let as_they_lie = make(fixed).and_then(|desc| implementations(desc, "", operands));
    let reordered = make(any).and_then(|desc| implementations(desc, super::REORDERED, operands));
    let mut candidates = match (as_they_lie, reordered) {
        (Err(error), Err(_)) => return Err(error),
        (first, second) => {
            first.unwrap_or_default().into_iter().chain(second.unwrap_or_default()).collect::<Vec<_>>()
        }
    };
    if candidates.iter().any(|candidate| !super::is_fallback(&candidate.name)) {
        candidates.retain(|candidate| !super::is_fallback(&candidate.name));
    }
    Ok(candidates)
}
