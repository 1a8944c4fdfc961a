//! Softmax and cross-entropy of every pixel, with the class that each pixel is predicted to have and the
//! gradient of the logits.

use super::count_labels::expect_label_counts;
use super::loss::is_zero;
use super::loss_scale::expect_loss_scale;
use super::{KernelSpec, Tiling, expect_counts, expect_shape, image_shape};
use crate::{DType, Value};
use serde::{Deserialize, Serialize};

/// What the metrics value (f64) of a loss per pixel holds, in order: mean loss, pixels with a class, pixels
/// whose predicted class is right, sum of the pixels' class weights.
pub const PIXEL_METRICS: [&str; super::METRICS.len()] = ["loss", "pixels", "right", "weight"];

/// The name of the value that holds the class weights of every loss, `[classes]`, in the master precision.
pub const CLASS_WEIGHTS: &str = "loss.class_weights";

/// `(logits [N, K, H, W], labels i32 [N, H, W], class_weights? [K], loss_scale?, label_counts? [K]) ->
/// metrics f64 [4], predictions? i32 [N, H, W], dlogits? [N, K, H, W]`; as an auxiliary loss `(…) updates
/// (metrics) -> dlogits`.
///
/// ```text
/// loss = Σ w(y) · -log softmax(z)[y] / Σ w(y)         over the pixels whose label y is not negative
/// ```
///
/// This is PyTorch's `cross_entropy` with `weight` and `ignore_index`. Without class weights, `w` is 1.
/// Pixels with a negative label count nowhere and get a zero gradient. A batch without a label, or whose
/// labels all weigh nothing, has a loss of 0. With smoothing `s`, the loss of a pixel is, as PyTorch has it,
/// `-(1 - s) · w(y) · log p[y] - s / K · Σₖ w(k) · log p[k]`.
///
/// Where it is a `partial` loss, the pixels are those of a micro-batch or part of a batch, whose
/// [label counts](super::CountLabels) make the divisor: `Σₖ w(k) · counts[k]`. Metrics are added up.
///
/// A pixel is predicted to have the class of its largest logit, the first of equal ones; NaN is never the
/// largest.
///
/// Where it is `scaled`, `dlogits` is multiplied by the loss's scale, see [`LossScale`](super::LossScale);
/// the loss that `metrics` holds is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PixelCrossEntropy {
    /// What an auxiliary loss and its gradient are multiplied by. It is added to the loss that `metrics`
    /// holds; counts stay those of the network's own loss, which has `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auxiliary: Option<f32>,
    /// The share of the target that all classes have equally: at least 0, less than 1.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub smoothing: f32,
    /// Whether classes have weights.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub weighted: bool,
    /// Whether it writes the predicted classes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub predicts: bool,
    /// Whether the gradient is that of a scaled loss.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scaled: bool,
    /// Whether the samples are a part of a batch, by whose label counts the loss is divided.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

impl PixelCrossEntropy {
    /// Positions of operands: `[class weights, loss scale, label counts, metrics, predictions, gradient]`. An
    /// operand that a step does not have shares the position of the next one; a gradient at or past the end
    /// is absent.
    #[must_use]
    pub fn positions(&self) -> [usize; 6] {
        let weights = 2;
        let scale = weights + usize::from(self.weighted);
        let counts = scale + usize::from(self.scaled);
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
            Some(_) if self.predicts => return Err("an auxiliary loss makes no predictions".to_owned()),
            Some(_) => expect_counts(counts, &[[metrics, 1, 1]])?,
        }
        if !(0.0..1.0).contains(&self.smoothing) {
            return Err(format!(
                "labels are smoothed by {}; it must be at least 0 and less than 1",
                self.smoothing
            ));
        }
        let [n, classes, h, w] = image_shape(operands[0])?;
        expect_labels(operands[1], &[n, h, w])?;
        let per_class = operands[weights..scale].iter().chain(&operands[label_counts..metrics]);
        per_class.into_iter().try_for_each(|value| expect_shape(value, &[classes]))?;
        operands[scale..label_counts].iter().try_for_each(|scale| expect_loss_scale(scale))?;
        operands[label_counts..metrics].iter().try_for_each(|counts| expect_label_counts(counts))?;
        expect_shape(operands[metrics], &[PIXEL_METRICS.len()])?;
        if operands[metrics].dtype != DType::F64 {
            return Err(format!("metrics are {}; they should be f64", operands[metrics].dtype));
        }
        operands[predictions..gradient].iter().try_for_each(|classes| expect_labels(classes, &[n, h, w]))?;
        operands.get(gradient).map_or(Ok(()), |gradient| expect_shape(gradient, &[n, classes, h, w]))
    }

    fn tiling(&self) -> Tiling {
        Tiling::Whole
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        5 * operands[0].elements() as u64
    }
}

/// Checks a class for every pixel.
fn expect_labels(value: &Value, shape: &[usize]) -> Result<(), String> {
    if value.dtype != DType::I32 {
        return Err(format!("`{}` is {}, it should be i32", value.name, value.dtype));
    }
    expect_shape(value, shape)
}
