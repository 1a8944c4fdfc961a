//! Reverse-mode differentiation as a pure pass: each forward step, last first, adds the steps of its
//! derivative.

use crate::build::Differentiator;
use crate::ops::{Kernel, KernelSpec};
use crate::{EngineError, Phase, Program, ValueId};
use std::collections::HashSet;

/// Adds the backward pass to a forward program in [`crate::program::Mode::Train`].
///
/// It ends where nothing before depends on a parameter that is trained: what only frozen layers need is not
/// made, forward or backward.
///
/// # Errors
/// Where a step on the way from a parameter to the loss has no derivative.
pub fn differentiate(forward: &Program) -> Result<Program, EngineError> {
    let mut to = Differentiator::new(forward)?;
    for step in forward.steps.iter().rev().filter(|step| step.phase == Phase::Forward) {
        step.kernel.differentiate(step, &mut to)?;
        to.finish(step);
    }
    let mut program = to.into_program();
    drop_unread_indices(&mut program);
    program.verify("differentiate")?;
    Ok(program)
}

/// Pooling writes down which input won for its backward pass; where there is none, it need not.
fn drop_unread_indices(program: &mut Program) {
    let read: HashSet<ValueId> =
        program.steps.iter().flat_map(|step| step.inputs.iter().chain(&step.updates).copied()).collect();
    let mut dropped = false;
    for step in &mut program.steps {
        let may_go_without = matches!(step.kernel, Kernel::MaxPoolForward(_) | Kernel::BatchNormInference(_));
        if may_go_without && step.outputs.get(1).is_some_and(|index| !read.contains(index)) {
            step.outputs.truncate(1);
            if let Kernel::MaxPoolForward(pool) = &mut step.kernel {
                pool.cut = false;
            }
            dropped = true;
        }
    }
    if dropped {
        program.drop_unused_values();
    }
}
