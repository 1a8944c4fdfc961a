//! Fully connected layers, on oneDNN's inner product first. A feature map is taken as it lies: the weights are then four-dimensional.

use super::{Candidate, Maker, Ways, descs, narrow, outer};
use crate::ffi::{DataType, Desc, PrimitiveDesc, Propagation, Which, arg};
use stratus_engine::Layout;

/// The operands' layouts and types.
pub(crate) struct Around<'a> {
    /// Shape of the weights as the library sees them: `[O, I]` or `[O, C, H, W]`.
    pub weight_shape: Vec<usize>,
    /// Whether there is a bias.
    pub bias: bool,
    /// Input.
    pub x: &'a Desc,
    /// Output: f32 logits forward; backward their gradient, which has the compute type.
    pub y: &'a Desc,
    /// Type of the weights that kernels read.
    pub compute: DataType,
}

/// How a matrix lies a row after the other, where its columns may be the pixels of a map.
pub(super) fn rows_first(shape: &[usize]) -> Layout {
    if shape.len() == 4 { Layout::channels_last(shape) } else { Layout::plain(shape) }
}

impl Around<'_> {
    /// How the weights lie as a matrix by rows.
    pub(crate) fn rows_first(&self) -> Layout {
        rows_first(&self.weight_shape)
    }

    /// Samples, outputs and inputs, where `x` and `y` lie as matrices, a row per sample: a map's pixels are the columns.
    pub(super) fn matrices(&self) -> Result<Option<[usize; 3]>, String> {
        let (x, y) = (self.x.layout()?, self.y.layout()?);
        let lie_well = x.same_bytes(&rows_first(&x.shape)) && y.same_bytes(&Layout::plain(&y.shape));
        Ok(lie_well.then(|| [x.shape[0], self.weight_shape[0], x.shape[1..].iter().product()]))
    }
}

fn bias(maker: &Maker<'_>, around: &Around<'_>) -> Result<Option<Desc>, String> {
    let features = [around.weight_shape[0]];
    around.bias.then(|| maker.context.strided(&features, DataType::F32, &[1])).transpose()
}

fn hint(maker: &Maker<'_>, around: &Around<'_>) -> Result<PrimitiveDesc, String> {
    let weights = maker.context.any(&around.weight_shape, around.compute)?;
    maker.context.inner_product_forward(
        Propagation::Training,
        [around.x, &weights, around.y],
        None,
        &maker.plain,
    )
}

/// Ways to run the forward pass; `weights` is their layout, where it is decided.
pub(crate) fn forward(
    maker: &Maker<'_>,
    around: &Around<'_>,
    training: bool,
    weights: Option<&Desc>,
) -> Result<Vec<Candidate>, String> {
    let any = maker.context.any(&around.weight_shape, around.compute)?;
    let bias = bias(maker, around)?;
    let propagation = if training { Propagation::Training } else { Propagation::Inference };
    let ways = Ways {
        make: &|weights| {
            let descs = [around.x, weights, around.y];
            maker.context.inner_product_forward(propagation, descs, bias.as_ref(), &maker.plain)
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
    ways.list(maker, weights, &any)
}

/// Ways to make the input's gradient.
pub(crate) fn backward_data(
    maker: &Maker<'_>,
    around: &Around<'_>,
    weights: Option<&Desc>,
) -> Result<Vec<Candidate>, String> {
    let hint = hint(maker, around)?;
    let any = maker.context.any(&around.weight_shape, around.compute)?;
    let list =
        [(arg::DIFF_DST, Which::DiffDst), (arg::WEIGHTS, Which::Weights), (arg::DIFF_SRC, Which::DiffSrc)];
    let ways = Ways {
        make: &|weights| {
            maker.context.inner_product_backward_data([around.x, weights, around.y], &hint, &maker.plain)
        },
        operands: &|desc| descs(desc, &list),
        usable: &|_| true,
    };
    let mut candidates = ways.list(maker, weights, &any)?;
    candidates.extend(narrow::backward_data(maker, around, weights)?);
    Ok(candidates)
}

/// Ways to make the gradients of weight and bias.
pub(crate) fn backward_weights(
    maker: &Maker<'_>,
    around: &Around<'_>,
    weights: Option<&Desc>,
) -> Result<Vec<Candidate>, String> {
    let hint = hint(maker, around)?;
    let any = maker.context.any(&around.weight_shape, DataType::F32)?;
    let bias = bias(maker, around)?;
    let ways = Ways {
        make: &|weights| {
            let descs = [around.x, weights, around.y];
            maker.context.inner_product_backward_weights(descs, bias.as_ref(), &hint, &maker.plain)
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
        usable: &|_| true,
    };
    let mut candidates = ways.list(maker, weights, &any)?;
    candidates.extend(outer::backward_weights(maker, around, weights)?);
    Ok(candidates)
}
