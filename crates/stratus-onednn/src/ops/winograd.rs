//! Dense 3×3 and 5×5 convolution by minimal filtering, as further ways to run steps that oneDNN also runs.

use super::conv2d::{Around, bias as bias_of};
use super::{Candidate, Maker, Own, Run, own_name};
use crate::ffi::{DataType, Desc, arg};
use crate::native::conv::winograd::{Int16Products, Pass, WinogradConv, WinogradGradient};
use crate::native::lanes::LaneElement;
use crate::native::simd::{Bf16, Isa};
use stratus_engine::{Layout, Operands, StepKernel};

/// Names of the ways: with products of floats, and of whole numbers, for maps of bf16.
const ON_FLOATS: &str = "winograd:";
const ON_WORDS: &str = "winograd:vnni:";

/// What is asked for.
#[derive(Clone)]
enum Kernel {
    Conv { conv: WinogradConv, relu: bool },
    Gradient(WinogradGradient),
}

#[derive(Clone)]
struct Winograd {
    kernel: Kernel,
    dtype: DataType,
    bias: bool,
}

/// Ways to run the forward pass, as many as there are; `weights` is how they lie, where that is decided.
pub(super) fn forward(
    maker: &Maker<'_>,
    around: &Around<'_>,
    relu: bool,
    weights: Option<&Desc>,
) -> Result<Vec<Candidate>, String> {
    conv(maker, around, Pass::Forward, relu, weights)
}

/// Ways to make the input's gradient, as many as there are; `weights` is how they lie, where that is decided.
pub(super) fn backward_data(
    maker: &Maker<'_>,
    around: &Around<'_>,
    weights: Option<&Desc>,
) -> Result<Vec<Candidate>, String> {
    conv(maker, around, Pass::BackwardData, false, weights)
}

fn conv(
    maker: &Maker<'_>,
    around: &Around<'_>,
    pass: Pass,
    relu: bool,
    weights: Option<&Desc>,
) -> Result<Vec<Candidate>, String> {
    let Some((batch, input)) = worth_a_try(maker, around)? else { return Ok(Vec::new()) };
    let bias = around.conv.bias && pass == Pass::Forward;
    let candidate = |family: &str, words: Option<Int16Products>| {
        let conv = WinogradConv::new(around.conv, pass, batch, input, words, maker.cpu);
        let Some(conv) = conv else { return Ok(None) };
        let (name, lie) = plain_weights(maker, around, family, around.compute, weights)?;
        let (x, y) = (around.x.duplicate()?, around.y.duplicate()?);
        let operands = match pass {
            Pass::Forward => {
                let bias = bias_of(maker, around.conv)?.map(|desc| (arg::BIAS, desc));
                [(arg::SRC, x), (arg::WEIGHTS, lie)].into_iter().chain(bias).chain([(arg::DST, y)]).collect()
            }
            Pass::BackwardData => vec![(arg::DIFF_DST, y), (arg::WEIGHTS, lie), (arg::DIFF_SRC, x)],
        };
        let own = Winograd { kernel: Kernel::Conv { conv, relu }, dtype: around.compute, bias };
        Ok::<_, String>(Some(Candidate { name, run: Run::Own(Box::new(own)), operands }))
    };
    let wanted = around.compute == DataType::Bf16 && maker.context.has_vnni();
    let words = Int16Products::detect(maker.cpu.level).filter(|_| wanted);
    let on_words = words.map(|words| candidate(ON_WORDS, Some(words))).transpose()?.flatten();
    Ok(candidate(ON_FLOATS, None)?.into_iter().chain(on_words).collect())
}

/// A way to make the gradients of weight and bias, where there is one; `weights` is how the gradient is wanted, where that is decided.
pub(super) fn backward_weights(
    maker: &Maker<'_>,
    around: &Around<'_>,
    weights: Option<&Desc>,
) -> Result<Option<Candidate>, String> {
    let Some((batch, input)) = worth_a_try(maker, around)? else { return Ok(None) };
    let Some(gradient) = WinogradGradient::new(around.conv, batch, input, maker.cpu) else {
        return Ok(None);
    };
    let (name, lie) = plain_weights(maker, around, ON_FLOATS, DataType::F32, weights)?;
    let bias = bias_of(maker, around.conv)?.map(|desc| (arg::DIFF_BIAS, desc));
    let maps = [(arg::SRC, around.x.duplicate()?), (arg::DIFF_DST, around.y.duplicate()?)];
    let operands = maps.into_iter().chain([(arg::DIFF_WEIGHTS, lie)]).chain(bias).collect();
    let own = Winograd { kernel: Kernel::Gradient(gradient), dtype: around.compute, bias: around.conv.bias };
    Ok(Some(Candidate { name, run: Run::Own(Box::new(own)), operands }))
}

/// Images and their extent, where the kernels can have the maps as they lie and are worth a try: their sums fill the registers of AVX-512, and AMX,
/// which has maps of bf16, multiplies faster than they save.
fn worth_a_try(maker: &Maker<'_>, around: &Around<'_>) -> Result<Option<(usize, [usize; 2])>, String> {
    let on_tiles = around.compute == DataType::Bf16 && maker.context.has_amx();
    if on_tiles || maker.cpu.level.isa() != Isa::Avx512 {
        return Ok(None);
    }
    around.channels_last()
}

/// The name of the way, and the weights, or their gradient, as it has them.
fn plain_weights(
    maker: &Maker<'_>,
    around: &Around<'_>,
    family: &str,
    dtype: DataType,
    weights: Option<&Desc>,
) -> Result<(String, Desc), String> {
    let plain = Layout::plain(&around.conv.weight_shape());
    let name = own_name(family, maker.cpu, weights, &plain)?;
    Ok((name, maker.context.strided(&plain.shape, dtype, &plain.strides)?))
}

impl Own for Winograd {
    fn scratch_bytes(&self) -> usize {
        match &self.kernel {
            Kernel::Conv { conv, .. } => conv.scratch_bytes(),
            Kernel::Gradient(gradient) => gradient.scratch_bytes(),
        }
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        Ok(Box::new(self.clone()))
    }
}

impl Winograd {
    fn run_as<E: LaneElement>(&self, o: &mut Operands<'_>) {
        let last = if self.bias { 4 } else { 3 };
        match &self.kernel {
            Kernel::Conv { conv, relu } => {
                let bias = if self.bias { o.elements(2) } else { &mut [] };
                let (from, weights) = (o.elements::<E>(0), o.elements::<E>(1));
                conv.run(from, weights, bias, *relu, o.elements(last - 1), o.elements(last));
            }
            Kernel::Gradient(gradient) => {
                let bias = if self.bias { o.elements(3) } else { &mut [] };
                let (x, dy) = (o.elements::<E>(0), o.elements::<E>(1));
                gradient.run(x, dy, o.elements(2), bias, o.elements(last));
            }
        }
    }
}

impl StepKernel for Winograd {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        match self.dtype {
            DataType::F32 => self.run_as::<f32>(operands),
            DataType::Bf16 => self.run_as::<Bf16>(operands),
        }
        Ok(())
    }
}
