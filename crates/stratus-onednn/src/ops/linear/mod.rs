//! Fully connected layers. The candidates of each pass: oneDNN's inner product, and for some gradients
//! oneDNN's matrix product ([`weight_gradient_matmul`]) or a native kernel ([`few_outputs`]).
//!
//! A feature map is read in its own layout: the weights then have its four dimensions.

mod few_outputs;
pub(super) mod weight_gradient_matmul;

use super::candidates::{Candidates, descs};
use super::implementations::fill_amx_tiles;
use super::{Candidate, CpuOp, KernelBuilder, OneDnnUse};
use crate::ffi::{DataType, Desc, MemoryDescQuery, PrimitiveDesc, Propagation, arg};
use crate::prepare::{LayoutNeeds, PlanBuilder};
use stratus_engine::ops::{LinearBackwardData, LinearBackwardWeights, LinearForward};
use stratus_engine::{Layout, Step};
use stratus_graph::ops::Linear;

/// A fully connected layer with the layouts and types of its operands.
pub(super) struct LinearContext<'a> {
    /// oneDNN's shape of the weights: `[O, I]` or `[O, C, H, W]`.
    pub weight_shape: Vec<usize>,
    /// True if there is a bias.
    pub bias: bool,
    /// The input, or its gradient.
    pub x: &'a Desc,
    /// The output: f32 logits in the forward pass; else their gradient, of the compute type.
    pub y: &'a Desc,
    /// The weights, or the required layout of their gradient, if decided.
    pub weights: Option<&'a Desc>,
    /// The type of the weights that kernels read.
    pub compute: DataType,
}

impl CpuOp for LinearForward {
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        let (x, y) = (plan.map_desc(step.inputs[0])?, plan.map_desc(step.outputs[0])?);
        let weight_shape = weight_shape(&self.linear, plan.shape(step.inputs[0]));
        let weights = plan.weight_desc(step.inputs[1], &weight_shape)?;
        let (bias, compute) = (self.linear.bias, plan.data_type(step.inputs[1])?);
        let context = LinearContext { weight_shape, bias, x: &x, y: &y, weights: weights.as_ref(), compute };
        let candidates = forward(plan.kernel_builder(), &context, plan.trains())?;
        plan.add_weight_reader(step, candidates)
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.weights([step.inputs[1]]);
    }

    fn onednn_use(&self) -> Option<OneDnnUse> {
        Some(library_use(&self.linear))
    }
}

impl CpuOp for LinearBackwardData {
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        let (y, x) = (plan.map_desc(step.inputs[0])?, plan.map_desc(step.outputs[0])?);
        let weight_shape = weight_shape(&self.linear, plan.shape(step.outputs[0]));
        let weights = plan.weight_desc(step.inputs[1], &weight_shape)?;
        let (bias, compute) = (self.linear.bias, plan.data_type(step.inputs[1])?);
        let context = LinearContext { weight_shape, bias, x: &x, y: &y, weights: weights.as_ref(), compute };
        let candidates = backward_data(plan.kernel_builder(), &context)?;
        plan.add_weight_reader(step, candidates)
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.weights([step.inputs[1]]);
    }

    fn onednn_use(&self) -> Option<OneDnnUse> {
        Some(library_use(&self.linear))
    }
}

impl CpuOp for LinearBackwardWeights {
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        plan.adopt_layout_of_copy(step.outputs[0]);
        let (x, y) = (plan.map_desc(step.inputs[0])?, plan.map_desc(step.inputs[1])?);
        let weight_shape = weight_shape(&self.linear, plan.shape(step.inputs[0]));
        let wanted = plan.gradient_desc(step.outputs[0], &weight_shape)?;
        let (bias, compute) = (self.linear.bias, plan.data_type(step.inputs[0])?);
        let context = LinearContext { weight_shape, bias, x: &x, y: &y, weights: wanted.as_ref(), compute };
        let candidates = backward_weights(plan.kernel_builder(), &context)?;
        plan.add_weight_gradient(step, candidates)
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.weights([step.outputs[0]]);
    }

    fn onednn_use(&self) -> Option<OneDnnUse> {
        Some(library_use(&self.linear))
    }
}

fn library_use(linear: &Linear) -> OneDnnUse {
    let fills_amx_tiles = fill_amx_tiles([linear.in_features, linear.out_features]);
    OneDnnUse { is_convolution: false, fills_amx_tiles }
}

/// oneDNN's shape of the weights, from that of the layer's input.
pub(super) fn weight_shape(linear: &Linear, input: &[usize]) -> Vec<usize> {
    let mut shape = input.to_vec();
    shape[0] = linear.out_features;
    shape
}

/// The row-major layout of a matrix, whose columns may be the pixels of a map.
pub(super) fn rows_first(shape: &[usize]) -> Layout {
    if shape.len() == 4 { Layout::channels_last(shape) } else { Layout::plain(shape) }
}

