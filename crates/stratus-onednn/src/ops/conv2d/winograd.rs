//! Dense 3×3 and 5×5, 3×1 and 1×3 convolutions by minimal filtering (Winograd).

use super::context::{ConvContext, Pass};
use crate::ffi::DataType;
use crate::native::conv::winograd::{
    Int16Products, LineConv, LineGradient, Pass as ConvPass, WinogradConv, WinogradGradient,
};
use crate::native::lanes::LaneElement;
use crate::native::simd::{Bf16, Isa};
use crate::ops::candidates::NativeKernel;
use crate::ops::{Candidate, Implementation, KernelBuilder};
use stratus_engine::{Operands, StepKernel};

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

#[derive(Clone)]
struct WinogradStep {
    kernel: WinogradKernel,
    dtype: DataType,
    bias: bool,
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
        let name = context.row_major_name(builder, family)?;
        let weights = context.row_major_weights(builder, context.compute)?;
        let (step_pass, bias) = match pass {
            ConvPass::Forward => (Pass::Forward, context.conv.bias),
            ConvPass::BackwardData => (Pass::BackwardData, false),
        };
        let operands = context.operands(builder, step_pass, weights)?;
        let winograd = WinogradStep { kernel, dtype: context.compute, bias };
        let implementation = Implementation::Native(Box::new(winograd));
        Ok::<_, String>(Some(Candidate { name, implementation, operands }))
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
    let name = context.row_major_name(builder, F32_PRODUCTS)?;
    let weights = context.row_major_weights(builder, DataType::F32)?;
    let operands = context.operands(builder, Pass::BackwardWeights, weights)?;
    let (dtype, bias) = (context.compute, context.conv.bias);
    let winograd = WinogradStep { kernel, dtype, bias };
    Ok(Some(Candidate { name, implementation: Implementation::Native(Box::new(winograd)), operands }))
}

/// The number of images and their extent, if the kernels are worth trying: for channels-last maps on AVX-512,
/// with enough channels to fill the registers. AMX multiplies bf16 faster than they save products.
fn applicable_shape(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
) -> Result<Option<(usize, [usize; 2])>, String> {
    let on_amx = context.compute == DataType::Bf16 && builder.onednn.has_amx();
    if on_amx || builder.cpu.level.isa() != Isa::Avx512 {
        return Ok(None);
    }
    context.channels_last()
}

impl NativeKernel for WinogradStep {
    fn scratch_bytes(&self) -> usize {
        match &self.kernel {
            WinogradKernel::Conv { conv, .. } => conv.scratch_bytes(),
            WinogradKernel::Gradient(gradient) => gradient.scratch_bytes(),
            WinogradKernel::LineConv { conv, .. } => conv.scratch_bytes(),
            WinogradKernel::LineGradient(gradient) => gradient.scratch_bytes(),
        }
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        Ok(Box::new(self.clone()))
    }
}

impl WinogradStep {
    fn run_as<E: LaneElement>(&self, o: &mut Operands<'_>) {
        let scratch = if self.bias { 4 } else { 3 };
        match &self.kernel {
            WinogradKernel::Conv { conv, relu } => {
                let bias = if self.bias { o.elements(2) } else { &mut [] };
                let (from, weights) = (o.elements::<E>(0), o.elements::<E>(1));
                conv.run(from, weights, bias, *relu, o.elements(scratch - 1), o.elements(scratch));
            }
            WinogradKernel::LineConv { conv, relu } => {
                let bias = if self.bias { o.elements(2) } else { &mut [] };
                let (from, weights) = (o.elements::<E>(0), o.elements::<E>(1));
                conv.run(from, weights, bias, *relu, o.elements(scratch - 1), o.elements(scratch));
            }
            WinogradKernel::LineGradient(gradient) => {
                let bias = if self.bias { o.elements(3) } else { &mut [] };
                let (x, dy) = (o.elements::<E>(0), o.elements::<E>(1));
                gradient.run(x, dy, o.elements(2), bias, o.elements(scratch));
            }
            WinogradKernel::Gradient(gradient) => {
                let bias = if self.bias { o.elements(3) } else { &mut [] };
                let (x, dy) = (o.elements::<E>(0), o.elements::<E>(1));
                gradient.run(x, dy, o.elements(2), bias, o.elements(scratch));
            }
        }
    }
}

impl StepKernel for WinogradStep {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        match self.dtype {
            DataType::F32 => self.run_as::<f32>(operands),
            DataType::Bf16 => self.run_as::<Bf16>(operands),
            other => return Err(format!("no kernel for {other:?}")),
        }
        Ok(())
    }
}
