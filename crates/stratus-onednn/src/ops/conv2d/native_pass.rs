//! A pass of a convolution by a native kernel, with row-major weights.

use super::context::{ConvContext, Pass};
use crate::ffi::DataType;
use crate::native::lanes::LaneElement;
use crate::ops::candidates::NativeKernel;
use crate::ops::{Candidate, Implementation, KernelBuilder, typed};
use stratus_engine::{Operands, StepKernel};

/// A native kernel of one pass, for maps of f32 and of bf16.
pub(super) trait PassKernel: Clone + Send + 'static {
    /// The scratch space in bytes.
    fn scratch_bytes(&self) -> usize;

    /// Computes the pass.
    fn run<E: LaneElement>(&self, operands: PassOperands<'_, E>);
}

/// The operands of a pass.
pub(super) struct PassOperands<'a, E> {
    /// `x` and weights; `dy` and weights; or `x` and `dy`.
    pub inputs: [&'a [E]; 2],
    /// The bias or its gradient; empty if there is none.
    pub bias: &'a mut [f32],
    /// `y` or `dx`, of the type of the maps, or the gradient of the weights, in f32.
    pub result: &'a mut [u8],
    /// The scratch space.
    pub scratch: &'a mut [f32],
}

/// A pass as a step.
#[derive(Clone)]
struct NativePass<K> {
    kernel: K,
    pass: Pass,
    dtype: DataType,
    has_bias: bool,
}

/// The candidate that computes a pass by a kernel of a `family`.
pub(super) fn candidate(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
    (pass, family): (Pass, &str),
    kernel: impl PassKernel,
) -> Result<Candidate, String> {
    // Weights have the type of the maps, their gradient is f32.
    let weights = if pass == Pass::BackwardWeights { DataType::F32 } else { context.compute };
    let name = context.row_major_name(builder, family)?;
    let operands = context.operands(builder, pass, context.row_major_weights(builder, weights)?)?;
    let has_bias = context.conv.bias && pass != Pass::BackwardData;
    let step = NativePass { kernel, pass, dtype: context.compute, has_bias };
    Ok(Candidate { name, implementation: Implementation::Native(Box::new(step)), operands })
}

impl<K: PassKernel> NativeKernel for NativePass<K> {
    fn scratch_bytes(&self) -> usize {
        self.kernel.scratch_bytes()
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        Ok(Box::new(self.clone()))
    }
}

impl<K: PassKernel> NativePass<K> {
    fn run_as<E: LaneElement>(&self, o: &mut Operands<'_>) {
        let inputs = [&*o.elements(0), &*o.elements(1)];
        // A bias is the last input, its gradient the last output.
        let [bias, result] = if self.pass == Pass::Forward { [2, 3] } else { [3, 2] };
        let operands = if self.has_bias {
            PassOperands { inputs, bias: o.elements(bias), result: o.take(result), scratch: o.elements(4) }
        } else {
            PassOperands { inputs, bias: &mut [], result: o.take(2), scratch: o.elements(3) }
        };
        self.kernel.run::<E>(operands);
    }
}

impl<K: PassKernel> StepKernel for NativePass<K> {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        typed!(self.dtype.into(), E => self.run_as::<E>(operands));
        Ok(())
    }
}
