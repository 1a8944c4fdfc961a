//! Micro-batches, also known as gradient accumulation: a batch whose activations do not fit is processed in
//! equal parts.
//!
//! Forward and backward pass run on one part after the other. The gradients of the parameters are summed over
//! the parts, and the parameters are updated once. Losses are divided by the labels of the whole batch. But
//! for rounding, the results are those of one batch, except that a batch norm uses the statistics of each
//! micro-batch and updates its running statistics for each. (Huang et al., GPipe: Efficient Training of Giant
//! Neural Networks using Pipeline Parallelism, 2018, section 2.)

use super::label_counts::count_labels;
use super::parts::{gradients, runs_once};
use crate::ops::AddTiles;
use crate::program::Section;
use crate::{EngineError, Program, Step, ValueId};

/// Turns a differentiated program for one micro-batch into the program for a batch of `count` micro-batches.
///
/// # Errors
/// Where the program is cut into tiles or verification fails.
pub fn micro_batches(program: &Program, count: usize) -> Result<Program, EngineError> {
    if count < 2 {
        return Ok(program.clone());
    }
    if !program.sections.is_empty() {
        return Err(EngineError::Mismatch(
            "a program in tiles cannot be repeated for micro-batches".to_owned(),
        ));
    }
    let program = &count_labels(program)?;
    let mut whole = program.clone();
    whole.batch *= count;
    for value in whole.values.iter_mut().filter(|value| value.role.is_external()) {
        value.shape[0] *= count;
    }
    let gradients = gradients(program);
    whole.steps.retain(runs_once);
    let common = whole.steps.len();
    for (position, step) in program.steps.iter().enumerate().filter(|(_, step)| !runs_once(step)) {
        whole.steps.push(step.clone());
        for &part in gradients.get(&position).into_iter().flatten() {
            let add = add(&mut whole, part, step);
            whole.steps.push(add);
        }
    }
    let parts = whole.steps.len() - common;
    whole.sections.push(Section {
        first: common,
        count: parts,
        tiles: count,
        micro_batches: true,
        from_last: false,
        ahead: 1,
    });
    whole.verify("micro_batches")?;
    Ok(whole)
}

/// The step that adds `part`, the gradient of a micro-batch, to the gradient of the batch, which gets its
/// name.
fn add(whole: &mut Program, part: ValueId, made_by: &Step) -> Step {
    let sum = whole.split_into_tiles(part);
    Step {
        kernel: AddTiles.into(),
        phase: made_by.phase,
        layers: made_by.layers.clone(),
        inputs: vec![part],
        updates: vec![],
        outputs: vec![sum],
    }
}
