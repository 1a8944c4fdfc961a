//! Dense 3×3 and 5×5, 3×1 and 1×3 convolutions by minimal filtering (Winograd).

use super::context::{ConvContext, Pass};
use super::native_pass::{self, PassKernel, PassOperands};
use crate::ffi::DataType;
use crate::native::conv::winograd::{
    Int16Products, LineConv, LineGradient, Pass as ConvPass, WinogradConv, WinogradGradient,
};
use crate::native::lanes::LaneElement;
use crate::native::simd::Isa;
use crate::ops::{Candidate, KernelBuilder, typed};
use bytemuck::cast_slice_mut;

/// The name prefix of candidates with f32 products.
const F32_PRODUCTS: &str = "winograd:";
/// The name prefix of candidates with int16 (VNNI) products of bf16 maps.
const INT16_PRODUCTS: &str = "winograd:vnni:";

/// The computation and its kernel.
#[derive(Clone)]
enum WinogradKernel {
    Conv { conv: WinogradConv, relu: bool },
    Gradient(WinogradGradient),
    LineConv { conv: LineConv, relu: bool },
    LineGradient(LineGradient),
}

/// Candidates for the forward pass.
pub(super) fn forward(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
    relu: bool,
) -> Result<Vec<Candidate>, String> {
    conv(builder, context, ConvPass::Forward, relu)
}

/// Candidates for the input's gradient.
pub(super) fn backward_data(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
) -> Result<Vec<Candidate>, String> {
    conv(builder, context, ConvPass::BackwardData, false)
}

fn conv(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
    pass: ConvPass,
    relu: bool,
) -> Result<Vec<Candidate>, String> {
    let Some((batch, input)) = applicable_shape(builder, context)? else { return Ok(Vec::new()) };
    let candidate = |family: &str, int16: Option<Int16Products>| {
        let square = || {
            let conv = WinogradConv::new(context.conv, pass, batch, input, int16, builder.cpu)?;
            Some(WinogradKernel::Conv { conv, relu })
        };
        let line = || {
            let conv = LineConv::new(context.conv, pass, batch, input, int16, builder.cpu)?;
            Some(WinogradKernel::LineConv { conv, relu })
        };
        let Some(kernel) = square().or_else(line) else { return Ok(None) };
        let pass = match pass {
            ConvPass::Forward => Pass::Forward,
            ConvPass::BackwardData => Pass::BackwardData,
        };
        native_pass::candidate(builder, context, (pass, family), kernel).map(Some)
    };
    let wanted = context.compute == DataType::Bf16 && builder.onednn.has_vnni();
    let int16 = Int16Products::detect(builder.cpu.level).filter(|_| wanted);
    let on_int16 = int16.map(|int16| candidate(INT16_PRODUCTS, Some(int16))).transpose()?.flatten();
    Ok(candidate(F32_PRODUCTS, None)?.into_iter().chain(on_int16).collect())
}

/// Returns a candidate for the gradients of weights and bias.
pub(super) fn backward_weights(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
) -> Result<Option<Candidate>, String> {
    let Some((batch, input)) = applicable_shape(builder, context)? else { return Ok(None) };
    let square = WinogradGradient::new(context.conv, batch, input, builder.cpu).map(WinogradKernel::Gradient);
    // Half of the products of f32 take as long as all products of bf16.
    let line =
        || LineGradient::new(context.conv, batch, input, builder.cpu).map(WinogradKernel::LineGradient);
    let line = (context.compute == DataType::F32).then(line).flatten();
    let Some(kernel) = square.or(line) else { return Ok(None) };
    native_pass::candidate(builder, context, (Pass::BackwardWeights, F32_PRODUCTS), kernel).map(Some)
}

/// The number of images and their extent, if the kernels are worth trying: for channels-last maps on AVX-512,
/// or of f32 on AVX2, with enough channels to fill the registers. AMX multiplies bf16 faster than they save
/// products.
fn applicable_shape(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
) -> Result<Option<(usize, [usize; 2])>, String> {
    let is_offered = match builder.cpu.level.isa() {
        Isa::Avx512 => context.compute != DataType::Bf16 || !builder.onednn.has_amx(),
        Isa::Avx2 => typed!(context.compute.into(), E => E::HAS_WIDE_KERNELS_ON_AVX2),
        Isa::Baseline => false,
    };
    if is_offered { context.channels_last() } else { Ok(None) }
}

impl PassKernel for WinogradKernel {
    fn scratch_bytes(&self) -> usize {
        match self {
            Self::Conv { conv, .. } => conv.scratch_bytes(),
            Self::Gradient(gradient) => gradient.scratch_bytes(),
            Self::LineConv { conv, .. } => conv.scratch_bytes(),
            Self::LineGradient(gradient) => gradient.scratch_bytes(),
        }
    }

    fn run<E: LaneElement>(&self, operands: PassOperands<'_, E>) {
        let PassOperands { inputs: [first, second], bias, result, scratch } = operands;
        let scratch = cast_slice_mut(scratch);
        match self {
            Self::Conv { conv, relu } => {
                conv.run(first, second, bias, *relu, cast_slice_mut(result), scratch);
            }
            Self::LineConv { conv, relu } => {
                conv.run(first, second, bias, *relu, cast_slice_mut(result), scratch);
            }
            Self::Gradient(gradient) => gradient.run(first, second, cast_slice_mut(result), bias, scratch),
            Self::LineGradient(gradient) => {
                gradient.run(first, second, cast_slice_mut(result), bias, scratch);
            }
        }
    }
}
