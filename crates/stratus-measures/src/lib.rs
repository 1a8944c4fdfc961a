//! Metrics of predictions, and weights of classes, as pure functions of class indices or scores.
//!
//! [`ConfusionMatrix`] counts (truth, prediction) pairs of images or pixels; accuracies and IoU are derived
//! from it. [`BoundaryScore`] compares the boundaries of segmentations (boundary F1).
//! [`ClassificationMetrics`] and [`SegmentationMetrics`] are the tables that are printed and stored.
//! [`weights`] computes class weights for losses on unbalanced data.
//!
//! [`ScoreTable`] gathers the scores of networks with several outputs: yes-or-no labels or numbers.
//! [`LabelScores`] has average precision, ROC AUC and F1 of labels, [`TargetErrors`] the errors of numbers.
//!
//! A class label below 0 is ignored, as is a target that is NaN. An undefined metric, such as the IoU of a
//! class that neither occurs nor is predicted, is `None` and excluded from means.
//!
//! Counts are integers, and average precision adds in the order of scores, so that results depend on neither
//! the order of images nor the number of threads. [`TargetErrors`] sums in the order of samples.

mod boundary;
mod class_index;
mod confusion;
mod distance;
mod error;
mod multilabel;
mod ranking;
mod ratio;
mod regression;
mod score_table;
mod summary;
pub mod weights;
mod worst;

pub use boundary::{BoundaryMatches, BoundaryScore, BoundaryWorkspace, Tolerance};
pub use class_index::ClassIndex;
pub use confusion::ConfusionMatrix;
pub use distance::DistanceTransform;
pub use error::MetricError;
pub use multilabel::{LabelMetrics, LabelScores, ThresholdScores};
pub use ranking::{CurvePoint, LabelRanking, OperatingPoint};
pub use regression::{TargetErrors, TargetMetrics};
pub use score_table::ScoreTable;
pub use summary::{ClassMetrics, ClassificationMetrics, SegmentationMetrics};
pub use worst::Prediction;
