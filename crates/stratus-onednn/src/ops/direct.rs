//! Convolution on our own kernels for few input channels, as further ways to run a step that oneDNN also runs.

use super::conv2d::Around;
use super::{Candidate, Maker, Own, Run, own_name};
use crate::ffi::{DataType, Desc, arg};
use crate::native::conv::direct::DirectConv;
use crate::native::lanes::LaneElement;
use crate::native::simd::Bf16;
use stratus_engine::{Layout, Operands, StepKernel};

/// What a direct convolution is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// The output, rectified or not.
    Forward { relu: bool },
    /// The gradients of weights and bias.
    Gradients,
}

/// A direct convolution that a step can be run on.
#[derive(Clone, Debug)]
pub(crate) struct Direct {
    conv: DirectConv,
    pass: Pass,
    dtype: DataType,
    bias: bool,
}

/// A way to run the forward pass, where there is one; `weights` is how they lie, where that is decided.
pub(crate) fn forward(
    maker: &Maker<'_>,
    around: &Around<'_>,
    relu: bool,
    weights: Option<&Desc>,
) -> Result<Option<Candidate>, String> {
    candidate(maker, around, Pass::Forward { relu }, weights)
}

/// A way to make the gradients of weight and bias, where there is one; `weights` is how the gradient is wanted, where that is decided.
pub(crate) fn backward_weights(
    maker: &Maker<'_>,
    around: &Around<'_>,
    weights: Option<&Desc>,
) -> Result<Option<Candidate>, String> {
    candidate(maker, around, Pass::Gradients, weights)
}

fn candidate(
    maker: &Maker<'_>,
    around: &Around<'_>,
    pass: Pass,
    weights: Option<&Desc>,
) -> Result<Option<Candidate>, String> {
    let Some((batch, input)) = around.channels_last()? else { return Ok(None) };
    let cpu = maker.cpu;
    let conv = DirectConv::new(around.conv, batch, input, cpu.level, cpu.team.clone());
    let Some(conv) = conv else { return Ok(None) };
    let plain = Layout::plain(&around.conv.weight_shape());
    let name = own_name("", cpu, weights, &plain)?;
    let forward = matches!(pass, Pass::Forward { .. });
    // Gradients are f32, whatever the maps are.
    let weights_type = if forward { around.compute } else { DataType::F32 };
    let weights = maker.context.strided(&plain.shape, weights_type, &plain.strides)?;
    let bias = around.conv.bias;
    let bias_desc =
        bias.then(|| maker.context.strided(&[around.conv.out_channels], DataType::F32, &[1])).transpose()?;
    let map = around.y.duplicate()?;
    let x = (arg::SRC, around.x.duplicate()?);
    let operands = if forward {
        let bias = bias_desc.map(|desc| (arg::BIAS, desc));
        [x, (arg::WEIGHTS, weights)].into_iter().chain(bias).chain([(arg::DST, map)]).collect()
    } else {
        let bias = bias_desc.map(|desc| (arg::DIFF_BIAS, desc));
        [x, (arg::DIFF_DST, map), (arg::DIFF_WEIGHTS, weights)].into_iter().chain(bias).collect()
    };
    let direct = Direct { conv, pass, dtype: around.compute, bias };
    Ok(Some(Candidate { name, run: Run::Own(Box::new(direct)), operands }))
}

impl Own for Direct {
    fn scratch_bytes(&self) -> usize {
        match self.pass {
            Pass::Forward { .. } => self.conv.forward_scratch_bytes(),
            Pass::Gradients => self.conv.gradients_scratch_bytes(),
        }
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        Ok(Box::new(self.clone()))
    }
}

impl Direct {
    fn run_as<E: LaneElement>(&self, o: &mut Operands<'_>) {
        let last = if self.bias { 4 } else { 3 };
        match self.pass {
            Pass::Forward { relu } => {
                let bias = if self.bias { o.elements(2) } else { &mut [] };
                let (x, weights) = (o.elements::<E>(0), o.elements::<E>(1));
                self.conv.forward(x, weights, bias, relu, o.elements(last - 1), o.elements(last));
            }
            Pass::Gradients => {
                let bias = if self.bias { o.elements(3) } else { &mut [] };
                let (x, dy) = (o.elements::<E>(0), o.elements::<E>(1));
                self.conv.gradients(x, dy, o.elements(2), bias, o.elements(last));
            }
        }
    }
}

impl StepKernel for Direct {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        match self.dtype {
            DataType::F32 => self.run_as::<f32>(operands),
            DataType::Bf16 => self.run_as::<Bf16>(operands),
        }
        Ok(())
    }
}
