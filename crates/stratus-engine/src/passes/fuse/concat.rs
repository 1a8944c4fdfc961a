//! Maps that are put one behind the other, each made by a batch norm: every norm writes its channels where
//! they belong, and nothing is copied, forward or backward. The maps are read by several steps, so that this
//! is no pair of steps as the other fusions are.

use super::only_reader;
use crate::ops::PART_BORDER;
use crate::{Kernel, Program, ValueId};

/// Fuses every concatenation with the batch norms before it, where there is one for each of its inputs that
/// it alone reads, and these meet at borders of parts.
pub(super) fn fuse(program: &mut Program) {
    let mut next = 0;
    while next < program.steps.len() {
        let Some(producers) = find(program, next) else {
            next += 1;
            continue;
        };
        // What was behind it is here now.
        let concat = program.steps.remove(next);
        let whole = concat.outputs[0];
        let earliest = producers.iter().copied().min();
        let mut first = 0;
        for producer in producers {
            let step = &mut program.steps[producer];
            let channels = program.values[step.outputs[0].0].shape[1];
            match &mut step.kernel {
                Kernel::BatchNormApply(norm) => norm.parts.y = Some(first),
                Kernel::BatchNormInference(norm) => norm.parts.y = Some(first),
                _ => {}
            }
            first += channels;
            step.layers.extend(&concat.layers);
            if Some(producer) == earliest {
                step.outputs = vec![whole];
            } else {
                step.outputs.clear();
                step.updates.push(whole);
            }
        }
    }
}

/// The steps that make the inputs of the step at `concat`, in their order, where it is one and all of them
/// can write into its result.
fn find(program: &Program, concat: usize) -> Option<Vec<usize>> {
    let step = &program.steps[concat];
    let Kernel::ConcatForward(_) = step.kernel else { return None };
    let y = program.value(step.outputs[0]);
    let producer = |input| {
        let producer = program.steps[..concat].iter().position(|step| step.outputs[..] == [input])?;
        let can = match program.steps[producer].kernel {
            Kernel::BatchNormApply(norm) => norm.pool.is_none() && norm.parts.y.is_none(),
            Kernel::BatchNormInference(norm) => norm.pool.is_none() && norm.parts.y.is_none(),
            _ => false,
        };
        let fits = program.value(input).dtype == y.dtype && only_reader(program, input) == Some(concat);
        (can && fits).then_some(producer)
    };
    let (_, before_last) = step.inputs.split_last()?;
    let meets = |input: &ValueId| program.value(*input).shape[1].is_multiple_of(PART_BORDER);
    if !before_last.iter().all(meets) {
        return None;
    }
    step.inputs.iter().map(|&input| producer(input)).collect()
}
