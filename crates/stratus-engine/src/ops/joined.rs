//! Weights of several convolutions one behind the other: as those of one convolution, whose output channels
//! are theirs in the same order.

use super::{KernelSpec, Tiling, expect_counts, expect_shape, image_shape};
use crate::backend::MAX_OPERANDS;
use crate::build::Differentiator;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};

/// The most weights: a step also has its output and, should a backend want it, scratch.
pub const MAX_JOINED: usize = MAX_OPERANDS - 2;

/// `(weight0, weight1, …) -> weight`, all `[O, C, KH, KW]` that differ in `O` alone: their filters in the
/// order of the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct JoinWeights;

/// `gradient of the joined weight -> gradient of one`: as many filters as that has, from the one on that is
/// named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SplitGradient {
    /// The filters of the weights before this one.
    pub first: usize,
}

impl KernelSpec for JoinWeights {
    fn name(&self) -> &'static str {
        "join_weights"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let [inputs, updates, outputs] = counts;
        if !(1..=MAX_JOINED).contains(&inputs) || [updates, outputs] != [0, 1] {
            return Err(format!(
                "it has {counts:?} inputs, updates and outputs, it takes up to {MAX_JOINED} inputs and makes \
                 one output"
            ));
        }
        let (joined, weights) = operands.split_last().ok_or("it has no operands")?;
        let mut sum = image_shape(weights[0])?;
        for weight in &weights[1..] {
            let [filters, ..] = image_shape(weight)?;
            expect_shape(weight, &[filters, sum[1], sum[2], sum[3]])?;
            sum[0] += filters;
        }
        expect_shape(joined, &sum)
    }

    fn tiling(&self) -> Tiling {
        Tiling::Whole
    }

    fn flops(&self, _operands: &[&Value]) -> u64 {
        0
    }

    fn differentiate(&self, step: &Step, to: &mut Differentiator) -> Result<(), EngineError> {
        let Some(gradient) = to.gradient(step.outputs[0]) else { return Ok(()) };
        let mut first = 0;
        for &weight in &step.inputs {
            let filters = to.filters(weight);
            if to.wants_gradient(weight) {
                let own = to.parameter_gradient(weight);
                let (kernel, phase) = (SplitGradient { first }, Phase::BackwardWeights);
                to.push(step, kernel, phase, vec![gradient], vec![], vec![own]);
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
        let ([of, ..], [filters, channels, height, width]) =
            (image_shape(operands[0])?, image_shape(operands[1])?);
        if self.first + filters > of {
            return Err(format!(
                "`{}` has {of} filters, it takes {filters} from filter {} on",
                operands[0].name, self.first
            ));
        }
        expect_shape(operands[0], &[of, channels, height, width])
    }

    fn tiling(&self) -> Tiling {
        Tiling::Whole
    }

    fn flops(&self, _operands: &[&Value]) -> u64 {
        0
    }
}
