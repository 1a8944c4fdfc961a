//! Depthwise convolution by native kernels, which read channels-last maps in their order.

use super::context::{ConvContext, Pass};
use crate::ffi::DataType;
use crate::native::conv::depthwise::DepthwiseConv;
use crate::native::lanes::LaneElement;
use crate::native::simd::Bf16;
use crate::ops::candidates::NativeKernel;
use crate::ops::{Candidate, Implementation, KernelBuilder};
use stratus_engine::{Operands, StepKernel};

/// The name of the family of candidates.
const FAMILY: &str = "depthwise:";

/// A pass of a depthwise convolution as a step.
#[derive(Clone, Debug)]
struct DepthwiseStep {
    conv: DepthwiseConv,
    pass: Pass,
    relu: bool,
    dtype: DataType,
    bias: bool,
}

/// Returns a candidate for a pass; `relu` applies to the forward pass.
pub(super) fn candidate(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
    pass: Pass,
    relu: bool,
) -> Result<Option<Candidate>, String> {
    let Some((batch, input)) = context.channels_last()? else { return Ok(None) };
    let Some(conv) = DepthwiseConv::new(context.conv, batch, input, builder.cpu) else { return Ok(None) };
    // Gradients of weights are f32, whatever the type of the maps.
    let weights = if pass == Pass::BackwardWeights { DataType::F32 } else { context.compute };
    let name = context.row_major_name(builder, FAMILY)?;
    let operands = context.operands(builder, pass, context.row_major_weights(builder, weights)?)?;
    let bias = context.conv.bias && pass != Pass::BackwardData;
    let step = DepthwiseStep { conv, pass, relu, dtype: context.compute, bias };
    Ok(Some(Candidate { name, implementation: Implementation::Native(Box::new(step)), operands }))
}

impl NativeKernel for DepthwiseStep {
    fn scratch_bytes(&self) -> usize {
        match self.pass {
            Pass::Forward | Pass::BackwardData => self.conv.correlation_scratch_bytes(),
            Pass::BackwardWeights => self.conv.gradients_scratch_bytes(),
        }
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        Ok(Box::new(self.clone()))
    }
}

impl DepthwiseStep {
    fn run_as<E: LaneElement>(&self, o: &mut Operands<'_>) {
        let scratch = if self.bias { 4 } else { 3 };
        match self.pass {
            Pass::Forward => {
                let bias = if self.bias { o.elements(2) } else { &mut [] };
                let (x, weights) = (o.elements::<E>(0), o.elements::<E>(1));
                let (y, scratch) = (o.elements(scratch - 1), o.elements(scratch));
                self.conv.forward(x, weights, bias, self.relu, y, scratch);
            }
            Pass::BackwardData => {
                let (dy, weights) = (o.elements::<E>(0), o.elements::<E>(1));
                self.conv.backward_data(dy, weights, o.elements(2), o.elements(scratch));
            }
            Pass::BackwardWeights => {
                let bias = if self.bias { o.elements(3) } else { &mut [] };
                let (x, dy) = (o.elements::<E>(0), o.elements::<E>(1));
                self.conv.gradients(x, dy, o.elements(2), bias, o.elements(scratch));
            }
        }
    }
}

impl StepKernel for DepthwiseStep {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        match self.dtype {
            DataType::F32 => self.run_as::<f32>(operands),
            DataType::Bf16 => self.run_as::<Bf16>(operands),
            other => return Err(format!("no kernel for {other:?}")),
        }
        Ok(())
    }
}
