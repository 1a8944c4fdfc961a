//! Micro-batches, also known as gradient accumulation: a batch whose activations do not fit in memory is
//! processed in equal parts.
//!
//! Forward and backward pass run on the parts in sequence. The gradients of the parameters are summed over
//! the parts, and the parameters are updated once. Losses are divided by the labels of the whole batch. The
//! results are those of one batch up to rounding. Only a batch norm differs: it uses the statistics of each
//! micro-batch and updates its running statistics for each. (Huang et al., GPipe: Efficient Training of Giant
//! Neural Networks using Pipeline Parallelism, 2018, section 2.)
//!
//! [`parts`](super::parts) split the batch in the same way, but define results that do not depend on the
//! number of workers: sums along a tree, which takes more copies of each gradient, and running statistics
//! that are a mean.

use super::batch_split::{add_section, expect_untiled, gradients, runs_once, without_repeated_steps};
use super::label_counts::count_labels;
use crate::ops::AddTiles;
use crate::{EngineError, Program, Step, ValueId};

/// Turns a differentiated program for one micro-batch into the program for a batch of `count` micro-batches.
///
/// # Errors
/// If the program is tiled or verification fails.
pub fn split_into_micro_batches(program: &Program, count: usize) -> Result<Program, EngineError> {
    if count < 2 {
        return Ok(program.clone());
    }
    expect_untiled(program, "micro-batches")?;
    let program = &count_labels(program)?;
    let mut batch_program = without_repeated_steps(program, count);
    let gradients = gradients(program);
    let first = batch_program.steps.len();
    for (position, step) in program.steps.iter().enumerate().filter(|(_, step)| !runs_once(step)) {
        batch_program.steps.push(step.clone());
        for &part in gradients.get(&position).into_iter().flatten() {
            let add = add(&mut batch_program, part, step);
            batch_program.steps.push(add);
        }
    }
    add_section(&mut batch_program, first, count);
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