impl LinearContext<'_> {
    /// The layout of the weights as a row-major matrix.
    pub(super) fn rows_first(&self) -> Layout {
        rows_first(&self.weight_shape)
    }

    /// The numbers of samples, outputs and inputs, if `x` and `y` are matrices with a row per sample; the
    /// columns of a map are its pixels.
    pub(super) fn matrices(&self) -> Result<Option<[usize; 3]>, String> {
        let (x, y) = (self.x.layout()?, self.y.layout()?);
        let are_both = x.same_bytes(&rows_first(&x.shape)) && y.same_bytes(&Layout::plain(&y.shape));
        Ok(are_both.then(|| [x.shape[0], self.weight_shape[0], x.shape[1..].iter().product()]))
    }
}

fn bias(builder: &KernelBuilder<'_>, context: &LinearContext<'_>) -> Result<Option<Desc>, String> {
    let features = [context.weight_shape[0]];
    context.bias.then(|| builder.onednn.strided(&features, DataType::F32, &[1])).transpose()
}

/// A forward descriptor with weights in any layout, the hint that gradients need.
fn hint(builder: &KernelBuilder<'_>, context: &LinearContext<'_>) -> Result<PrimitiveDesc, String> {
    let weights = builder.onednn.any(&context.weight_shape, context.compute)?;
    let descs = [context.x, &weights, context.y];
    builder.onednn.inner_product_forward(Propagation::Training, descs, None, &builder.plain)
}

/// Candidates for the forward pass.
fn forward(
    builder: &KernelBuilder<'_>,
    context: &LinearContext<'_>,
    training: bool,
) -> Result<Vec<Candidate>, String> {
    let onednn = builder.onednn;
    let any = onednn.any(&context.weight_shape, context.compute)?;
    let bias = bias(builder, context)?;
    let propagation = if training { Propagation::Training } else { Propagation::Inference };
    let candidates = Candidates {
        make: &|weights| {
            let descs = [context.x, weights, context.y];
            onednn.inner_product_forward(propagation, descs, bias.as_ref(), &builder.plain)
        },
        operands: &|desc| {
            let mut operands =
                descs(desc, &[(arg::SRC, MemoryDescQuery::Src), (arg::WEIGHTS, MemoryDescQuery::Weights)])?;
            if let Some(bias) = &bias {
                operands.push((arg::BIAS, bias.duplicate()?));
            }
            operands.push((arg::DST, desc.desc(MemoryDescQuery::Dst)?));
            Ok(operands)
        },
        usable: &|_| true,
    };
    candidates.list(builder, context.weights, &any)
}

/// Candidates for the input's gradient.
fn backward_data(builder: &KernelBuilder<'_>, context: &LinearContext<'_>) -> Result<Vec<Candidate>, String> {
    let onednn = builder.onednn;
    let hint = hint(builder, context)?;
    let any = onednn.any(&context.weight_shape, context.compute)?;
    let list = [
        (arg::DIFF_DST, MemoryDescQuery::DiffDst),
        (arg::WEIGHTS, MemoryDescQuery::Weights),
        (arg::DIFF_SRC, MemoryDescQuery::DiffSrc),
    ];
    let listed = Candidates {
        make: &|weights| {
            onednn.inner_product_backward_data([context.x, weights, context.y], &hint, &builder.plain)
        },
        operands: &|desc| descs(desc, &list),
        usable: &|_| true,
    };
    let mut candidates = listed.list(builder, context.weights, &any)?;
    candidates.extend(few_outputs::backward_data(builder, context)?);
    Ok(candidates)
}

/// Candidates for the gradients of weights and bias.
fn backward_weights(
    builder: &KernelBuilder<'_>,
    context: &LinearContext<'_>,
) -> Result<Vec<Candidate>, String> {
    let onednn = builder.onednn;
    let hint = hint(builder, context)?;
    let any = onednn.any(&context.weight_shape, DataType::F32)?;
    let bias = bias(builder, context)?;
    let list = [
        (arg::SRC, MemoryDescQuery::Src),
        (arg::DIFF_DST, MemoryDescQuery::DiffDst),
        (arg::DIFF_WEIGHTS, MemoryDescQuery::DiffWeights),
    ];
    let listed = Candidates {
        make: &|weights| {
            let descs = [context.x, weights, context.y];
            onednn.inner_product_backward_weights(descs, bias.as_ref(), &hint, &builder.plain)
        },
        operands: &|desc| {
            let mut operands = descs(desc, &list)?;
            if let Some(bias) = &bias {
                operands.push((arg::DIFF_BIAS, bias.duplicate()?));
            }
            Ok(operands)
        },
        usable: &|_| true,
    };
    let mut candidates = listed.list(builder, context.weights, &any)?;
    candidates.extend(weight_gradient_matmul::backward_weights(builder, context)?);
    Ok(candidates)
}
