//! Activations.

use super::native::{mixed, native_step};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::activation::{Constants, NativeActivation};
use crate::native::elementwise::CpuContext;
use crate::native::rows::MapGeometry;
use crate::native::simd::Element;
use stratus_engine::ops::{ActivationBackward, ActivationForward};
use stratus_graph::ops::{self, Activation};

/// Generates the kernels. An activation without a function in `native/activation/` does not compile.
macro_rules! kernels {
    ($($name:ident $kind:literal,)*) => {
        impl CpuOp for ActivationForward {
            fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
                match self.0 { $(Activation::$name(_) => forward::<ops::$name>(self.0, operands, cpu),)* }
            }
        }

        impl CpuOp for ActivationBackward {
            fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
                match self.0 { $(Activation::$name(_) => backward::<ops::$name>(self.0, operands, cpu),)* }
            }
        }
    };
}

stratus_graph::with_activations!(kernels);

fn forward<F: NativeActivation>(
    activation: Activation,
    operands: &StepOperands,
    cpu: &CpuContext,
) -> Result<NativeStep, String> {
    operands.expect_same_layout(&[0, 1])?;
    let constants = activation.constants();
    // The output's padding must be zero: cleared if f(0) is not zero. Gradients of padding are zero because
    // `dy` is.
    let has_padding = operands.layouts[1].elements() > operands.values[1].elements();
    let padded =
        (has_padding && F::value(0.0, constants) != 0.0).then(|| operands.geometry(1)).transpose()?;
    Ok(mixed!(operands, [1], A, B => map::<F, A, B>(constants, cpu.clone(), padded)))
}

/// `padded`: the output's geometry, if its padding has to be cleared.
fn map<F: NativeActivation, A: Element, B: Element>(
    constants: Constants,
    cpu: CpuContext,
    padded: Option<MapGeometry>,
) -> NativeStep {
    native_step(0, move |o| {
        let y = o.elements::<B>(1);
        cpu.activation::<F, A, B>(constants, o.elements(0), y);
        if let Some(geometry) = &padded {
            geometry.clear_padding(y);
        }
    })
}

fn backward<F: NativeActivation>(
    activation: Activation,
    operands: &StepOperands,
    cpu: &CpuContext,
) -> Result<NativeStep, String> {
    operands.expect_same_layout(&[0, 1, 2])?;
    let (constants, cpu) = (activation.constants(), cpu.clone());
    Ok(mixed!(operands, [1, 2], A, B => native_step(0, move |o| {
        cpu.activation_backward::<F, A, B>(constants, o.elements(0), o.elements(1), o.elements(2));
    })))
}
