//! Fusion of a convolution and the sum of its output and another map, in inference.

use super::only_reader;
use crate::ops::AddForward;
use crate::{Kernel, Program, ValueId};

/// A step that a sum becomes part of.
struct FusedSum {
    /// Its position in the program.
    position: usize,
    /// The fused kernel.
    kernel: Kernel,
    /// The other summand, which becomes its last input.
    addend: ValueId,
}

/// Moves sums of maps into the step that writes one of the summands; if it can be either, into the later one.
/// `rule` returns the kernel of such a step with the sum, which may include ReLU, if the two can be fused.
pub(in crate::passes) fn fuse_sums(program: &mut Program, rule: impl Fn(&Kernel, bool) -> Option<Kernel>) {
    let mut sum = 0;
    while sum < program.steps.len() {
        let Some(FusedSum { position, kernel, addend }) = find(program, sum, &rule) else {
            sum += 1;
            continue;
        };
        // The step runs where the sum did: the addend is known there.
        let mut fused = program.steps.remove(position);
        let step = &mut program.steps[sum - 1];
        fused.kernel = kernel;
        fused.inputs.push(addend);
        fused.outputs = std::mem::take(&mut step.outputs);
        fused.layers.append(&mut step.layers);
        *step = fused;
    }
}

/// The step that the one at `sum` becomes part of, if that is a sum of maps of one type.
fn find(program: &Program, sum: usize, rule: &impl Fn(&Kernel, bool) -> Option<Kernel>) -> Option<FusedSum> {
    let step = &program.steps[sum];
    let (&Kernel::AddForward(AddForward { relu }), &[a, b]) = (&step.kernel, &step.inputs[..]) else {
        return None;
    };
    let [dtype, others @ ..] = [a, b, step.outputs[0]].map(|id| program.value(id).dtype);
    if program.value(a).shape.len() != 4 || others != [dtype; 2] {
        return None;
    }
    let candidates = [(a, b), (b, a)].into_iter().filter_map(|(output, addend)| {
        let writes = |step: &crate::Step| step.outputs[..] == [output] && step.updates.is_empty();
        let position = program.steps.iter().position(writes)?;
        let writer = &program.steps[position];
        // A step may not have an operand twice.
        let is_fusible = only_reader(program, output) == Some(sum) && !writer.inputs.contains(&addend);
        let kernel = rule(&writer.kernel, relu).filter(|_| is_fusible)?;
        Some(FusedSum { position, kernel, addend })
    });
    candidates.max_by_key(|fused| fused.position)
}
