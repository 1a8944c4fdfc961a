//! Horizontal fusion: pointwise convolutions of the same map, each followed by its own batch norm, become one
//! convolution whose output has the channels of all.
//!
//! ```text
//! x ──┬─ conv a ─ norm a            ┌─ norm a (channels of a)
//!     └─ conv b ─ norm b    x ─ conv┴─ norm b (channels of b)
//! ```
//!
//! The input is read once in the forward pass and once for the weights' gradient, and its gradient is one
//! matrix product instead of a sum of several.

use crate::ops::{CHANNEL_SLICE_ALIGNMENT, Conv2dForward, JoinWeights, MAX_JOINED_WEIGHTS};
use crate::program::Mode;
use crate::{Kernel, Phase, Program, Role, Step, ValueId};
use std::collections::HashSet;
use stratus_graph::ops::Conv2d;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// A convolution that may be fused with others, and the norm that reads it.
struct Branch {
    /// The convolution's step.
    step: usize,
    conv: Conv2d,
    /// The norm's steps: statistics and application.
    norm: [usize; 2],
}

/// Fuses the branches of a training program that read a map of at least `min_bytes`.
pub(super) fn fuse(program: &mut Program, min_bytes: usize) {
    if program.mode != Mode::Train {
        return;
    }
    let mut to_loss = steps_to_loss(program);
    let mut next = 0;
    while next < program.steps.len() {
        let branches = find(program, next, min_bytes, &to_loss);
        if branches.len() > 1 {
            join(program, &branches);
            to_loss = steps_to_loss(program);
        }
        next += 1;
    }
}

/// The convolution at `first` and later ones of the same map that can be fused with it; empty if the map has
/// fewer than `min_bytes`.
fn find(program: &Program, first: usize, min_bytes: usize, to_loss: &HashSet<usize>) -> Vec<Branch> {
    let Some(leading) = branch(program, first, to_loss) else { return Vec::new() };
    let x = program.steps[first].inputs[0];
    if program.value(x).bytes() < min_bytes {
        return Vec::new();
    }
    let others = program.readers(x).filter(|&reader| reader > first);
    let others = others.filter_map(|reader| branch(program, reader, to_loss));
    std::iter::once(leading).chain(others).take(MAX_JOINED_WEIGHTS).collect()
}

/// The convolution at `position`, if only a training batch norm reads its output.
fn branch(program: &Program, position: usize, to_loss: &HashSet<usize>) -> Option<Branch> {
    let step = &program.steps[position];
    let Kernel::Conv2dForward(Conv2dForward { conv, relu: false }) = step.kernel else { return None };
    let &[_, weight] = &step.inputs[..] else { return None };
    // Unaligned channels of two branches would share a cache line, which both norms load and write.
    let alignment = CHANNEL_SLICE_ALIGNMENT.max(LINE_BYTES / program.value(step.outputs[0]).dtype.bytes());
    if !conv.out_channels.is_multiple_of(alignment) || !conv.is_pointwise() {
        return None;
    }
    if program.readers(weight).count() > 1 || !program.is_trained(weight) {
        return None;
    }
    let readers: Vec<usize> = program.readers(step.outputs[0]).collect();
    let norm: [usize; 2] = readers.try_into().ok()?;
    let is_norm = |at: &usize| match program.steps[*at].kernel {
        Kernel::BatchNormStatistics(_) => true,
        Kernel::BatchNormApply(norm) => norm.pool.is_none(),
        _ => false,
    };
    // A branch that does not reach the loss gets no gradient, so its channels of the joint gradient would not
    // be written.
    (norm.iter().all(is_norm) && to_loss.contains(&norm[1])).then_some(Branch { step: position, conv, norm })
}

/// The steps that the loss depends on.
fn steps_to_loss(program: &Program) -> HashSet<usize> {
    let mut read: HashSet<ValueId> = HashSet::new();
    let mut found = HashSet::new();
    for (position, step) in program.steps.iter().enumerate().rev() {
        if step.phase == Phase::Loss || step.outputs.iter().chain(&step.updates).any(|id| read.contains(id)) {
            read.extend(step.inputs.iter().chain(&step.updates));
            found.insert(position);
        }
    }
    found
}

/// Replaces the convolutions by one, at the position of the first.
fn join(program: &mut Program, branches: &[Branch]) {
    let steps: Vec<&Step> = branches.iter().map(|branch| &program.steps[branch.step]).collect();
    let layers: Vec<usize> = steps.iter().flat_map(|step| step.layers.clone()).collect();
    let weights: Vec<ValueId> = steps.iter().map(|step| step.inputs[1]).collect();
    let (x, y, phase) = (steps[0].inputs[0], steps[0].outputs[0], steps[0].phase);
    let conv = Conv2d {
        out_channels: branches.iter().map(|branch| branch.conv.out_channels).sum(),
        ..branches[0].conv
    };
    let names: Vec<&str> = layers.iter().map(|&layer| program.layers[layer].name.as_str()).collect();
    let names = names.join("+");
    let (like_y, like_weight) = (program.value(y).clone(), program.value(weights[0]).clone());
    let mut shape = like_y.shape;
    shape[1] = conv.out_channels;
    let y = program.add_samples(format!("{names}:y"), &shape, like_y.dtype);
    let weight = program.add_value(
        format!("{names}:weights"),
        &conv.weight_shape(),
        like_weight.dtype,
        Role::Transient,
    );
    let mut first = 0;
    for branch in branches {
        for at in branch.norm {
            let step = &mut program.steps[at];
            step.inputs[0] = y;
            match &mut step.kernel {
                Kernel::BatchNormStatistics(norm) => norm.offset = Some(first),
                Kernel::BatchNormApply(norm) => norm.offsets.x = Some(first),
                _ => {}
            }
        }
        first += branch.conv.out_channels;
    }
    let step = |kernel, inputs, output| {
        let (layers, outputs) = (layers.clone(), vec![output]);
        Step { kernel, phase, layers, inputs, updates: vec![], outputs }
    };
    let joined = [
        step(JoinWeights.into(), weights, weight),
        step(Conv2dForward { conv, relu: false }.into(), vec![x, weight], y),
    ];
    let positions: HashSet<usize> = branches.iter().map(|branch| branch.step).collect();
    let earliest = positions.iter().copied().min().unwrap_or_default();
    let mut kept = std::mem::take(&mut program.steps);
    let following = kept.split_off(earliest);
    kept.extend(joined);
    let following =
        following.into_iter().zip(earliest..).filter(|(_, position)| !positions.contains(position));
    kept.extend(following.map(|(step, _)| step));
    program.steps = kept;
}
