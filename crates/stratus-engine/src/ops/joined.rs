//! Concatenation of the weights of several convolutions into those of one, whose output channels are theirs
//! in the same order.

use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_shape, image_shape};
use crate::build::Differentiator;
use crate::program::MAX_OPERANDS;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};

/// The maximum number of weights: a step also has an output and possibly scratch.
pub const MAX_JOINED_WEIGHTS: usize = MAX_OPERANDS - 2;

/// `(weight0, weight1, …) -> weight`, all `[O, C, KH, KW]` that differ in `O` alone: their filters in the
/// order of the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct JoinWeights;

/// `gradient of the joined weight -> gradient of one`: a slice of its filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SplitGradient {
    /// The first filter: the number of filters of the preceding weights.
    pub first: usize,
}

impl KernelSpec for JoinWeights {
    fn name(&self) -> &'static str {
        "join_weights"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let [inputs, updates, outputs] = counts;
        if !(1..=MAX_JOINED_WEIGHTS).contains(&inputs) || [updates, outputs] != [0, 1] {
            return Err(format!(
                "expected up to {MAX_JOINED_WEIGHTS} inputs, no updates and 1 output, got {counts:?}"
            ));
        }
        let (joined, weights) = operands.split_last().ok_or("no operands")?;
        let mut sum = image_shape(weights[0])?;
        for weight in &weights[1..] {
            let [filters, ..] = image_shape(weight)?;
            expect_shape(weight, &[filters, sum[1], sum[2], sum[3]])?;
            sum[0] += filters;
        }
        expect_shape(joined, &sum)
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::WholeBatch
    }

    fn flops(&self, _operands: &[&Value]) -> u64 {
        0
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let Some(gradient) = backward.gradient(step.outputs[0]) else { return Ok(()) };
        let mut first = 0;
        for &weight in &step.inputs {
            let filters = backward.filters(weight);
            if backward.requires_grad(weight) {
                let weight_gradient = backward.parameter_gradient(weight);
                let (kernel, phase) = (SplitGradient { first }, Phase::BackwardWeights);
                backward.push(step, kernel, phase, vec![gradient], vec![], vec![weight_gradient]);
            }
            first += filters;
        }
        Ok(())
    }
}

impl KernelSpec for SplitGradient {
    fn name(&self) -> &'static str {
        "split_gradient"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        let ([available, ..], [filters, channels, height, width]) =
            (image_shape(operands[0])?, image_shape(operands[1])?);
        if self.first + filters > available {
            return Err(format!(
                "`{}` has {available} filters; filters {}..{} are out of range",
                operands[0].name,
                self.first,
                self.first + filters
            ));
        }
        expect_shape(operands[0], &[available, channels, height, width])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::WholeBatch
    }

    fn flops(&self, _operands: &[&Value]) -> u64 {
        0
    }
}
