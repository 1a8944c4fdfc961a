//! Concatenation of batch-norm outputs: each norm writes directly into its channel slice, so that nothing is
//! copied, forward or backward. The maps have several readers, so this is not a rule for pairs of steps.

use super::only_reader;
use crate::ops::CHANNEL_SLICE_ALIGNMENT;
use crate::{Kernel, Program, ValueId};

/// Fuses every concatenation whose inputs are each written by a batch norm and read only by the
/// concatenation, if slices are aligned.
pub(super) fn fuse(program: &mut Program) {
    let mut next = 0;
    while next < program.steps.len() {
        let Some(producers) = find(program, next) else {
            next += 1;
            continue;
        };
        // The following step is now at this position.
        let concat = program.steps.remove(next);
        let whole = concat.outputs[0];
        let earliest = producers.iter().copied().min();
        let mut first = 0;
        for producer in producers {
            let step = &mut program.steps[producer];
            let channels = program.values[step.outputs[0].0].shape[1];
            match &mut step.kernel {
                Kernel::BatchNormApply(norm) => norm.offsets.y = Some(first),
                Kernel::BatchNormInference(norm) => norm.offsets.y = Some(first),
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

/// The steps that write the inputs of the step at `concat`, in order, if it is a concatenation and all of
/// them can write into its output.
fn find(program: &Program, concat: usize) -> Option<Vec<usize>> {
    let step = &program.steps[concat];
    let Kernel::ConcatForward(_) = step.kernel else { return None };
    let y = program.value(step.outputs[0]);
    let producer = |input| {
        let producer = program.steps[..concat].iter().position(|step| step.outputs[..] == [input])?;
        let can = match program.steps[producer].kernel {
            Kernel::BatchNormApply(norm) => norm.pool.is_none() && norm.offsets.y.is_none(),
            Kernel::BatchNormInference(norm) => norm.pool.is_none() && norm.offsets.y.is_none(),
            _ => false,
        };
        let fits = program.value(input).dtype == y.dtype && only_reader(program, input) == Some(concat);
        (can && fits).then_some(producer)
    };
    let (_, before_last) = step.inputs.split_last()?;
    let meets = |input: &ValueId| program.value(*input).shape[1].is_multiple_of(CHANNEL_SLICE_ALIGNMENT);
    if !before_last.iter().all(meets) {
        return None;
    }
    step.inputs.iter().map(|&input| producer(input)).collect()
}
