//! Convolution, in inference with a sum and an activation ([`epilogue`]). The candidates of each pass, in
//! this order: oneDNN's implementations, oneDNN's f32 implementations for bf16 maps ([`f32_fallback`]),
//! oneDNN's forward pass for input gradients ([`forward_as_gradient`]), depthwise convolution
//! ([`mod@depthwise`]), direct convolution for few channels ([`direct`]), convolution in groups
//! ([`grouped`]), products over pixels ([`pointwise_gradient`]), minimal filtering ([`winograd`]), and
//! products of packed panels ([`panels`]).

mod context;
mod depthwise;
mod direct;
mod epilogue;
mod f32_fallback;
mod forward_as_gradient;
mod grouped;
mod native_pass;
#[cfg(target_arch = "x86_64")]
mod panels;
mod pointwise_gradient;
mod winograd;

pub(crate) use context::ConvContext;

use super::candidates::{Candidates, descs, drop_fallbacks};
use super::implementations::multiplies_bf16;
use super::{Candidate, CpuOp, KernelBuilder, OneDnnUse};
use crate::ffi::{DataType, MemoryDescQuery, PostOp, Propagation, arg};
use crate::prepare::{LayoutNeeds, PlanBuilder};
use context::{Pass, bias, hint, is_hazardous};
pub(in crate::ops) use context::{fills_amx_tiles, weight_shape, window};
use epilogue::Epilogue;
use stratus_engine::ops::{
    Conv2dBackwardData, Conv2dBackwardWeights, Conv2dForward, Conv2dInference, FusedActivation,
};
use stratus_engine::{Step, ValueId};
use stratus_graph::ops::Conv2d;

impl CpuOp for Conv2dForward {
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        let propagation = if plan.trains() { Propagation::Training } else { Propagation::Inference };
        prepare_forward(&self.conv, FusedActivation::relu_if(self.relu), None, propagation, step, plan)
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.weights([step.inputs[1]]);
    }

    fn onednn_use(&self) -> Option<OneDnnUse> {
        Some(library_use(&self.conv))
    }
}

impl CpuOp for Conv2dInference {
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        let addend = self.adds.then(|| step.inputs[self.inputs() - 1]);
        prepare_forward(&self.conv, self.activation, addend, Propagation::Inference, step, plan)
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.weights([step.inputs[1]]);
    }

    fn onednn_use(&self) -> Option<OneDnnUse> {
        Some(library_use(&self.conv))
    }
}

impl CpuOp for Conv2dBackwardData {
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        let conv = &self.conv;
        let (y, x) = (plan.map_desc(step.inputs[0])?, plan.map_desc(step.outputs[0])?);
        let weights = plan.weight_desc(step.inputs[1], &weight_shape(conv))?;
        let compute = plan.data_type(step.inputs[1])?;
        let context = ConvContext { conv, x: &x, y: &y, weights: weights.as_ref(), compute };
        let candidates = backward_data(plan.kernel_builder(), &context)?;
        plan.add_weight_reader(step, candidates)
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.weights([step.inputs[1]]);
    }

    fn onednn_use(&self) -> Option<OneDnnUse> {
        Some(library_use(&self.conv))
    }
}

impl CpuOp for Conv2dBackwardWeights {
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        let conv = &self.conv;
        let (x, y) = (plan.map_desc(step.inputs[0])?, plan.map_desc(step.inputs[1])?);
        let wanted = plan.gradient_desc(step.outputs[0], &weight_shape(conv))?;
        let compute = plan.data_type(step.inputs[0])?;
        let context = ConvContext { conv, x: &x, y: &y, weights: wanted.as_ref(), compute };
        let candidates = backward_weights(plan.kernel_builder(), &context)?;
        plan.add_weight_gradient(step, candidates)
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.weights([step.outputs[0]]);
    }

    fn onednn_use(&self) -> Option<OneDnnUse> {
        Some(library_use(&self.conv))
    }
}

