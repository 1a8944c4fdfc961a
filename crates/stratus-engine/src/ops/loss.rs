//! Softmax and cross-entropy in one step, with the counts that accuracy is made of and the gradient of the
//! logits.

use super::count_labels::expect_label_counts;
use super::loss_scale::expect_loss_scale;
use super::{KernelSpec, Tiling, expect_counts, expect_shape};
use crate::{DType, Value};
use serde::{Deserialize, Serialize};

/// What the metrics value (f64) holds, in order: mean loss over counted samples, counted samples, top-1 hits,
/// top-5 hits.
pub const METRICS: [&str; 4] = ["loss", "samples", "top1", "top5"];

/// Numbers of a mixed sample's label: its class, another, and the other's share in parts of [`WHOLE_SHARE`].
pub const MIXED: usize = 3;

/// The share that is all of a sample: shares are whole numbers, and exact in every type.
pub const WHOLE_SHARE: i32 = 1 << 24;

/// `(logits [N, classes], labels i32 [N], class_weights? [classes], loss_scale?, label_counts? [classes]) ->
/// metrics f64 [4], dlogits? [N, classes]`; as an auxiliary loss `(…) updates (metrics) -> dlogits`.
///
/// The mean of `-log softmax(logits)[label]` over the samples whose label is not negative; samples with a
/// negative label count nowhere and get a zero gradient. With smoothing `s`, the label's logarithm counts for
/// `1 - s` and the mean of all classes' for `s` (Szegedy et al., "Rethinking the Inception architecture for
/// computer vision", 2015, as PyTorch has it). A class is among the top k where fewer than k classes have a
/// larger logit, equal ones counting when their index is smaller.
///
/// Where samples are `mixed`, labels are `[N, 3]`, see [`MIXED`]: in place of the label's logarithm stands
/// the mean of both classes', each with its share (Zhang et al., "mixup: beyond empirical risk minimization",
/// 2018). Hits are those of the class with the larger share, the first where both are equal.
///
/// Where it is `weighted`, classes have the weights `w` of the value [`CLASS_WEIGHTS`](super::CLASS_WEIGHTS),
/// as in PyTorch's `cross_entropy`:
///
/// ```text
/// loss(n) = -Σₖ w(k) · target(n, k) · log softmax(z(n))[k]
/// loss    =  Σₙ loss(n) / Σₙ w(y(n))          where samples have one class y
/// loss    =  Σₙ loss(n) / samples             where they are mixed: their targets are shares of classes
/// ```
///
/// A batch whose labels all weigh nothing has a loss and gradients of 0. What `metrics` counts is not
/// weighted.
///
/// Where it is a `partial` loss, the samples are a micro-batch or part of a batch, whose
/// [label counts](super::CountLabels) make the divisor. So the sums of losses and gradients over the batch
/// are those of a batch that is computed at once, however labels are spread over it. Metrics are added up.
///
/// Where it is `scaled`, `dlogits` is multiplied by the loss's scale, see [`LossScale`](super::LossScale);
/// the loss that `metrics` holds is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SoftmaxCrossEntropy {
    /// What an auxiliary loss and its gradient are multiplied by. It is added to the loss that `metrics`
    /// holds; hits stay those of the network's own loss, which has `None`.
    pub auxiliary: Option<f32>,
    /// The share of the target that all classes have equally: at least 0, less than 1.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub smoothing: f32,
    /// Samples have two classes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mixed: bool,
    /// Whether classes have weights.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub weighted: bool,
    /// Whether the gradient is that of a scaled loss.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scaled: bool,
    /// Whether the samples are a part of a batch, by whose label counts the loss is divided.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

/// Whether a program need not say it: those of earlier versions have none.
#[allow(clippy::trivially_copy_pass_by_ref)] // As serde calls it.
pub(super) fn is_zero(smoothing: &f32) -> bool {
    *smoothing == 0.0
}

impl SoftmaxCrossEntropy {
    /// Positions of operands: `[class weights, loss scale, label counts, metrics, gradient]`. An operand that
    /// a step does not have shares the position of the next one; a gradient at or past the end is absent.
    #[must_use]
    pub fn positions(&self) -> [usize; 5] {
        let weights = 2;
        let scale = weights + usize::from(self.weighted);
        let counts = scale + usize::from(self.scaled);
        let metrics = counts + usize::from(self.partial);
        [weights, scale, counts, metrics, metrics + 1]
    }
}

impl KernelSpec for SoftmaxCrossEntropy {
    fn name(&self) -> &'static str {
        if self.auxiliary.is_some() { "auxiliary_cross_entropy" } else { "softmax_cross_entropy" }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let [at_weights, at_scale, at_counts, inputs, at_gradient] = self.positions();
        match self.auxiliary {
            None => expect_counts(counts, &[[inputs, 0, 1], [inputs, 0, 2]])?,
            Some(_) => expect_counts(counts, &[[inputs, 1, 1]])?,
        }
        operands[at_scale..at_counts].iter().try_for_each(|scale| expect_loss_scale(scale))?;
        operands[at_counts..inputs].iter().try_for_each(|counts| expect_label_counts(counts))?;
        let metrics = operands[inputs];
        if !(0.0..1.0).contains(&self.smoothing) {
            return Err(format!(
                "labels are smoothed by {}; it must be at least 0 and less than 1",
                self.smoothing
            ));
        }
        let [batch, classes] = operands[0].shape[..] else {
            return Err(format!("the logits are {:?}, they should be [batch, classes]", operands[0].shape));
        };
        let per_class = operands[at_weights..at_scale].iter().chain(&operands[at_counts..inputs]);
        per_class.into_iter().try_for_each(|value| expect_shape(value, &[classes]))?;
        expect_shape(operands[1], &[batch, MIXED][..if self.mixed { 2 } else { 1 }])?;
        expect_shape(metrics, &[METRICS.len()])?;
        if operands[1].dtype != DType::I32 || metrics.dtype != DType::F64 {
            return Err(format!(
                "labels are {}, metrics {}; they should be i32 and f64",
                operands[1].dtype, metrics.dtype
            ));
        }
        operands.get(at_gradient).map_or(Ok(()), |gradient| expect_shape(gradient, &[batch, classes]))
    }

    fn tiling(&self) -> Tiling {
        Tiling::Whole
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        5 * operands[0].elements() as u64
    }
}
