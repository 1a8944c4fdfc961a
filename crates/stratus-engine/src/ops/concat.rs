//! Concatenation of feature maps along channels.

use super::{KernelSpec, Tiling, WorkKind, expect_channels, expect_counts, expect_shape, image_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::program::MAX_OPERANDS;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;

/// The maximum number of inputs: a step also has an output and possibly scratch.
const MAX_INPUTS: usize = MAX_OPERANDS - 2;

/// `(x0, x1, …) -> y`: feature maps `[N, C, H, W]`, their channels in the order of the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ConcatForward;

/// `dy -> dx`: the channels of `dy` starting at `first`; `dx` determines their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ConcatBackward {
    /// The first channel: the number of channels of the preceding inputs.
    pub first: usize,
}

pub(super) fn lower(node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    let (mut inputs, mut parts) = (lowering.distinct_inputs(node), 0);
    let y = lowering.output(node);
    // More inputs than a step can have are concatenated in several steps, whose results are then
    // concatenated.
    while inputs.len() > MAX_INPUTS {
        let mut joined = Vec::new();
        for chunk in inputs.chunks(MAX_INPUTS) {
            if let [alone] = chunk {
                joined.push(*alone);
                continue;
            }
            let mut shape = lowering.shape(y);
            shape[1] = chunk.iter().map(|&input| lowering.shape(input)[1]).sum();
            let dtype = lowering.dtype(y);
            let part = lowering.saved_samples(node, &format!(":part{parts}"), &shape, dtype);
            lowering.push(node, ConcatForward, chunk.to_vec(), vec![], vec![part]);
            joined.push(part);
            parts += 1;
        }
        inputs = joined;
    }
    lowering.push(node, ConcatForward, inputs, vec![], vec![y]);
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
                "expected up to {MAX_INPUTS} inputs, no updates and 1 output, got {counts:?}"
            ));
        }
        let (y, inputs) = operands.split_last().ok_or("no operands")?;
        let mut sum = image_shape(inputs[0])?;
        for input in &inputs[1..] {
            let [_, channels, ..] = image_shape(input)?;
            expect_shape(input, &[sum[0], channels, sum[2], sum[3]])?;
            sum[1] += channels;
        }
        expect_shape(y, &sum)
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, _operands: &[&Value]) -> u64 {
        0
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let Some(dy) = backward.gradient(step.outputs[0]) else { return Ok(()) };
        let mut first = 0;
        for &x in &step.inputs {
            if backward.requires_grad(x) {
                backward.add_gradient(x, |backward, dx| {
                    backward.push(
                        step,
                        ConcatBackward { first },
                        Phase::BackwardData,
                        vec![dy],
                        vec![],
                        vec![dx],
                    );
                });
            }
            first += backward.channels(x);
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

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
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
