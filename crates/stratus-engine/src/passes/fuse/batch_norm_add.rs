//! Fusion of a batch norm and the following sum of a residual block, whose ReLU may already be fused. The sum
//! has another input, so this is not a rule for pairs of steps.

use super::only_reader;
use crate::ops::{AddForward, BatchNormAddApply, BatchNormApply, ChannelOffsets, FusedActivation};
use crate::{Kernel, Program};

/// Fuses every sum with a batch norm whose output only the sum reads.
pub(super) fn fuse(program: &mut Program) {
    let mut sum = 0;
    while sum < program.steps.len() {
        if let Some((norm, kernel)) = find(program, sum) {
            let mut norm = program.steps.remove(norm);
            // Removing an earlier step shifted the sum.
            sum -= 1;
            let step = &mut program.steps[sum];
            step.kernel = kernel.into();
            step.inputs.retain(|input| !norm.outputs.contains(input));
            norm.inputs.append(&mut step.inputs);
            norm.layers.append(&mut step.layers);
            (step.inputs, step.layers) = (norm.inputs, norm.layers);
        }
        sum += 1;
    }
}

/// The step that normalises a term of the sum at `sum`, and the fused kernel.
fn find(program: &Program, sum: usize) -> Option<(usize, BatchNormAddApply)> {
    let step = &program.steps[sum];
    let Kernel::AddForward(AddForward { relu }) = step.kernel else { return None };
    let [a, b] = step.inputs[..] else { return None };
    let y = program.value(step.outputs[0]);
    // Vectors after linear layers have other types than their sum.
    let is_alike = |id| {
        let value = program.value(id);
        value.shape.len() == 4 && value.dtype == y.dtype
    };
    // The last matching norm before the sum, whose input was used most recently.
    program.steps[..sum].iter().enumerate().rev().find_map(|(position, producer)| match producer.kernel {
        Kernel::BatchNormApply(BatchNormApply {
            norm,
            activation: FusedActivation::Identity,
            pool: None,
            offsets: ChannelOffsets { x: None, y: None },
        }) => {
            let fits = [a, b].contains(&producer.outputs[0])
                && only_reader(program, producer.outputs[0]) == Some(sum)
                // No operand of a step occurs twice.
                && ![a, b].contains(&producer.inputs[0])
                && [a, b, producer.inputs[0]].into_iter().all(is_alike);
            fits.then_some((position, BatchNormAddApply { norm, relu }))
        }
        _ => None,
    })
}
