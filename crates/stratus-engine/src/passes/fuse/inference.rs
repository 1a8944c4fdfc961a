//! Fusion of a convolution with the sum and the activation that follow it, in programs without a backward
//! pass: a convolution that is trained keeps its output, from which the activation's derivative follows.
//!
//! ```text
//! conv2d x ─▶ z, activation z ─▶ y                      conv2d_activation_inference x ─▶ y
//! conv2d x ─▶ z, add(z, a) ─▶ s, activation s ─▶ y      conv2d_add_activation_inference (x, a) ─▶ y
//! ```

use super::only_reader;
use crate::ops::{
    ActivationForward, AddForward, Conv2dForward, Conv2dInference, FusedActivation, ReluForward,
};
use crate::program::Mode;
use crate::{EngineError, Kernel, Program, Role, ValueId};

/// Fuses sums and activations into the convolutions of an evaluation program, which is not tiled yet.
///
/// # Errors
/// If the program trains, or verification fails.
pub fn fuse_inference(program: &Program) -> Result<Program, EngineError> {
    if program.mode != Mode::Evaluate || !program.sections.is_empty() {
        let reason = "convolutions are fused for inference only in an evaluation program without tiles";
        return Err(EngineError::InvalidRequest(reason.to_owned()));
    }
    let mut program = program.clone();
    fuse_sums(&mut program);
    fuse_activations(&mut program);
    program.drop_unused_values();
    program.verify("fuse_inference")?;
    Ok(program)
}

/// The kernel as a convolution; `None` if it is none, or already has an activation.
fn without_activation(kernel: &Kernel) -> Option<Conv2dInference> {
    match *kernel {
        Kernel::Conv2dForward(Conv2dForward { conv, relu: false }) => {
            Some(Conv2dInference { conv, adds: false, activation: FusedActivation::Identity })
        }
        Kernel::Conv2dInference(kernel) if kernel.activation == FusedActivation::Identity => Some(kernel),
        _ => None,
    }
}

/// A convolution that a sum becomes part of.
struct FusedSum {
    /// Its position in the program.
    position: usize,
    /// The fused kernel.
    kernel: Conv2dInference,
    /// The other summand.
    addend: ValueId,
}

/// Moves sums into the convolution that writes one of the summands; if convolutions write both, into the
/// later one.
fn fuse_sums(program: &mut Program) {
    let mut sum = 0;
    while sum < program.steps.len() {
        let Some(FusedSum { position, kernel, addend }) = fused_sum(program, sum) else {
            sum += 1;
            continue;
        };
        // The convolution runs where the sum did: the addend is known there.
        let mut fused = program.steps.remove(position);
        let step = &mut program.steps[sum - 1];
        fused.kernel = kernel.into();
        fused.inputs.push(addend);
        fused.outputs = std::mem::take(&mut step.outputs);
        fused.layers.append(&mut step.layers);
        *step = fused;
    }
}

/// The convolution that the step at `sum` becomes part of, if it is a sum of maps of one type, and there is
/// such a convolution.
fn fused_sum(program: &Program, sum: usize) -> Option<FusedSum> {
    let step = &program.steps[sum];
    let (&Kernel::AddForward(AddForward { relu }), &[a, b]) = (&step.kernel, &step.inputs[..]) else {
        return None;
    };
    let [dtype, others @ ..] = [a, b, step.outputs[0]].map(|id| program.value(id).dtype);
    if program.value(a).shape.len() != 4 || others != [dtype; 2] {
        return None;
    }
    let candidates = [(a, b), (b, a)].into_iter().filter_map(|(output, addend)| {
        let position = writer(program, output)?;
        let kernel = without_activation(&program.steps[position].kernel).filter(|kernel| !kernel.adds)?;
        // A step may not have an operand twice.
        let reads_addend = program.steps[position].inputs.contains(&addend);
        let kernel = Conv2dInference { adds: true, activation: FusedActivation::relu_if(relu), ..kernel };
        let is_read_here_only = reader_of_transient(program, output) == Some(sum);
        (is_read_here_only && !reads_addend).then_some(FusedSum { position, kernel, addend })
    });
    candidates.max_by_key(|fused| fused.position)
}

/// The only reader of a value that nobody else can observe.
fn reader_of_transient(program: &Program, id: ValueId) -> Option<usize> {
    only_reader(program, id).filter(|_| program.value(id).role == Role::Transient)
}

/// The step whose only result is a value.
fn writer(program: &Program, id: ValueId) -> Option<usize> {
    program.steps.iter().position(|step| step.outputs[..] == [id] && step.updates.is_empty())
}

/// Moves activations into the convolution before them.
fn fuse_activations(program: &mut Program) {
    for position in 0.. {
        let Some(step) = program.steps.get(position) else { break };
        let Some(kernel) = without_activation(&step.kernel) else { continue };
        let (output, is_only_result) = (step.outputs[0], step.updates.is_empty());
        let Some(reader) = reader_of_transient(program, output).filter(|_| is_only_result) else { continue };
        let step = &program.steps[reader];
        let activation = match step.kernel {
            Kernel::ActivationForward(ActivationForward(activation)) => {
                FusedActivation::Activation(activation)
            }
            Kernel::ReluForward(ReluForward { ceiling }) => FusedActivation::Relu { ceiling },
            _ => continue,
        };
        if program.value(output).dtype != program.value(step.outputs[0]).dtype {
            continue;
        }
        let activated = program.steps.remove(reader);
        let fused = &mut program.steps[position];
        fused.kernel = Conv2dInference { activation, ..kernel }.into();
        fused.outputs = activated.outputs;
        fused.layers.extend(activated.layers);
    }
}
