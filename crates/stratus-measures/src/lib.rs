//! Metrics of predictions and weights of classes, as pure functions of class indices.
//!
//! [`ConfusionMatrix`] counts (truth, prediction) pairs of images or pixels; accuracies and IoU are derived
//! from it. [`BoundaryScore`] compares the boundaries of segmentations (boundary F1).
//! [`ClassificationMetrics`] and [`SegmentationMetrics`] are the tables that are printed and stored.
//! [`weights`] computes class weights for losses on unbalanced data.
//!
//! A label below 0 is ignored. An undefined metric, such as the IoU of a class that neither occurs nor is
//! predicted, is `None` and excluded from means.
//!
//! All sums are of integers, so that results depend on neither the order of images nor the number of threads.

mod boundary;
mod class_index;
mod confusion;
mod distance;
mod error;
mod ratio;
mod summary;
pub mod weights;

pub use boundary::{BoundaryMatches, BoundaryScore, BoundaryWorkspace, Tolerance};
pub use class_index::ClassIndex;
pub use confusion::ConfusionMatrix;
pub use distance::DistanceTransform;
pub use error::MetricError;
pub use summary::{ClassMetrics, ClassificationMetrics, SegmentationMetrics};
