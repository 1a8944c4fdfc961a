//! Batch normalisation fused with the following sum of a residual block and its ReLU.
//!
//! Fused, the normalised map is never written. The gradient of the sum is that of both inputs, so it is
//! needed as a map. The sums over the batch for the norm's gradients are computed while ReLU masks that map
//! in place and while its last term is added.

use super::batch_norm::{BatchNormBackwardData, BatchNormGradients, ChannelOffsets, check_all};
use super::relu::backward_through_relu;
use super::{
    FusedActivation, KernelSpec, Tiling, WorkKind, expect_counts, expect_f64, expect_same_shape, expect_shape,
};
use crate::build::Differentiator;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::ops::BatchNorm2d;

/// `(x, weight, bias, mean, inverse_deviation, a) -> y`: the sum of the normalised map and of `a`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormAddApply {
    /// Attributes.
    pub norm: BatchNorm2d,
    /// True if ReLU is applied to the sum.
    pub relu: bool,
}

/// `(x, y, mean, inverse_deviation, part?) updates dy -> dweight, dbias, sums f64 [2, C]`, with ReLU.
///
/// `part` is added to `dy`, which is then set to 0 where `y` is not positive; `sums` and gradients are those
/// of [`BatchNormGradients`] for the stored gradient.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormAddReluGradients {
    /// Attributes.
    pub norm: BatchNorm2d,
}

impl KernelSpec for BatchNormAddApply {
    fn name(&self) -> &'static str {
        if self.relu { "batch_norm_add_relu_apply" } else { "batch_norm_add_apply" }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[6, 0, 1]])?;
        check_all(&self.norm, (None, ChannelOffsets::default()), operands[0], operands[6], &operands[1..5])?;
        expect_same_shape(operands[0], operands[5])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Normalisation
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64 * if self.relu { 4 } else { 3 }
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let y = step.outputs[0];
        let Some(mut dy) = backward.gradient(y) else { return Ok(()) };
        let [x, weight, bias, mean, inverse_deviation, a] = step.inputs[..] else {
            return Err(backward.no_derivative(step));
        };
        let (norm, activation) = (self.norm, FusedActivation::Identity);
        let (dweight, dbias) = (backward.parameter_gradient(weight), backward.parameter_gradient(bias));
        let outputs = vec![dweight, dbias, backward.sums(step, &[2, norm.channels])];
        let phase = Phase::BackwardWeights;
        if self.relu && backward.may_overwrite_gradient(y) {
            let mut inputs = vec![x, y, mean, inverse_deviation];
            inputs.extend(backward.take_last_term(dy));
            backward.push(step, BatchNormAddReluGradients { norm }, phase, inputs, vec![dy], outputs);
        } else {
            if self.relu {
                dy = backward_through_relu(step, y, dy, backward);
            }
            let inputs = vec![x, dy, weight, bias, mean, inverse_deviation];
            let gradients =
                BatchNormGradients { norm, activation, pool: None, offsets: ChannelOffsets::default() };
            backward.push(step, gradients, phase, inputs, vec![], outputs);
        }
        if backward.requires_grad(x) {
            backward.add_gradient(x, |backward, dx| {
                let kernel = BatchNormBackwardData {
                    norm,
                    activation,
                    pool: None,
                    offsets: ChannelOffsets::default(),
                };
                let inputs = vec![x, dy, weight, bias, mean, inverse_deviation, dweight, dbias];
                backward.push(step, kernel, Phase::BackwardData, inputs, vec![], vec![dx]);
            });
        }
        if backward.requires_grad(a) {
            backward.share_gradient(step, a, dy);
        }
        Ok(())
    }
}

impl KernelSpec for BatchNormAddReluGradients {
    fn name(&self) -> &'static str {
        "batch_norm_add_relu_gradients"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[4, 1, 3], [5, 1, 3]])?;
        let (inputs, results) = operands.split_at(counts[0]);
        let [dy, dweight, dbias, sums] = results else { return Err("a result is missing".to_owned()) };
        check_all(
            &self.norm,
            (None, ChannelOffsets::default()),
            inputs[0],
            inputs[1],
            &[inputs[2], inputs[3], *dweight, *dbias],
        )?;
        inputs[4..].iter().chain([dy]).try_for_each(|other| expect_same_shape(inputs[0], other))?;
        expect_shape(sums, &[2, self.norm.channels])?;
        expect_f64(sums)
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Normalisation
    }

    fn tiling(&self) -> Tiling {
        Tiling::Accumulates
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        5 * operands[0].elements() as u64
    }
}
