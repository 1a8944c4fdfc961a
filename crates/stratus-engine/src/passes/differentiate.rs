//! Reverse-mode differentiation as a pure pass: each forward step, last first, adds the steps of its
//! derivative.

use crate::build::Differentiator;
use crate::ops::{Kernel, KernelSpec};
use crate::{EngineError, Phase, Program, ValueId};
use std::collections::HashSet;

/// Adds the backward pass to a forward program in [`crate::program::Mode::Train`].
///
/// It stops where no earlier value depends on a trained parameter: values that only frozen layers need are
/// not computed, forward or backward.
///
/// # Errors
/// If a step between a parameter and the loss has no derivative.
pub fn differentiate(forward: &Program) -> Result<Program, EngineError> {
    let mut backward = Differentiator::new(forward)?;
    for step in forward.steps.iter().rev().filter(|step| step.phase == Phase::Forward) {
        step.kernel.differentiate(step, &mut backward)?;
        backward.mark_differentiated(step);
    }
    let mut program = backward.into_program();
    drop_unread_indices(&mut program);
    program.verify("differentiate")?;
    Ok(program)
}

/// Drops the argmax index of poolings without a backward pass.
fn drop_unread_indices(program: &mut Program) {
    let read: HashSet<ValueId> =
        program.steps.iter().flat_map(|step| step.inputs.iter().chain(&step.updates).copied()).collect();
    let mut dropped = false;
    for step in &mut program.steps {
        let has_optional_index =
            matches!(step.kernel, Kernel::MaxPoolForward(_) | Kernel::BatchNormInference(_));
        if has_optional_index && step.outputs.get(1).is_some_and(|index| !read.contains(index)) {
            step.outputs.truncate(1);
            if let Kernel::MaxPoolForward(pool) = &mut step.kernel {
                pool.mask_relu = false;
            }
            dropped = true;
        }
    }
    if dropped {
        program.drop_unused_values();
    }
}
