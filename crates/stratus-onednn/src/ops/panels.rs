//! Convolution, the gradient of its input and that of its weights on tiles of bf16, the latter on tiles of `f32` too and by windows of few channels,
//! as further ways to run steps that oneDNN also runs.

use super::conv2d::{Around, bias as bias_of};
use super::{Candidate, Maker, OWN, Own, Run};
use crate::ffi::{DataType, Desc, arg};
use crate::native::conv::panel_gradient::{PanelArithmetic, PanelGradient};
use crate::native::conv::panels::{ConvProblem, PanelConv};
use crate::native::conv::tap_gradient::TapGradient;
use crate::native::conv::tiles::{Avx512Bf16, Avx512F32, MatrixUnit};
use crate::native::conv::window_gradient::{WindowArithmetic, WindowGradient};
use std::sync::Arc;
use stratus_engine::{Layout, Operands, StepKernel};

/// What is asked for.
#[derive(Clone)]
enum Pass {
    Forward { conv: PanelConv, relu: bool },
    BackwardData(PanelConv),
    BackwardWeights(Arc<dyn Gradient>),
}

/// A way to make the gradient of weights, and that of a bias where there is one. The step has `x, dy, dweight, dbias?, scratch`.
trait Gradient: Send + Sync {
    fn scratch_bytes(&self) -> usize;
    fn make(&self, o: &mut Operands<'_>, bias: bool);
}

/// Those of kernels that make the bias's too, on what multiplies as they need.
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
struct OnPanels {
    pass: Pass,
    bias: bool,
}

/// A way to run the forward pass, where there is one; `weights` is how they lie, where that is decided.
pub(crate) fn forward(
    maker: &Maker<'_>,
    around: &Around<'_>,
    relu: bool,
    weights: Option<&Desc>,
) -> Result<Option<Candidate>, String> {
    let Some(unit) = amx(maker, around) else { return Ok(None) };
    let make = |problem: ConvProblem<'_>| Some(Pass::Forward { conv: PanelConv::forward(problem)?, relu });
    candidate(maker, around, weights, around.compute, unit, unit.name(), &make)
}

/// A way to make the input's gradient, where there is one; `weights` is how they lie, where that is decided.
pub(crate) fn backward_data(
    maker: &Maker<'_>,
    around: &Around<'_>,
    weights: Option<&Desc>,
) -> Result<Option<Candidate>, String> {
    let Some(unit) = amx(maker, around) else { return Ok(None) };
    let make = |problem: ConvProblem<'_>| Some(Pass::BackwardData(PanelConv::backward(problem)?));
    candidate(maker, around, weights, around.compute, unit, unit.name(), &make)
}

/// Ways to make the gradients of weight and bias, as many as there are; `weights` is how the gradient is wanted, where that is decided.
pub(crate) fn backward_weights(
    maker: &Maker<'_>,
    around: &Around<'_>,
    weights: Option<&Desc>,
) -> Result<Vec<Candidate>, String> {
    let mut candidates = Vec::new();
    if around.compute == DataType::F32 {
        let Some(unit) = Avx512F32::detect(maker.cpu.level) else { return Ok(candidates) };
        let level = maker.cpu.level.name();
        let [panels, window] = ["panels", "window"].map(|family| format!("{family}:{level}"));
        candidates.extend(gradient(maker, around, weights, unit, &panels, PanelGradient::new)?);
        candidates.extend(gradient(maker, around, weights, unit, &window, WindowGradient::new)?);
        return Ok(candidates);
    }
    let Some(unit) = fastest(maker, around) else { return Ok(candidates) };
    candidates.extend(gradient(maker, around, weights, unit, unit.name(), PanelGradient::new)?);
    if let Some(unit) = amx(maker, around) {
        let name = format!("{}:taps", unit.name());
        candidates.extend(gradient(maker, around, weights, unit, &name, TapGradient::new)?);
    }
    if let Some(unit) = Avx512Bf16::detect(maker.context) {
        let name = format!("window:{}", MatrixUnit::Avx512(unit).name());
        candidates.extend(gradient(maker, around, weights, unit, &name, WindowGradient::new)?);
    }
    Ok(candidates)
}

/// A way to make the gradients, where `make` finds one.
fn gradient<U: Copy, G: Gradient + 'static>(
    maker: &Maker<'_>,
    around: &Around<'_>,
    weights: Option<&Desc>,
    unit: U,
    name: &str,
    make: fn(ConvProblem<'_, U>) -> Option<G>,
) -> Result<Option<Candidate>, String> {
    let pass = |problem: ConvProblem<'_, U>| Some(Pass::BackwardWeights(Arc::new(make(problem)?)));
    candidate(maker, around, weights, DataType::F32, unit, name, &pass)
}

/// What multiplies bf16: the slower units are of no use beside the fastest.
fn fastest(maker: &Maker<'_>, around: &Around<'_>) -> Option<MatrixUnit> {
    (around.compute == DataType::Bf16).then(|| MatrixUnit::all(maker.context).next()).flatten()
}

/// AMX alone. Without it the library's forward passes and gradients of inputs run at what the processor has; only its gradients of weights fall behind
/// (docs/benchmarks/kernels.md).
fn amx(maker: &Maker<'_>, around: &Around<'_>) -> Option<MatrixUnit> {
    fastest(maker, around).filter(|unit| matches!(unit, MatrixUnit::Amx(_)))
}

/// `dtype` is the type of the weights, or of their gradient. They are taken, or made, as they lie.
fn candidate<U>(
    maker: &Maker<'_>,
    around: &Around<'_>,
    weights: Option<&Desc>,
    dtype: DataType,
    unit: U,
    name: &str,
    make: &dyn Fn(ConvProblem<'_, U>) -> Option<Pass>,
) -> Result<Option<Candidate>, String> {
    let Some((batch, input)) = around.channels_last()? else { return Ok(None) };
    let conv = around.conv;
    let plain = Layout::plain(&conv.weight_shape());
    let lie = weights.map(Desc::layout).transpose()?.unwrap_or_else(|| plain.clone());
    let problem = ConvProblem { conv, batch, input, weights: &lie, unit, cpu: maker.cpu };
    let Some(pass) = make(problem) else { return Ok(None) };
    let weights = match weights {
        Some(weights) => weights.duplicate()?,
        None => maker.context.strided(&plain.shape, dtype, &plain.strides)?,
    };
    let bias = conv.bias && !matches!(pass, Pass::BackwardData(_));
    let (x, y) = (around.x.duplicate()?, around.y.duplicate()?);
    let operands = match pass {
        Pass::Forward { .. } => {
            let bias = bias_of(maker, conv)?.map(|desc| (arg::BIAS, desc));
            [(arg::SRC, x), (arg::WEIGHTS, weights)].into_iter().chain(bias).chain([(arg::DST, y)]).collect()
        }
        Pass::BackwardData(_) => vec![(arg::DIFF_DST, y), (arg::WEIGHTS, weights), (arg::DIFF_SRC, x)],
        Pass::BackwardWeights(_) => {
            let bias = bias_of(maker, conv)?.map(|desc| (arg::DIFF_BIAS, desc));
            [(arg::SRC, x), (arg::DIFF_DST, y), (arg::DIFF_WEIGHTS, weights)]
                .into_iter()
                .chain(bias)
                .collect()
        }
    };
    let name = format!("{OWN}{name}");
    let run = Run::Own(Box::new(OnPanels { pass, bias }));
    Ok(Some(Candidate { name, run, operands }))
}

impl Own for OnPanels {
    fn scratch_bytes(&self) -> usize {
        match &self.pass {
            Pass::Forward { conv, .. } | Pass::BackwardData(conv) => conv.scratch_bytes(),
            Pass::BackwardWeights(gradient) => gradient.scratch_bytes(),
        }
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        Ok(Box::new(self.clone()))
    }
}

impl StepKernel for OnPanels {
    fn run(&mut self, o: &mut Operands<'_>) -> Result<(), String> {
        let scratch = if self.bias { 4 } else { 3 };
        match &self.pass {
            Pass::Forward { conv, relu } => {
                let bias = if self.bias { o.elements(2) } else { &mut [] };
                let (x, weights) = (o.elements(0), o.elements(1));
                conv.run(x, weights, bias, *relu, o.elements(scratch - 1), o.elements(scratch));
            }
            Pass::BackwardData(conv) => {
                let (dy, weights) = (o.elements(0), o.elements(1));
                conv.run(dy, weights, &[], false, o.elements(2), o.elements(scratch));
            }
            Pass::BackwardWeights(gradient) => gradient.make(o, self.bias),
        }
        Ok(())
    }
}
