//! Fusion: rewrites of the forward program. Differentiation follows, so that fused steps have fused
//! derivatives. A new fusion of two steps is a file here and a line in `FUSIONS`.

mod add_relu;
mod batch_norm_activation;
mod batch_norm_add;
mod batch_norm_pool;
mod concat;
mod conv_relu;
mod horizontal;
mod inference;
mod relu_pool;
mod stem;
mod sum;

pub use inference::fuse_inference;
pub(super) use sum::fuse_sums;

use crate::fusions::Fusions;
use crate::ops::{ActivationForward, FusedActivation, ReluForward};
use crate::{EngineError, Kernel, Program, Role, ValueId};

/// A rewrite rule: returns the fused kernel for a producer and its only reader, if the two can be fused.
type Fusion = (&'static str, fn(&Kernel, &Kernel) -> Option<Kernel>);

const FUSIONS: &[Fusion] = &[
    ("fuse add+relu", add_relu::fuse),
    ("fuse conv2d+relu", conv_relu::fuse),
    ("fuse batch_norm2d+activation", batch_norm_activation::fuse),
    ("fuse batch_norm2d+max_pool2d", batch_norm_pool::fuse),
];

/// Applies every fusion wherever it fits.
///
/// # Errors
/// Only if verification fails.
pub fn fuse(forward: &Program) -> Result<Program, EngineError> {
    fuse_with(forward, Fusions::default())
}

/// [`fuse`] with the fusions that pay on a device: see [`Backend::fusions`](crate::Backend::fusions).
///
/// # Errors
/// Only if verification fails.
pub fn fuse_with(
    forward: &Program,
    Fusions { min_horizontal_bytes: large, stem: stems, .. }: Fusions,
) -> Result<Program, EngineError> {
    let mut program = forward.clone();
    for (pass, rule) in FUSIONS {
        while apply(&mut program, *rule) {}
        program.verify(pass)?;
    }
    batch_norm_add::fuse(&mut program);
    relu_pool::fuse(&mut program);
    if stems {
        stem::fuse(&mut program);
    }
    concat::fuse(&mut program);
    horizontal::fuse(&mut program, large);
    join_statistics(&mut program);
    program.drop_unused_values();
    program.verify("fuse")?;
    Ok(program)
}

/// Attributes the statistics of a batch norm to the layers of its fused application, so that reports show
/// them in one row.
fn join_statistics(program: &mut Program) {
    for statistics in 0..program.steps.len() {
        let step = &program.steps[statistics];
        if !matches!(step.kernel, Kernel::BatchNormStatistics(_)) {
            continue;
        }
        if let Some(reader) = only_reader(program, step.outputs[0]) {
            program.steps[statistics].layers = program.steps[reader].layers.clone();
        }
    }
}

/// Fuses every matching pair in one pass; returns whether there was one.
fn apply(program: &mut Program, rule: fn(&Kernel, &Kernel) -> Option<Kernel>) -> bool {
    let mut fused = false;
    let mut next = 0;
    while next < program.steps.len() {
        let producer = next;
        next += 1;
        let Some(&between) = program.steps[producer].outputs.first() else { continue };
        let Some(reader) = only_reader(program, between) else { continue };
        let step = &program.steps[reader];
        if step.inputs[..] != [between] || !step.updates.is_empty() {
            continue;
        }
        let Some(kernel) = rule(&program.steps[producer].kernel, &step.kernel) else { continue };
        let second = program.steps.remove(reader);
        let first = &mut program.steps[producer];
        first.kernel = kernel;
        first.layers.extend(second.layers);
        // The reader's first output replaces the value between; its other outputs (an index) follow.
        first.outputs[0] = second.outputs[0];
        first.outputs.extend(&second.outputs[1..]);
        fused = true;
        // The fused step may fuse again.
        next = producer;
    }
    fused
}

/// The activation that a step computes, if it is one.
fn activation(kernel: &Kernel) -> Option<FusedActivation> {
    match *kernel {
        Kernel::ActivationForward(ActivationForward(activation)) => {
            Some(FusedActivation::Activation(activation))
        }
        Kernel::ReluForward(ReluForward { ceiling }) => Some(FusedActivation::Relu { ceiling }),
        _ => None,
    }
}

/// The step that reads a value, if it is the only one, and the value is not kept for the caller.
fn only_reader(program: &Program, value: ValueId) -> Option<usize> {
    let mut readers = program.readers(value);
    let first = readers.next()?;
    let is_only = readers.next().is_none() && program.value(value).role != Role::Observed;
    is_only.then_some(first)
}
