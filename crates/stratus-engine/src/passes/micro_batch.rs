//! Micro-batches, also known as gradient accumulation: a batch whose activations do not fit in memory is
//! processed in equal parts.
//!
//! Forward and backward pass run on the parts in sequence. The gradients of the parameters are summed over
//! the parts, and the parameters are updated once. Losses are divided by the labels of the whole batch. The
//! results are those of one batch up to rounding. Only a batch norm differs: it uses the statistics of each
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
/// If the program is tiled or verification fails.
pub fn split_into_micro_batches(program: &Program, count: usize) -> Result<Program, EngineError> {
    if count < 2 {
        return Ok(program.clone());
    }
    if !program.sections.is_empty() {
        return Err(EngineError::InvalidRequest(
            "a tiled program cannot be split into micro-batches".to_owned(),
        ));
    }
    let program = &count_labels(program)?;
    let mut batch_program = program.clone();
    batch_program.batch *= count;
    for value in batch_program.values.iter_mut().filter(|value| value.role.is_external()) {
        value.shape[0] *= count;
    }
    let gradients = gradients(program);
    batch_program.steps.retain(runs_once);
    let common = batch_program.steps.len();
    for (position, step) in program.steps.iter().enumerate().filter(|(_, step)| !runs_once(step)) {
        batch_program.steps.push(step.clone());
        for &part in gradients.get(&position).into_iter().flatten() {
            let add = add(&mut batch_program, part, step);
            batch_program.steps.push(add);
        }
    }
    let parts = batch_program.steps.len() - common;
    batch_program.sections.push(Section {
        first: common,
        count: parts,
        tiles: count,
        micro_batches: true,
        reversed: false,
        in_flight: 1,
    });
    batch_program.verify("split_into_micro_batches")?;
    Ok(batch_program)
}

/// The step that adds `part`, the gradient of a micro-batch, to the gradient of the batch, which takes its
/// name.
fn add(batch_program: &mut Program, part: ValueId, made_by: &Step) -> Step {
    let sum = batch_program.make_partial_sum(part);
    Step {
        kernel: AddTiles.into(),
        phase: made_by.phase,
        layers: made_by.layers.clone(),
        inputs: vec![part],
        updates: vec![],
        outputs: vec![sum],
    }
}