/// Adds a forward pass with a sum and an activation to the plan.
fn prepare_forward(
    conv: &Conv2d,
    activation: FusedActivation,
    addend: Option<ValueId>,
    propagation: Propagation,
    step: &Step,
    plan: &mut PlanBuilder<'_>,
) -> Result<(), String> {
    let (x, y) = (plan.map_desc(step.inputs[0])?, plan.map_desc(step.outputs[0])?);
    let addend = addend.map(|addend| plan.map_desc(addend)).transpose()?;
    let weights = plan.weight_desc(step.inputs[1], &weight_shape(conv))?;
    let compute = plan.data_type(step.inputs[1])?;
    let context = ConvContext { conv, x: &x, y: &y, weights: weights.as_ref(), compute };
    let epilogue = Epilogue { addend: addend.as_ref(), activation };
    let candidates = forward(plan.kernel_builder(), &context, &epilogue, propagation)?;
    plan.add_weight_reader(step, candidates)
}

fn library_use(conv: &Conv2d) -> OneDnnUse {
    OneDnnUse { is_convolution: true, fills_amx_tiles: fills_amx_tiles(conv) }
}

/// Adds the f32 candidate to oneDNN's bf16 candidates, unless these are at least twice as fast: if the CPU
/// has bf16 products and the channels fill its registers.
fn or_in_f32(
    context: &ConvContext<'_>,
    listed: Result<Vec<Candidate>, String>,
    in_f32: impl FnOnce() -> Result<Option<Candidate>, String>,
) -> Result<Vec<Candidate>, String> {
    let is_twice_as_fast = fills_amx_tiles(context.conv)
        && listed.iter().flatten().any(|candidate| multiplies_bf16(&candidate.name));
    if context.compute == DataType::F32 || is_twice_as_fast {
        return listed;
    }
    let Some(in_f32) = in_f32()? else { return listed };
    let mut candidates = listed.unwrap_or_default();
    candidates.push(in_f32);
    drop_fallbacks(&mut candidates);
    Ok(candidates)
}

/// Candidates for the forward pass. Those that cannot compute the whole epilogue compute none of it, and are
/// followed by a pass over the output.
fn forward(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
    epilogue: &Epilogue<'_>,
    propagation: Propagation,
) -> Result<Vec<Candidate>, String> {
    let plain_relu = epilogue.as_plain_relu();
    let relu = plain_relu.unwrap_or(false);
    let with_epilogue = |candidate: Candidate| match plain_relu {
        Some(_) => Ok(candidate),
        None => epilogue.append_to(builder, context, candidate),
    };
    let fused = epilogue.post_ops().map(|post_ops| {
        let listed = onednn_forward(builder, context, &post_ops, propagation)?;
        listed.into_iter().map(|candidate| epilogue.with_addend(candidate)).collect()
    });
    let listed = match (fused, plain_relu) {
        (Some(listed), Some(_)) => listed,
        (fused, _) => {
            let separate = onednn_forward(builder, context, &[], propagation);
            let separate = separate.and_then(|listed| listed.into_iter().map(with_epilogue).collect());
            fused_and_separate(fused, separate)
        }
    };
    let in_f32 =
        || f32_fallback::forward(builder, context, relu, propagation)?.map(with_epilogue).transpose();
    let mut candidates = or_in_f32(context, listed, in_f32)?;
    let mut others: Vec<Candidate> = Vec::new();
    match epilogue.addend {
        None => {
            candidates.extend(depthwise::candidate(builder, context, Pass::Forward, epilogue.activation)?);
        }
        Some(_) => {
            let identity = FusedActivation::Identity;
            others.extend(depthwise::candidate(builder, context, Pass::Forward, identity)?);
        }
    }
    others.extend(direct::forward(builder, context, relu)?);
    others.extend(grouped::candidate(builder, context, Pass::Forward, relu)?);
    others.extend(winograd::forward(builder, context, relu)?);
    #[cfg(target_arch = "x86_64")]
    others.extend(panels::forward(builder, context, relu)?);
    for candidate in others {
        candidates.push(with_epilogue(candidate)?);
    }
    Ok(candidates)
}

/// The candidates with the epilogue as post-ops, if it can be, and those with a separate pass; an error only
/// if there are none.
fn fused_and_separate(
    fused: Option<Result<Vec<Candidate>, String>>,
    separate: Result<Vec<Candidate>, String>,
) -> Result<Vec<Candidate>, String> {
    let Some(Ok(mut candidates)) = fused else { return separate };
    candidates.extend(separate.unwrap_or_default());
    drop_fallbacks(&mut candidates);
    Ok(candidates)
}

