//! Convolution and its gradients as products of packed panels: of bf16 on AMX or with AVX-512 dot products,
//! and the weight gradient in f32 too; for few channels, the weight gradient by windows.

use super::context::{ConvContext, Pass};
use crate::ffi::{DataType, Desc};
use crate::native::conv::panel_gradient::{PanelArithmetic, PanelGradient};
use crate::native::conv::panels::{ConvProblem, PanelConv};
use crate::native::conv::tap_gradient::TapGradient;
use crate::native::conv::tiles::{Avx512Bf16, Avx512F32, MatrixUnit};
use crate::native::conv::window_gradient::{WindowArithmetic, WindowGradient};
use crate::ops::candidates::{NATIVE_PREFIX, NativeKernel};
use crate::ops::{Candidate, Implementation, KernelBuilder};
use std::sync::Arc;
use stratus_engine::{Layout, Operands, StepKernel};

/// The computation and its kernel.
#[derive(Clone)]
enum PanelKernel {
    Forward { conv: PanelConv, relu: bool },
    BackwardData(PanelConv),
    BackwardWeights(Arc<dyn Gradient>),
}

impl PanelKernel {
    fn pass(&self) -> Pass {
        match self {
            Self::Forward { .. } => Pass::Forward,
            Self::BackwardData(_) => Pass::BackwardData,
            Self::BackwardWeights(_) => Pass::BackwardWeights,
        }
    }
}

/// A kernel for the gradients of the weights and the optional bias. The step has `x, dy, dweight, dbias?,
/// scratch`.
trait Gradient: Send + Sync {
    fn scratch_bytes(&self) -> usize;
    fn make(&self, o: &mut Operands<'_>, bias: bool);
}

/// Implements [`Gradient`] for kernels that also compute the gradient of the bias, for any suitable matrix
/// unit.
macro_rules! gradient_with_bias {
    ($($kernel:ident on $unit:ident),*) => {$(
        impl<U: $unit> Gradient for $kernel<U> {
            fn scratch_bytes(&self) -> usize {
                self.scratch_bytes()
            }

            fn make(&self, o: &mut Operands<'_>, bias: bool) {
                let (db, scratch) = if bias { (o.elements(3), 4) } else { (&mut [][..], 3) };
                self.run(o.elements(0), o.elements(1), o.elements(2), db, o.elements(scratch));
            }
        }
    )*};
}

gradient_with_bias!(PanelGradient on PanelArithmetic, WindowGradient on WindowArithmetic);

impl Gradient for TapGradient {
    fn scratch_bytes(&self) -> usize {
        self.scratch_bytes()
    }

