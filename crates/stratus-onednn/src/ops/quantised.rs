//! Maps in bytes, and convolutions of them by oneDNN.

use super::candidates::{Candidates, descs};
use super::conv2d::{fills_amx_tiles, weight_shape, window};
use super::native::{native_step, typed};
use super::{CpuOp, KernelBuilder, NativeStep, OneDnnUse, StepOperands};
use crate::ffi::{Attributes, DataType, Desc, MemoryDescQuery, PostOp, Propagation, arg};
use crate::native::elementwise::CpuContext;
use crate::prepare::{LayoutNeeds, PlanBuilder};
use stratus_engine::Step;
use stratus_engine::ops::{Addend, Quantise, QuantisedConv2d};

impl CpuOp for Quantise {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 1])?;
        let (bytes, cpu) = (self.bytes, cpu.clone());
        Ok(typed!(operands.one_type(&[0])?, E => {
            native_step(0, move |o| cpu.quantise::<E>(bytes, o.elements(0), o.take(1)))
        }))
    }
}

impl CpuOp for QuantisedConv2d {
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        let conv = &self.conv;
        let (x, y) = (plan.map_desc(step.inputs[0])?, plan.map_desc(step.outputs[0])?);
        let addend = step.inputs.get(4).map(|&id| plan.map_desc(id)).transpose()?;
        let decided = plan.weight_desc(step.inputs[1], &weight_shape(conv))?;
        let builder = plan.kernel_builder();
        let onednn = builder.onednn;
        let (attributes, position) = attributes(self, builder, addend.as_ref())?;
        let vector = |name| -> Result<(i32, Desc), String> {
            Ok((name, onednn.strided(&[conv.out_channels], DataType::F32, &[1])?))
        };
        let bias = vector(arg::BIAS)?.1;
        let window = window(conv);
        let listed = Candidates {
            make: &|weights| {
                let descs = [&x, weights, &y];
                let inference = Propagation::Inference;
                onednn.convolution_forward(inference, descs, Some(&bias), &window, &attributes)
            },
            operands: &|desc| {
                let queries = [(arg::SRC, MemoryDescQuery::Src), (arg::WEIGHTS, MemoryDescQuery::Weights)];
                let mut operands = descs(desc, &queries)?;
                operands.extend([vector(arg::WEIGHT_SCALES)?, vector(arg::BIAS)?]);
                if let Some(addend) = &addend {
                    operands.push((arg::post_op_operand(position), addend.duplicate()?));
                }
                operands.push((arg::DST, desc.desc(MemoryDescQuery::Dst)?));
                Ok(operands)
            },
            usable: &|name| !onednn.has_int8_products() || !saturates(name),
        };
        let any = onednn.any(&weight_shape(conv), DataType::I8)?;
        let candidates = listed.list(builder, decided.as_ref(), &any)?;
        plan.add_weight_reader(step, candidates)
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.weights([step.inputs[1]]);
    }

    fn onednn_use(&self) -> Option<OneDnnUse> {
        Some(OneDnnUse { is_convolution: true, fills_amx_tiles: fills_amx_tiles(&self.conv) })
    }
}

/// Returns whether an implementation may add two products in sixteen bits, which saturate if weights have
/// eight bits: it lacks the instructions of VNNI.
fn saturates(implementation: &str) -> bool {
    !["vnni", "amx", "bf16", "fp16", "ref"].iter().any(|exact| implementation.contains(exact))
}

/// The attributes of the primitive, and the position of the sum among its post-ops.
fn attributes(
    kernel: &QuantisedConv2d,
    builder: &KernelBuilder<'_>,
    addend: Option<&Desc>,
) -> Result<(Attributes, usize), String> {
    let mut post_ops = Vec::new();
    // The result is in units of the addend's bytes while these are added, because post-ops have no scale.
    let mut unit = 1.0;
    if let Addend::Bytes(bytes) = kernel.addend {
        unit = bytes.scale;
        post_ops.push(PostOp::Linear { scale: unit.recip(), shift: -f32::from(bytes.zero_point) });
    }
    let position = post_ops.len();
    post_ops.extend(addend.map(PostOp::Add));
    if kernel.relu {
        post_ops.push(PostOp::Relu);
    }
    if let Some(bytes) = kernel.output {
        post_ops.push(PostOp::Linear { scale: unit / bytes.scale, shift: f32::from(bytes.zero_point) });
    } else if unit != 1.0 {
        post_ops.push(PostOp::Linear { scale: unit, shift: 0.0 });
    }
    // A scale per output channel, which is two dimensions if there are groups.
    let dimensions = if kernel.conv.groups == 1 { 0b1 } else { 0b11 };
    Ok((builder.onednn.attributes_with(Some(dimensions), &post_ops)?, position))
}
