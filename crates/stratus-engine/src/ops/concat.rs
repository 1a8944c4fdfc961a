//! Feature maps one behind the other, along channels.

use super::{KernelSpec, Tiling, expect_channels, expect_counts, expect_shape, image_shape, no_kernel};
use crate::backend::MAX_OPERANDS;
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;

/// The most inputs: a step also has its output and, should a backend want it, scratch.
const MAX_INPUTS: usize = MAX_OPERANDS - 2;

/// `(x0, x1, …) -> y`: feature maps `[N, C, H, W]`, their channels in the order of the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ConcatForward;

/// `dy -> dx`: as many channels as `dx` has, from the channel `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ConcatBackward {
    /// The channels of the inputs before this one.
    pub first: usize,
}

pub(super) fn lower(node: &Node, to: &mut Lowering) -> Result<(), EngineError> {
    let inputs: Vec<_> = (0..node.inputs.len()).map(|position| to.input(node, position)).collect();
    if (1..inputs.len()).any(|position| inputs[..position].contains(&inputs[position])) {
        return Err(no_kernel(node, "two of its inputs are the same value"));
    }
    let y = to.output(node);
    // More than a step takes are joined by several first, one behind the other, and these then.
    let (mut inputs, mut parts) = (inputs, 0);
    while inputs.len() > MAX_INPUTS {
        let mut joined = Vec::new();
        for of_part in inputs.chunks(MAX_INPUTS) {
            if let [alone] = of_part {
                joined.push(*alone);
                continue;
            }
            let mut shape = to.shape(y);
            shape[1] = of_part.iter().map(|&input| to.shape(input)[1]).sum();
            let dtype = to.dtype(y);
            let part = to.saved_samples(node, &format!(":part{parts}"), &shape, dtype);
            to.push(node, ConcatForward, of_part.to_vec(), vec![], vec![part]);
            joined.push(part);
            parts += 1;
        }
        inputs = joined;
    }
    to.push(node, ConcatForward, inputs, vec![], vec![y]);
    Ok(())
}

impl KernelSpec for ConcatForward {
    fn name(&self) -> &'static str {
        "concat_forward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let [inputs, updates, outputs] = counts;
        if !(1..=MAX_INPUTS).contains(&inputs) || [updates, outputs] != [0, 1] {
            return Err(format!(
                "it has {counts:?} inputs, updates and outputs, it takes up to {MAX_INPUTS} inputs and makes \
                 one output"
            ));
        }
        let (y, inputs) = operands.split_last().ok_or("it has no operands")?;
        let mut sum = image_shape(inputs[0])?;
        for input in &inputs[1..] {
            let [_, channels, ..] = image_shape(input)?;
            expect_shape(input, &[sum[0], channels, sum[2], sum[3]])?;
            sum[1] += channels;
        }
        expect_shape(y, &sum)
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, _operands: &[&Value]) -> u64 {
        0
    }

    fn differentiate(&self, step: &Step, to: &mut Differentiator) -> Result<(), EngineError> {
        let Some(dy) = to.gradient(step.outputs[0]) else { return Ok(()) };
        let mut first = 0;
        for &x in &step.inputs {
            if to.wants_gradient(x) {
                to.add_gradient(x, |to, dx| {
                    to.push(step, ConcatBackward { first }, Phase::BackwardData, vec![dy], vec![], vec![dx]);
                });
            }
            first += to.channels(x);
        }
        Ok(())
    }
}

impl KernelSpec for ConcatBackward {
    fn name(&self) -> &'static str {
        "concat_backward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        expect_channels(operands[0], self.first, image_shape(operands[1])?)
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn channels_touched(&self, operands: &[&Value], position: usize) -> Option<usize> {
        if position == 0 { operands[1].shape.get(1).copied() } else { None }
    }

    fn flops(&self, _operands: &[&Value]) -> u64 {
        0
    }
}