    fn make(&self, o: &mut Operands<'_>, _: bool) {
        self.run(o.elements(0), o.elements(1), o.elements(2), o.elements(3));
    }
}

#[derive(Clone)]
struct PanelStep {
    kernel: PanelKernel,
    bias: bool,
}

/// Returns a candidate for the forward pass.
pub(super) fn forward(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
    relu: bool,
) -> Result<Option<Candidate>, String> {
    let Some(unit) = amx(builder, context) else { return Ok(None) };
    let make =
        |problem: ConvProblem<'_>| Some(PanelKernel::Forward { conv: PanelConv::forward(problem)?, relu });
    candidate(builder, context, context.compute, unit, unit.name(), &make)
}

/// Returns a candidate for the input's gradient.
pub(super) fn backward_data(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
) -> Result<Option<Candidate>, String> {
    let Some(unit) = amx(builder, context) else { return Ok(None) };
    let make = |problem: ConvProblem<'_>| Some(PanelKernel::BackwardData(PanelConv::backward(problem)?));
    candidate(builder, context, context.compute, unit, unit.name(), &make)
}

/// Candidates for the gradients of weights and bias.
pub(super) fn backward_weights(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
) -> Result<Vec<Candidate>, String> {
    let mut candidates = Vec::new();
    if context.compute == DataType::F32 {
        let Some(unit) = Avx512F32::detect(builder.cpu.level) else { return Ok(candidates) };
        let level = builder.cpu.level.name();
        let [panels, window] = ["panels", "window"].map(|family| format!("{family}:{level}"));
        candidates.extend(gradient(builder, context, unit, &panels, PanelGradient::new)?);
        candidates.extend(gradient(builder, context, unit, &window, WindowGradient::new)?);
        return Ok(candidates);
    }
    let Some(unit) = fastest_unit(builder, context) else { return Ok(candidates) };
    candidates.extend(gradient(builder, context, unit, unit.name(), PanelGradient::new)?);
    if let Some(unit) = amx(builder, context) {
        let name = format!("{}:taps", unit.name());
        candidates.extend(gradient(builder, context, unit, &name, TapGradient::new)?);
    }
    if let Some(unit) = Avx512Bf16::detect(builder.onednn) {
        let name = format!("window:{}", MatrixUnit::Avx512(unit).name());
        candidates.extend(gradient(builder, context, unit, &name, WindowGradient::new)?);
    }
    Ok(candidates)
}

/// A candidate for the gradients, if `make` supports the convolution.
fn gradient<U: Copy, G: Gradient + 'static>(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
    unit: U,
    name: &str,
    make: fn(ConvProblem<'_, U>) -> Option<G>,
) -> Result<Option<Candidate>, String> {
    let kernel = |problem: ConvProblem<'_, U>| Some(PanelKernel::BackwardWeights(Arc::new(make(problem)?)));
    candidate(builder, context, DataType::F32, unit, name, &kernel)
}

/// The fastest bf16 unit; slower ones never win.
fn fastest_unit(builder: &KernelBuilder<'_>, context: &ConvContext<'_>) -> Option<MatrixUnit> {
    (context.compute == DataType::Bf16).then(|| MatrixUnit::all(builder.onednn).next()).flatten()
}

/// AMX, if it is the fastest unit. Without it, oneDNN's forward passes and input gradients reach the CPU's
/// peak rate; only its weight gradients do not (docs/benchmarks/kernels.md).
fn amx(builder: &KernelBuilder<'_>, context: &ConvContext<'_>) -> Option<MatrixUnit> {
    fastest_unit(builder, context).filter(|unit| matches!(unit, MatrixUnit::Amx(_)))
}

/// A candidate that reads weights, or writes their gradient, of type `dtype` in the decided layout.
fn candidate<U>(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
    dtype: DataType,
    unit: U,
    name: &str,
    make: &dyn Fn(ConvProblem<'_, U>) -> Option<PanelKernel>,
) -> Result<Option<Candidate>, String> {
    let Some((batch, input)) = context.channels_last()? else { return Ok(None) };
    let (conv, cpu) = (context.conv, builder.cpu);
    let decided = context.weights.map(Desc::layout).transpose()?;
    let layout = decided.unwrap_or_else(|| Layout::plain(&conv.weight_shape()));
    let problem = ConvProblem { conv, batch, input, weights: &layout, unit, cpu };
    let Some(kernel) = make(problem) else { return Ok(None) };
    let weights = match context.weights {
        Some(weights) => weights.duplicate()?,
        None => context.row_major_weights(builder, dtype)?,
    };
    let operands = context.operands(builder, kernel.pass(), weights)?;
    let bias = conv.bias && kernel.pass() != Pass::BackwardData;
    let implementation = Implementation::Native(Box::new(PanelStep { kernel, bias }));
    Ok(Some(Candidate { name: format!("{NATIVE_PREFIX}{name}"), implementation, operands }))
}

impl NativeKernel for PanelStep {
    fn scratch_bytes(&self) -> usize {
        match &self.kernel {
            PanelKernel::Forward { conv, .. } | PanelKernel::BackwardData(conv) => conv.scratch_bytes(),
            PanelKernel::BackwardWeights(gradient) => gradient.scratch_bytes(),
        }
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        Ok(Box::new(self.clone()))
    }
}

impl StepKernel for PanelStep {
    fn run(&mut self, o: &mut Operands<'_>) -> Result<(), String> {
        let scratch = if self.bias { 4 } else { 3 };
        match &self.kernel {
            PanelKernel::Forward { conv, relu } => {
                let bias = if self.bias { o.elements(2) } else { &mut [] };
                let (x, weights) = (o.elements(0), o.elements(1));
                conv.run(x, weights, bias, *relu, o.elements(scratch - 1), o.elements(scratch));
            }
            PanelKernel::BackwardData(conv) => {
                let (dy, weights) = (o.elements(0), o.elements(1));
                conv.run(dy, weights, &[], false, o.elements(2), o.elements(scratch));
            }
            PanelKernel::BackwardWeights(gradient) => gradient.make(o, self.bias),
        }
        Ok(())
    }
}
