//! Fusion of a convolution with the sum and the activation that follow it, in programs without a backward
//! pass: a convolution that is trained keeps its output, from which the activation's derivative follows.
//!
//! ```text
//! conv2d x ─▶ z, activation z ─▶ y                      conv2d_activation_inference x ─▶ y
//! conv2d x ─▶ z, add(z, a) ─▶ s, activation s ─▶ y      conv2d_add_activation_inference (x, a) ─▶ y
//! ```

use super::sum::fuse_sums;
use super::{activation, apply};
use crate::ops::{Conv2dForward, Conv2dInference, FusedActivation};
use crate::program::Mode;
use crate::{EngineError, Kernel, Program};

/// Fuses sums and activations into the convolutions of an evaluation program, which is not tiled yet.
///
/// # Errors
/// If the program trains, or verification fails.
pub fn fuse_inference(program: &Program) -> Result<Program, EngineError> {
    if program.mode != Mode::Evaluate || !program.sections.is_empty() {
        let reason = "convolutions are fused for inference only in an evaluation program without tiles";
        return Err(EngineError::InvalidRequest(reason.to_owned()));
    }
    let mut program = program.clone();
    fuse_sums(&mut program, with_sum);
    while apply(&mut program, with_activation) {}
    program.drop_unused_values();
    program.verify("fuse_inference")?;
    Ok(program)
}

/// The kernel as a convolution; `None` if it is none, or already has an activation.
fn without_activation(kernel: &Kernel) -> Option<Conv2dInference> {
    match *kernel {
        Kernel::Conv2dForward(Conv2dForward { conv, relu: false }) => {
            Some(Conv2dInference { conv, adds: false, activation: FusedActivation::Identity })
        }
        Kernel::Conv2dInference(kernel) if kernel.activation == FusedActivation::Identity => Some(kernel),
        _ => None,
    }
}

fn with_sum(kernel: &Kernel, relu: bool) -> Option<Kernel> {
    let kernel = without_activation(kernel).filter(|kernel| !kernel.adds)?;
    Some(Conv2dInference { adds: true, activation: FusedActivation::relu_if(relu), ..kernel }.into())
}

fn with_activation(producer: &Kernel, reader: &Kernel) -> Option<Kernel> {
    Some(Conv2dInference { activation: activation(reader)?, ..without_activation(producer)? }.into())
}
