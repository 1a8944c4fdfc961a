//! The split of a batch that micro-batches and parts have in common: one section of the program runs on each
//! piece of the batch in turn, after the steps that run once for all of them.

use crate::program::{Origin, Section, Stage};
use crate::{EngineError, Kernel, Program, Role, Step, ValueId};
use std::collections::HashMap;

/// Checks that a program is not tiled; `pieces` are those that it is split into.
///
/// # Errors
/// If it is.
pub(super) fn expect_untiled(program: &Program, pieces: &str) -> Result<(), EngineError> {
    if program.sections.is_empty() {
        return Ok(());
    }
    Err(EngineError::InvalidRequest(format!("a tiled program cannot be split into {pieces}")))
}

/// The program for a batch of `count` pieces, each as large as the batch of `program`, with only those of its
/// steps that run once.
pub(super) fn without_repeated_steps(program: &Program, count: usize) -> Program {
    let mut whole = program.clone();
    whole.batch *= count;
    for value in whole.values.iter_mut().filter(|value| value.role.is_external()) {
        value.shape[0] *= count;
    }
    whole.steps.retain(runs_once);
    whole
}

/// Adds a section with all steps from index `first`, which runs on each of `count` pieces in turn.
pub(super) fn add_section(program: &mut Program, first: usize, count: usize) {
    program.sections.push(Section {
        first,
        count: program.steps.len() - first,
        tiles: count,
        micro_batches: true,
        reversed: false,
        in_flight: program.stage.map_or(1, Stage::in_flight),
    });
}

/// Returns whether a step runs once for all pieces, because it depends only on parameters or on the labels of
/// the whole batch.
pub(super) fn runs_once(step: &Step) -> bool {
    matches!(step.kernel, Kernel::JoinWeights(_) | Kernel::FakeQuantiseWeights(_) | Kernel::CountLabels(_))
}

/// The gradients of the parameters, by the last step that writes them.
pub(super) fn gradients(program: &Program) -> HashMap<usize, Vec<ValueId>> {
    let mut by_step: HashMap<usize, Vec<ValueId>> = HashMap::new();
    let is_parameter_gradient = |id: &ValueId| match program.value(*id).origin {
        Some(Origin::Gradient(of)) => program.value(of).role == Role::Parameter,
        _ => false,
    };
    for id in (0..program.values.len()).map(ValueId).filter(is_parameter_gradient) {
        let last =
            program.steps.iter().rposition(|step| step.outputs.contains(&id) || step.updates.contains(&id));
        if let Some(last) = last {
            by_step.entry(last).or_default().push(id);
        }
    }
    by_step
}
