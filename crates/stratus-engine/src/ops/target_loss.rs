//! Losses of several targets per sample: yes-or-no labels by binary cross-entropy, numbers by squared error
//! or Huber loss.

use super::count_labels::expect_label_counts;
use super::loss::is_zero;
use super::loss_scale::expect_loss_scale;
use super::{KernelSpec, METRICS_FIELDS, Tiling, WorkKind, expect_counts, expect_shape};
use crate::{DType, Value};
use serde::{Deserialize, Serialize};

/// Fields of the metrics value (f64) of a [`TargetLoss`]: mean loss over present targets, present targets,
/// score, samples with a present target.
pub const TARGET_METRICS_FIELDS: [&str; METRICS_FIELDS.len()] = ["loss", "targets", "score", "samples"];

/// The number of rows of a [`TargetLoss`]'s weights: of each target, and of its positive labels.
pub const TARGET_WEIGHT_ROWS: usize = 2;

/// The function of one output `z` and its target `y`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetFunction {
    /// `-(y · log σ(z) + (1 - y) · log σ(-z))`, with `y` in [0, 1] and the logistic function σ.
    #[default]
    BinaryCrossEntropy,
    /// `(z - y)²`.
    SquaredError,
    /// `(z - y)² / 2` up to a difference of 1, then `|z - y| - 1/2` (Huber: "Robust estimation of a location
    /// parameter", 1964).
    Huber,
}

impl TargetFunction {
    /// Its name, which is also the kind of its layer.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::BinaryCrossEntropy => "binary_cross_entropy",
            Self::SquaredError => "squared_error",
            Self::Huber => "huber",
        }
    }

    /// Returns whether targets are labels: shares from 0 to 1, with outputs that are logits.
    #[must_use]
    pub fn uses_labels(self) -> bool {
        self == Self::BinaryCrossEntropy
    }
}

/// `(outputs [N, T], targets f32 [N, T], weights? [2, T], loss_scale?, label_counts? [T]) -> metrics f64 [4],
/// gradient? [N, T]`; as an auxiliary loss `(…) updates (metrics) -> gradient`.
///
/// A target of NaN is missing: it has no effect, and the gradient of its output is 0. The loss is the sum
/// over all present targets, divided by their number:
///
/// ```text
/// binary cross-entropy    loss(n, t) = w · (p · y · softplus(-z) + (1 - y) · softplus(z))
///                         dz         = w · ((1 - y) · σ(z) - p · y · σ(-z)) / targets
/// squared error           loss(n, t) = w · (z - y)²           dz = 2 w · (z - y) / targets
/// Huber                   loss(n, t) = w · huber(z - y)       dz = w · clamp(z - y, -1, 1) / targets
/// ```
///
/// The weights of target `t` are `w = weights[0][t]`, and for a positive label `p = weights[1][t]`, which the
/// other functions ignore; without `class_weighted` both are 1. This is PyTorch's `BCEWithLogitsLoss(weight =
/// w, pos_weight = p)`, `MSELoss` and `HuberLoss` over the present targets. A term whose factor is 0 is 0,
/// whatever the output. A batch without present targets has a loss and gradients of 0.
///
/// With smoothing `s`, a label `y` becomes `(1 - s) · y + s / 2`.
///
/// The score of `metrics` is for labels the number of correct outputs: `z > 0` exactly if `y > 1/2`, with `y`
/// before smoothing; NaN is never correct. For numbers it is the sum of `1 - (z - y)²`: with standardised
/// targets, its mean is R². Neither is weighted.
///
/// A label outside of [0, 1] is an error that names the sample; on a GPU the loss is NaN.
///
/// With `partial`, the samples are a micro-batch or part of a batch, and its [label
/// counts](super::CountLabels) give the divisor. Metrics are added up.
///
/// With `loss_scaled`, `gradient` is multiplied by the loss scale, see [`LossScale`](super::LossScale); the
/// loss in `metrics` is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetLoss {
    /// The function of an output and its target.
    pub function: TargetFunction,
    /// The weight of an auxiliary loss and its gradient. It is added to the loss in `metrics`; other fields
    /// are those of the main loss, which has `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auxiliary: Option<f32>,
    /// The factor of the main loss and its gradient beside a [`DistillationLoss`]. `None`: the factor is 1,
    /// or the loss is auxiliary.
    ///
    /// [`DistillationLoss`]: super::DistillationLoss
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub main_weight: Option<f32>,
    /// Label smoothing, in [0, 1); 0 for numbers.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub smoothing: f32,
    /// True if targets have weights.
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

