//! The results of an evaluation, by task.

use super::targets::{LogitThresholds, TargetPlots};
use crate::TrainError;
use serde::Serialize;
use std::collections::BTreeMap;
use stratus_measures::{
    ClassMetrics, ClassificationMetrics, ConfusionMatrix, LabelScores, SegmentationMetrics, TargetErrors,
};
use stratus_run::classes::OutputMetrics;

/// The results of evaluating a data set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scores {
    /// Number of labelled images.
    pub samples: u64,
    /// Mean loss, of images or of pixels.
    pub loss: f64,
    /// Metrics by task.
    #[serde(flatten)]
    pub metrics: TaskMetrics,
    /// How often each class (row) was predicted to be each (column); empty for labels and numbers.
    #[serde(skip)]
    pub confusion: ConfusionMatrix,
    /// The logit from which each label applies, for several labels.
    #[serde(skip)]
    pub(crate) thresholds: LogitThresholds,
    /// Curves of labels or points of numbers, if they were requested.
    #[serde(skip)]
    pub(crate) plots: TargetPlots,
}

/// Metrics by task. Fractions are from 0 to 1; undefined ones are `None`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum TaskMetrics {
    /// Metrics of images.
    Classification(ClassificationMetrics),
    /// Metrics of pixels.
    Segmentation(SegmentationMetrics),
    /// Metrics of labels.
    MultiLabel(LabelScores),
    /// Errors of numbers.
    Regression(TargetErrors),
}

impl TaskMetrics {
    /// The measure by which networks are compared, the higher the better: top-1 accuracy, mean IoU, mean
    /// average precision or R².
    #[must_use]
    pub fn score(&self) -> Option<f64> {
        match self {
            Self::Classification(metrics) => metrics.top1,
            Self::Segmentation(metrics) => metrics.miou,
            Self::MultiLabel(metrics) => metrics.mean_average_precision,
            Self::Regression(metrics) => metrics.r2,
        }
    }

    /// The measures of the whole data set by the names of their columns.
    #[must_use]
    pub fn measures(&self) -> BTreeMap<&'static str, Option<f64>> {
        match self {
            Self::Classification(metrics) => BTreeMap::from([
                ("top1", metrics.top1),
                ("top5", metrics.top5),
                ("mean_accuracy", metrics.mean_accuracy),
            ]),
            Self::Segmentation(metrics) => BTreeMap::from([
                ("accuracy", metrics.accuracy),
                ("mean_accuracy", metrics.mean_accuracy),
                ("miou", metrics.miou),
                ("weighted_iou", metrics.weighted_iou),
                ("bf", metrics.bf),
            ]),
            Self::MultiLabel(metrics) => BTreeMap::from([
                ("label_accuracy", metrics.at_default.accuracy),
                ("map", metrics.mean_average_precision),
                ("auc", metrics.mean_auc),
                ("f1", metrics.at_chosen.macro_f1),
                ("micro_f1", metrics.at_chosen.micro_f1),
                ("exact_match", metrics.at_chosen.exact_match),
            ]),
            Self::Regression(metrics) => {
                BTreeMap::from([("r2", metrics.r2), ("mae", metrics.mae), ("rmse", metrics.rmse)])
            }
        }
    }
}

impl Scores {
    /// Checks that the loss is finite: else the network's outputs are not, and the metrics mean nothing.
    ///
    /// # Errors
    /// If it is NaN or infinite.
    pub fn check_finite(self) -> Result<Self, TrainError> {
        if self.loss.is_finite() {
            return Ok(self);
        }
        let problem = format!(
            "the loss is {}: the network's outputs are not finite, so they have no metrics",
            self.loss
        );
        Err(TrainError::OutputsNotFinite { problem })
    }

    /// The fraction of correct predictions, of images, of pixels or of labels; R² of numbers.
    #[must_use]
    pub fn accuracy(&self) -> Option<f64> {
        match &self.metrics {
            TaskMetrics::Classification(measures) => measures.top1,
            TaskMetrics::Segmentation(measures) => measures.accuracy,
            TaskMetrics::MultiLabel(measures) => measures.at_default.accuracy,
            TaskMetrics::Regression(measures) => measures.r2,
        }
    }

    /// The metrics of each class; none for labels and numbers.
    #[must_use]
    pub fn classes(&self) -> &[ClassMetrics] {
        match &self.metrics {
            TaskMetrics::Classification(measures) => &measures.classes,
            TaskMetrics::Segmentation(measures) => &measures.classes,
            TaskMetrics::MultiLabel(_) | TaskMetrics::Regression(_) => &[],
        }
    }

    /// The metrics of each class, label or target.
    #[must_use]
    pub fn outputs(&self) -> OutputMetrics {
        let outputs = OutputMetrics { classes: self.classes().to_vec(), ..OutputMetrics::default() };
        match &self.metrics {
            TaskMetrics::Classification(_) | TaskMetrics::Segmentation(_) => outputs,
            TaskMetrics::MultiLabel(measures) => OutputMetrics { labels: measures.labels.clone(), ..outputs },
            TaskMetrics::Regression(measures) => {
                OutputMetrics { targets: measures.targets.clone(), ..outputs }
            }
        }
    }
}
