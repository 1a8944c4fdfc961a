//! Convolution of few input channels by native kernels without packing.

use super::context::{ConvContext, Pass};
use crate::ffi::DataType;
use crate::native::conv::direct::DirectConv;
use crate::native::lanes::LaneElement;
use crate::native::simd::Bf16;
use crate::ops::candidates::NativeKernel;
use crate::ops::{Candidate, Implementation, KernelBuilder};
use stratus_engine::{Operands, StepKernel};

/// The computation of a direct convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// The output, optionally with ReLU.
    Forward { relu: bool },
    /// The gradients of weights and bias.
    Gradients,
}

/// A direct convolution as a step.
#[derive(Clone, Debug)]
struct DirectStep {
    conv: DirectConv,
    task: Task,
    dtype: DataType,
    bias: bool,
}

/// Returns a candidate for the forward pass.
pub(super) fn forward(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
    relu: bool,
) -> Result<Option<Candidate>, String> {
    // Weights have the type of the maps.
    candidate(builder, context, Task::Forward { relu }, Pass::Forward, context.compute)
}

/// Returns a candidate for the gradients of weights and bias.
pub(super) fn backward_weights(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
) -> Result<Option<Candidate>, String> {
    // Gradients are f32, whatever the type of the maps.
    candidate(builder, context, Task::Gradients, Pass::BackwardWeights, DataType::F32)
}

fn candidate(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
    task: Task,
    pass: Pass,
    weights: DataType,
) -> Result<Option<Candidate>, String> {
    let Some((batch, input)) = context.channels_last()? else { return Ok(None) };
    let cpu = builder.cpu;
    let conv = DirectConv::new(context.conv, batch, input, cpu);
    let Some(conv) = conv else { return Ok(None) };
    let name = context.row_major_name(builder, "")?;
    let operands = context.operands(builder, pass, context.row_major_weights(builder, weights)?)?;
    let direct = DirectStep { conv, task, dtype: context.compute, bias: context.conv.bias };
    Ok(Some(Candidate { name, implementation: Implementation::Native(Box::new(direct)), operands }))
}

impl NativeKernel for DirectStep {
    fn scratch_bytes(&self) -> usize {
        match self.task {
            Task::Forward { .. } => self.conv.forward_scratch_bytes(),
            Task::Gradients => self.conv.gradients_scratch_bytes(),
        }
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        Ok(Box::new(self.clone()))
    }
}

impl DirectStep {
    fn run_as<E: LaneElement>(&self, o: &mut Operands<'_>) {
        let scratch = if self.bias { 4 } else { 3 };
        match self.task {
            Task::Forward { relu } => {
                let bias = if self.bias { o.elements(2) } else { &mut [] };
                let (x, weights) = (o.elements::<E>(0), o.elements::<E>(1));
                self.conv.forward(x, weights, bias, relu, o.elements(scratch - 1), o.elements(scratch));
            }
            Task::Gradients => {
                let bias = if self.bias { o.elements(3) } else { &mut [] };
                let (x, dy) = (o.elements::<E>(0), o.elements::<E>(1));
                self.conv.gradients(x, dy, o.elements(2), bias, o.elements(scratch));
            }
        }
    }
}

impl StepKernel for DirectStep {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        match self.dtype {
            DataType::F32 => self.run_as::<f32>(operands),
            DataType::Bf16 => self.run_as::<Bf16>(operands),
            other => return Err(format!("no kernel for {other:?}")),
        }
        Ok(())
    }
}