impl TargetLoss {
    /// The factor of the loss and its gradient.
    #[must_use]
    pub fn factor(&self) -> f32 {
        self.auxiliary.or(self.main_weight).unwrap_or(1.0)
    }

    /// Positions of operands: `[weights, loss scale, label counts, metrics, gradient]`. An absent operand
    /// shares the position of the next one; a gradient at or past the end is absent.
    #[must_use]
    pub fn positions(&self) -> [usize; 5] {
        let weights = 2;
        let scale = weights + usize::from(self.class_weighted);
        let counts = scale + usize::from(self.loss_scaled);
        let metrics = counts + usize::from(self.partial);
        [weights, scale, counts, metrics, metrics + 1]
    }
}

impl KernelSpec for TargetLoss {
    fn name(&self) -> &'static str {
        match (self.auxiliary, self.function) {
            (None, function) => function.name(),
            (Some(_), TargetFunction::BinaryCrossEntropy) => "auxiliary_binary_cross_entropy",
            (Some(_), TargetFunction::SquaredError) => "auxiliary_squared_error",
            (Some(_), TargetFunction::Huber) => "auxiliary_huber",
        }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let [at_weights, at_scale, at_counts, inputs, at_gradient] = self.positions();
        match self.auxiliary {
            None => expect_counts(counts, &[[inputs, 0, 1], [inputs, 0, 2]])?,
            Some(_) => expect_counts(counts, &[[inputs, 1, 1]])?,
        }
        if !(0.0..1.0).contains(&self.smoothing) {
            return Err(format!("label smoothing must be in [0, 1), got {}", self.smoothing));
        }
        if self.smoothing > 0.0 && !self.function.uses_labels() {
            return Err(format!("{} has no labels to smooth", self.function.name()));
        }
        let [batch, targets] = operands[0].shape[..] else {
            return Err(format!("outputs: expected [batch, targets], got {:?}", operands[0].shape));
        };
        expect_shape(operands[1], &[batch, targets])?;
        expect_targets(operands[1])?;
        let weights = &operands[at_weights..at_scale];
        weights.iter().try_for_each(|weights| expect_shape(weights, &[TARGET_WEIGHT_ROWS, targets]))?;
        operands[at_scale..at_counts].iter().try_for_each(|scale| expect_loss_scale(scale))?;
        operands[at_counts..inputs].iter().try_for_each(|counts| {
            expect_label_counts(counts)?;
            expect_shape(counts, &[targets])
        })?;
        let metrics = operands[inputs];
        expect_shape(metrics, &[TARGET_METRICS_FIELDS.len()])?;
        if metrics.dtype != DType::F64 {
            return Err(format!("metrics: expected f64, got {}", metrics.dtype));
        }
        operands.get(at_gradient).map_or(Ok(()), |gradient| expect_shape(gradient, &[batch, targets]))
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::WholeBatch
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        let each = if self.function.uses_labels() { 10 } else { 5 };
        each * operands[0].elements() as u64
    }
}

/// Checks the type of targets: f32 in every precision, so that the loader writes one form.
pub(super) fn expect_targets(targets: &Value) -> Result<(), String> {
    if targets.dtype == DType::F32 {
        return Ok(());
    }
    Err(format!("`{}`: expected targets in f32, got {}", targets.name, targets.dtype))
}
