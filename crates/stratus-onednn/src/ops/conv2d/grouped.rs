//! Convolution in groups of few channels by native kernels.

use super::context::{ConvContext, Pass};
use crate::ffi::DataType;
use crate::native::conv::grouped::GroupedConv;
use crate::native::lanes::LaneElement;
use crate::native::simd::Bf16;
use crate::ops::candidates::NativeKernel;
use crate::ops::{Candidate, Implementation, KernelBuilder};
use stratus_engine::{Operands, StepKernel};

/// The name of the family of candidates.
const FAMILY: &str = "grouped:";

/// A pass of a convolution in groups as a step.
#[derive(Clone, Debug)]
struct GroupedStep {
    conv: GroupedConv,
    pass: Pass,
    relu: bool,
    dtype: DataType,
}

/// Returns a candidate for a pass; `relu` applies to the forward pass.
pub(super) fn candidate(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
    pass: Pass,
    relu: bool,
) -> Result<Option<Candidate>, String> {
    let Some((batch, input)) = context.channels_last()? else { return Ok(None) };
    let Some(conv) = GroupedConv::new(context.conv, batch, input, builder.cpu) else { return Ok(None) };
    // Gradients of weights are f32, whatever the type of the maps.
    let weights = if pass == Pass::BackwardWeights { DataType::F32 } else { context.compute };
    let name = context.row_major_name(builder, FAMILY)?;
    let operands = context.operands(builder, pass, context.row_major_weights(builder, weights)?)?;
    let step = GroupedStep { conv, pass, relu, dtype: context.compute };
    Ok(Some(Candidate { name, implementation: Implementation::Native(Box::new(step)), operands }))
}

impl NativeKernel for GroupedStep {
    fn scratch_bytes(&self) -> usize {
        self.conv.scratch_bytes()
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        Ok(Box::new(self.clone()))
    }
}

impl GroupedStep {
    fn run_as<E: LaneElement>(&self, o: &mut Operands<'_>) {
        let (first, second) = (o.elements::<E>(0), o.elements::<E>(1));
        match self.pass {
            Pass::Forward => self.conv.forward(first, second, self.relu, o.elements(2), o.elements(3)),
            Pass::BackwardData => self.conv.backward_data(first, second, o.elements(2), o.elements(3)),
            Pass::BackwardWeights => self.conv.gradient(first, second, o.elements(2), o.elements(3)),
        }
    }
}

impl StepKernel for GroupedStep {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        match self.dtype {
            DataType::F32 => self.run_as::<f32>(operands),
            DataType::Bf16 => self.run_as::<Bf16>(operands),
            other => return Err(format!("no kernel for {other:?}")),
        }
        Ok(())
    }
}
