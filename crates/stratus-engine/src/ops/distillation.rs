//! The loss of a network that learns from the outputs of another one, its teacher.

use super::count_labels::expect_label_counts;
use super::labels::MIXED_LABEL_LEN;
use super::loss_scale::expect_loss_scale;
use super::pixel_loss::BINARY_CLASSES;
use super::{KernelSpec, METRICS_FIELDS, Tiling, WorkKind, expect_counts, expect_same_shape, expect_shape};
use crate::{DType, Value};
use serde::{Deserialize, Serialize};

/// How a network's outputs are compared with those of its teacher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DistillationFunction {
    /// The divergence of two distributions over all classes.
    #[default]
    Softmax,
    /// The divergence of two probabilities for each logit.
    Sigmoid,
    /// The squared difference of numbers.
    SquaredError,
}

impl DistillationFunction {
    /// Returns whether it is the default, which is not stored.
    fn is_softmax(&self) -> bool {
        *self == Self::Softmax
    }
}

/// `(logits, teacher's logits, labels, loss_scale?, label_counts? [K]) updates (metrics f64 [4], dlogits)`,
/// with logits `[N, K]` and labels `[N]`, or logits `[N, K, H, W]` and labels `[N, H, W]`.
///
/// The divergence of the two softened distributions (Hinton et al., "Distilling the knowledge in a neural
/// network", 2015), added to the loss in `metrics` and to the gradient of the main loss:
///
/// ```text
/// p = softmax(t / T)      q = softmax(z / T)
/// loss += weight · T² · mean Σₖ p(k) (log p(k) - log q(k))          dz += weight · T · (q - p) / samples
/// ```
///
/// The factor `T²` keeps the gradients of different temperatures comparable (section 2.1 of the paper). The
/// mean is over the samples or pixels whose label is not negative; classes have no weights. Those with a
/// negative label are ignored, as in the main loss.
///
/// The other functions compare each logit on its own: logits and labels are `[N, T]`, labels f32, and label
/// counts `[T]`, as in [`TargetLoss`](super::TargetLoss), or [`Sigmoid`](DistillationFunction::Sigmoid) for a
/// [binary loss per pixel](super::PixelCrossEntropy), with `K = 1` and label counts `[2]`. Sums are over the
/// present targets or labelled pixels, `count` is their number:
///
/// ```text
/// Sigmoid         p = σ(t / T)      q = σ(z / T)
///                 loss += weight · T² · Σ (p log(p / q) + (1 - p) log((1 - p) / (1 - q))) / count
///                 dz   += weight · T · (q - p) / count
/// SquaredError    loss += weight · Σ (z - t)² / count       dz += 2 weight · (z - t) / count
/// ```
///
/// With `mixed_labels`, labels are `[N, 3]`, see [`MIXED_LABEL_LEN`]; the teacher has seen the mixed image.
///
/// With `partial`, the samples are a part of a batch, and its [label counts](super::CountLabels) give the
/// divisor. With `loss_scaled`, what is added to `dlogits` is multiplied by the loss scale.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DistillationLoss {
    /// The function of both outputs.
    #[serde(default, skip_serializing_if = "DistillationFunction::is_softmax")]
    pub function: DistillationFunction,
    /// The weight of the divergence in the loss, finite and at least 0.
    pub weight: f32,
    /// `T`, finite and above 0.
    pub temperature: f32,
    /// True if samples have two classes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mixed_labels: bool,
    /// True if the loss is scaled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub loss_scaled: bool,
    /// True if the samples are a part of a batch, whose label counts divide the loss.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

impl DistillationLoss {
    /// Positions of operands: `[loss scale, label counts, metrics, gradient]`. An absent operand shares the
    /// position of the next one.
    #[must_use]
    pub fn positions(&self) -> [usize; 4] {
        let scale = 3;
        let counts = scale + usize::from(self.loss_scaled);
        let metrics = counts + usize::from(self.partial);
        [scale, counts, metrics, metrics + 1]
    }

    /// The shape and type of labels, and the length of label counts, for logits of a shape.
    fn label_form(&self, logits: &[usize]) -> Result<(Vec<usize>, DType, usize), String> {
        let is_softmax = self.function.is_softmax();
        match (logits, self.mixed_labels) {
            (&[n, classes], false) if is_softmax => Ok((vec![n], DType::I32, classes)),
            (&[n, classes], true) if is_softmax => Ok((vec![n, MIXED_LABEL_LEN], DType::I32, classes)),
            (&[n, classes, h, w], false) if is_softmax => Ok((vec![n, h, w], DType::I32, classes)),
            (&[n, targets], false) => Ok((vec![n, targets], DType::F32, targets)),
            (&[n, 1, h, w], false) if self.function == DistillationFunction::Sigmoid => {
                Ok((vec![n, h, w], DType::I32, BINARY_CLASSES))
            }
            (shape, _) if is_softmax => {
                Err(format!("logits: expected [N, K] or [N, K, H, W], got {shape:?}"))
            }
            (shape, _) => Err(format!("logits: expected [N, T] or [N, 1, H, W], got {shape:?}")),
        }
    }

    /// The distance between the labels of neighbouring samples, in elements.
    #[must_use]
    pub fn label_stride(&self) -> usize {
        if self.mixed_labels { MIXED_LABEL_LEN } else { 1 }
    }
}

impl KernelSpec for DistillationLoss {
    fn name(&self) -> &'static str {
        "distillation_loss"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let [at_scale, at_counts, inputs, at_gradient] = self.positions();
        expect_counts(counts, &[[inputs, 2, 0]])?;
        if !(self.temperature.is_finite() && self.temperature > 0.0) {
            return Err(format!("the temperature must be above 0, got {}", self.temperature));
        }
        if !(self.weight.is_finite() && self.weight >= 0.0) {
            return Err(format!("the weight must be at least 0, got {}", self.weight));
        }
        let (logits, labels, metrics) = (operands[0], operands[2], operands[inputs]);
        let (label_shape, label_type, classes) = self.label_form(&logits.shape)?;
        expect_same_shape(logits, operands[1])?;
        expect_same_shape(logits, operands[at_gradient])?;
        expect_shape(labels, &label_shape)?;
        expect_shape(metrics, &[METRICS_FIELDS.len()])?;
        if labels.dtype != label_type || metrics.dtype != DType::F64 {
            return Err(format!(
                "expected labels {label_type} and metrics f64, got {} and {}",
                labels.dtype, metrics.dtype
            ));
        }
        if logits.dtype != operands[1].dtype {
            return Err(format!(
                "logits and those of the teacher differ in type: {} and {}",
                logits.dtype, operands[1].dtype
            ));
        }
        operands[at_scale..at_counts].iter().try_for_each(|scale| expect_loss_scale(scale))?;
        operands[at_counts..inputs].iter().try_for_each(|counts| {
            expect_label_counts(counts)?;
            expect_shape(counts, &[classes])
        })
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::WholeBatch
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        10 * operands[0].elements() as u64
    }
}
