//! Softmax and cross-entropy in one step, with the counts for accuracy and the gradient of the logits.

use super::count_labels::expect_label_counts;
use super::labels::MIXED_LABEL_LEN;
use super::loss_scale::expect_loss_scale;
use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_shape};
use crate::{DType, Value};
use serde::{Deserialize, Serialize};

/// Fields of the metrics value (f64): mean loss over counted samples, counted samples, top-1 hits, top-5
/// hits.
pub const METRICS_FIELDS: [&str; 4] = ["loss", "samples", "top1", "top5"];

/// `(logits [N, classes], labels i32 [N], class_weights? [classes], loss_scale?, label_counts? [classes]) ->
/// metrics f64 [4], dlogits? [N, classes]`; as an auxiliary loss `(…) updates (metrics) -> dlogits`.
///
/// The mean of `-log softmax(logits)[label]` over the samples whose label is not negative; samples with a
/// negative label are ignored and get a zero gradient. With smoothing `s`, the label's logarithm counts for
/// `1 - s` and the mean of all classes' for `s` (Szegedy et al., "Rethinking the Inception architecture for
/// computer vision", 2015, as in PyTorch). A class is among the top k if fewer than k classes have a larger
/// logit, or an equal one and a smaller index.
///
/// With `mixed_labels`, labels are `[N, 3]`, see [`MIXED_LABEL_LEN`]: the label's logarithm is replaced by
/// the mean of both classes', weighted by their shares (Zhang et al., "mixup: beyond empirical risk
/// minimization", 2018). Hits are those of the class with the larger share, the first if both are equal.
///
/// With `class_weighted`, classes have the weights `w` of the value [`CLASS_WEIGHTS`](super::CLASS_WEIGHTS),
/// as in PyTorch's `cross_entropy`:
///
/// ```text
/// loss(n) = -Σₖ w(k) · target(n, k) · log softmax(z(n))[k]
/// loss    =  Σₙ loss(n) / Σₙ w(y(n))          if samples have one class y
/// loss    =  Σₙ loss(n) / samples             if they are mixed: their targets are shares of classes
/// ```
///
/// A batch whose labels all have weight 0 has a loss and gradients of 0. The counts of `metrics` are not
/// weighted.
///
/// With `partial`, the samples are a micro-batch or part of a batch, and its [label
/// counts](super::CountLabels) give the divisor. Sums of losses and gradients over the parts then equal those
/// of the whole batch, however labels are distributed. Metrics are added up.
///
/// With `loss_scaled`, `dlogits` is multiplied by the loss scale, see [`LossScale`](super::LossScale); the
/// loss in `metrics` is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SoftmaxCrossEntropy {
    /// The weight of an auxiliary loss and its gradient. It is added to the loss in `metrics`; hits are those
    /// of the main loss, which has `None`.
    pub auxiliary: Option<f32>,
    /// The factor of the main loss and its gradient beside a [`DistillationLoss`]. `None`: the factor is 1,
    /// or the loss is auxiliary.
    ///
    /// [`DistillationLoss`]: super::DistillationLoss
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub main_weight: Option<f32>,
    /// Label smoothing: the share of the target that is distributed equally over all classes, in [0, 1).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub smoothing: f32,
    /// True if samples have two classes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "mixed")]
    pub mixed_labels: bool,
    /// True if classes have weights.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "weighted")]
    pub class_weighted: bool,
    /// True if the loss is scaled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "scaled")]
    pub loss_scaled: bool,
    /// True if the samples are a part of a batch, whose label counts divide the loss.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

/// Returns whether the field is omitted, as in programs of earlier versions.
#[allow(clippy::trivially_copy_pass_by_ref)] // The signature that serde requires.
pub(super) fn is_zero(smoothing: &f32) -> bool {
    *smoothing == 0.0
}

impl SoftmaxCrossEntropy {
    /// The factor of the loss and its gradient.
    #[must_use]
    pub fn factor(&self) -> f32 {
        self.auxiliary.or(self.main_weight).unwrap_or(1.0)
    }

    /// Positions of operands: `[class weights, loss scale, label counts, metrics, gradient]`. An absent
    /// operand shares the position of the next one; a gradient at or past the end is absent.
    #[must_use]
    pub fn positions(&self) -> [usize; 5] {
        let weights = 2;
        let scale = weights + usize::from(self.class_weighted);
        let counts = scale + usize::from(self.loss_scaled);
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
            return Err(format!("label smoothing must be in [0, 1), got {}", self.smoothing));
        }
        let [batch, classes] = operands[0].shape[..] else {
            return Err(format!("logits: expected [batch, classes], got {:?}", operands[0].shape));
        };
        let per_class = operands[at_weights..at_scale].iter().chain(&operands[at_counts..inputs]);
        per_class.into_iter().try_for_each(|value| expect_shape(value, &[classes]))?;
        expect_shape(operands[1], &[batch, MIXED_LABEL_LEN][..if self.mixed_labels { 2 } else { 1 }])?;
        expect_shape(metrics, &[METRICS_FIELDS.len()])?;
        if operands[1].dtype != DType::I32 || metrics.dtype != DType::F64 {
            return Err(format!(
                "expected labels i32 and metrics f64, got {} and {}",
                operands[1].dtype, metrics.dtype
            ));
        }
        operands.get(at_gradient).map_or(Ok(()), |gradient| expect_shape(gradient, &[batch, classes]))
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::WholeBatch
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        5 * operands[0].elements() as u64
    }
}