/// oneDNN's candidates for the forward pass with post-ops, without the operands of these.
fn onednn_forward(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
    post_ops: &[PostOp<'_>],
    propagation: Propagation,
) -> Result<Vec<Candidate>, String> {
    let onednn = builder.onednn;
    let any = onednn.any(&weight_shape(context.conv), context.compute)?;
    let bias = bias(builder, context.conv)?;
    let attributes = onednn.attributes_with(None, post_ops)?;
    let window = window(context.conv);
    Candidates {
        make: &|weights| {
            let descs = [context.x, weights, context.y];
            onednn.convolution_forward(propagation, descs, bias.as_ref(), &window, &attributes)
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
    }
    .list(builder, context.weights, &any)
}

/// Candidates for the input's gradient.
fn backward_data(builder: &KernelBuilder<'_>, context: &ConvContext<'_>) -> Result<Vec<Candidate>, String> {
    let onednn = builder.onednn;
    let hint = hint(builder, context)?;
    let any = onednn.any(&weight_shape(context.conv), context.compute)?;
    let window = window(context.conv);
    let list = [
        (arg::DIFF_DST, MemoryDescQuery::DiffDst),
        (arg::WEIGHTS, MemoryDescQuery::Weights),
        (arg::DIFF_SRC, MemoryDescQuery::DiffSrc),
    ];
    let listed = Candidates {
        make: &|weights| {
            let descs = [context.x, weights, context.y];
            onednn.convolution_backward_data(descs, &window, &hint, &builder.plain)
        },
        operands: &|desc| descs(desc, &list),
        usable: &|_| true,
    }
    .list(builder, context.weights, &any);
    let in_f32 = || f32_fallback::backward_data(builder, context);
    let mut candidates = or_in_f32(context, listed, in_f32)?;
    candidates.extend(forward_as_gradient::backward_data(builder, context)?);
    candidates.extend(depthwise::candidate(builder, context, Pass::BackwardData, FusedActivation::Identity)?);
    candidates.extend(grouped::candidate(builder, context, Pass::BackwardData, false)?);
    candidates.extend(winograd::backward_data(builder, context)?);
    #[cfg(target_arch = "x86_64")]
    candidates.extend(panels::backward_data(builder, context)?);
    Ok(candidates)
}

/// Candidates for the gradients of weights and bias.
fn backward_weights(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
) -> Result<Vec<Candidate>, String> {
    let (onednn, conv) = (builder.onednn, context.conv);
    let hint = hint(builder, context)?;
    let any = onednn.any(&weight_shape(conv), DataType::F32)?;
    let bias = bias(builder, conv)?;
    let window = window(conv);
    let (x, y) = (context.x.layout()?, context.y.layout()?);
    let list = [
        (arg::SRC, MemoryDescQuery::Src),
        (arg::DIFF_DST, MemoryDescQuery::DiffDst),
        (arg::DIFF_WEIGHTS, MemoryDescQuery::DiffWeights),
    ];
    let listed = Candidates {
        make: &|weights| {
            let descs = [context.x, weights, context.y];
            onednn.convolution_backward_weights(descs, bias.as_ref(), &window, &hint, &builder.plain)
        },
        operands: &|desc| {
            let mut operands = descs(desc, &list)?;
            if let Some(bias) = &bias {
                operands.push((arg::DIFF_BIAS, bias.duplicate()?));
            }
            Ok(operands)
        },
        usable: &|implementation| !is_hazardous(conv, context.compute, &x, &y, implementation),
    }
    .list(builder, context.weights, &any);
    let in_f32 = || f32_fallback::backward_weights(builder, context);
    let mut candidates = or_in_f32(context, listed, in_f32)?;
    candidates.extend(direct::backward_weights(builder, context)?);
    candidates.extend(depthwise::candidate(
        builder,
        context,
        Pass::BackwardWeights,
        FusedActivation::Identity,
    )?);
    candidates.extend(grouped::candidate(builder, context, Pass::BackwardWeights, false)?);
    candidates.extend(pointwise_gradient::backward_weights(builder, context)?);
    candidates.extend(winograd::backward_weights(builder, context)?);
    #[cfg(target_arch = "x86_64")]
    candidates.extend(panels::backward_weights(builder, context)?);
    Ok(candidates)
}
