//! Softmax and cross-entropy of every pixel, with the predicted class of each pixel and the gradient of the
//! logits.

use super::count_labels::expect_label_counts;
use super::loss::is_zero;
use super::loss_scale::expect_loss_scale;
use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_shape, image_shape};
use crate::{DType, Value};
use serde::{Deserialize, Serialize};

/// Fields of the metrics value (f64) of a per-pixel loss: mean loss, pixels with a class, correctly predicted
/// pixels, sum of the pixels' class weights.
pub const PIXEL_METRICS_FIELDS: [&str; super::METRICS_FIELDS.len()] = ["loss", "pixels", "right", "weight"];

/// The name of the class weights' value, `[classes]`, in the master precision.
pub const CLASS_WEIGHTS: &str = "loss.class_weights";

/// The number of classes of a network with one output channel: background and foreground.
pub const BINARY_CLASSES: usize = 2;

/// `(logits [N, K, H, W], labels i32 [N, H, W], class_weights? [K], loss_scale?, label_counts? [K]) ->
/// metrics f64 [4], predictions? i32 [N, H, W], dlogits? [N, K, H, W]`; as an auxiliary loss `(…) updates
/// (metrics) -> dlogits`.
///
/// ```text
/// loss = Σ w(y) · -log softmax(z)[y] / Σ w(y)         over the pixels whose label y is not negative
/// ```
///
/// This is PyTorch's `cross_entropy` with `weight` and `ignore_index`. Without class weights, `w` is 1.
/// Pixels with a negative label are ignored and get a zero gradient. A batch without labels, or whose labels
/// all have weight 0, has a loss of 0. With smoothing `s`, the loss of a pixel is, as in PyTorch, `-(1 - s) ·
/// w(y) · log p[y] - s / K · Σₖ w(k) · log p[k]`.
///
/// With `partial`, the pixels are those of a micro-batch or part of a batch, and its [label
/// counts](super::CountLabels) give the divisor `Σₖ w(k) · counts[k]`. Metrics are added up.
///
/// The predicted class of a pixel is that of its largest logit, the first of equal ones; NaN is never the
/// largest.
///
/// With `binary`, logits are `[N, 1, H, W]` of two classes: class 0 has the logit 0, class 1 the output. The
/// loss is then the binary cross-entropy of the output. Class weights and label counts have two elements;
/// everything is computed as for two logits, of which only the second has a gradient.
///
/// With `loss_scaled`, `dlogits` is multiplied by the loss scale, see [`LossScale`](super::LossScale); the
/// loss in `metrics` is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PixelCrossEntropy {
    /// The weight of an auxiliary loss and its gradient. It is added to the loss in `metrics`; counts are
    /// those of the main loss, which has `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auxiliary: Option<f32>,
    /// The weight of the main loss and its gradient, beside that of a [`DistillationLoss`]; `None` for 1, and
    /// for an auxiliary loss.
    ///
    /// [`DistillationLoss`]: super::DistillationLoss
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub main_weight: Option<f32>,
    /// Label smoothing: the share of the target that is distributed equally over all classes, in [0, 1).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub smoothing: f32,
    /// True if classes have weights.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "weighted")]
    pub class_weighted: bool,
    /// True if one logit decides between two classes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub binary: bool,
    /// True if it writes the predicted classes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub predicts: bool,
    /// True if the loss is scaled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "scaled")]
    pub loss_scaled: bool,
    /// True if the samples are a part of a batch, whose label counts divide the loss.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

impl PixelCrossEntropy {
    /// The factor of the loss and its gradient.
    #[must_use]
    pub fn factor(&self) -> f32 {
        self.auxiliary.or(self.main_weight).unwrap_or(1.0)
    }

    /// The number of classes of a map of logits with `channels` channels.
    #[must_use]
    pub fn classes(&self, channels: usize) -> usize {
        if self.binary { BINARY_CLASSES } else { channels }
    }

    /// Positions of operands: `[class weights, loss scale, label counts, metrics, predictions, gradient]`. An
    /// absent operand shares the position of the next one; a gradient at or past the end is absent.
    #[must_use]
    pub fn positions(&self) -> [usize; 6] {
        let weights = 2;
        let scale = weights + usize::from(self.class_weighted);
        let counts = scale + usize::from(self.loss_scaled);
        let metrics = counts + usize::from(self.partial);
        let predictions = metrics + 1;
        [weights, scale, counts, metrics, predictions, predictions + usize::from(self.predicts)]
    }
}

impl KernelSpec for PixelCrossEntropy {
    fn name(&self) -> &'static str {
        if self.auxiliary.is_some() { "auxiliary_pixel_cross_entropy" } else { "pixel_cross_entropy" }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let [weights, scale, label_counts, metrics, predictions, gradient] = self.positions();
        let predicted = usize::from(self.predicts);
        match self.auxiliary {
            None => expect_counts(counts, &[[metrics, 0, 1 + predicted], [metrics, 0, 2 + predicted]])?,
            Some(_) if self.predicts => return Err("an auxiliary loss has no predictions".to_owned()),
            Some(_) => expect_counts(counts, &[[metrics, 1, 1]])?,
        }
        if !(0.0..1.0).contains(&self.smoothing) {
            return Err(format!("label smoothing must be in [0, 1), got {}", self.smoothing));
        }
        let [n, channels, h, w] = image_shape(operands[0])?;
        if self.binary && channels != 1 {
            return Err(format!("binary cross-entropy of a pixel needs one logit, got {channels}"));
        }
        let classes = self.classes(channels);
        expect_labels(operands[1], &[n, h, w])?;
        let per_class = operands[weights..scale].iter().chain(&operands[label_counts..metrics]);
        per_class.into_iter().try_for_each(|value| expect_shape(value, &[classes]))?;
        operands[scale..label_counts].iter().try_for_each(|scale| expect_loss_scale(scale))?;
        operands[label_counts..metrics].iter().try_for_each(|counts| expect_label_counts(counts))?;
        expect_shape(operands[metrics], &[PIXEL_METRICS_FIELDS.len()])?;
        if operands[metrics].dtype != DType::F64 {
            return Err(format!("metrics: expected f64, got {}", operands[metrics].dtype));
        }
        operands[predictions..gradient].iter().try_for_each(|classes| expect_labels(classes, &[n, h, w]))?;
        operands.get(gradient).map_or(Ok(()), |gradient| expect_shape(gradient, &[n, channels, h, w]))
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

/// Checks per-pixel labels.
fn expect_labels(value: &Value, shape: &[usize]) -> Result<(), String> {
    if value.dtype != DType::I32 {
        return Err(format!("`{}`: expected i32, got {}", value.name, value.dtype));
    }
    expect_shape(value, shape)
}
