//! How good predictions are, and how much classes weigh: pure functions of class numbers.
//!
//! [`ConfusionMatrix`] counts (truth, prediction) pairs of images or pixels; accuracies and IoU follow from
//! it. [`BoundaryScore`] compares the boundaries of segmentations (boundary F1). [`ClassificationMeasures`]
//! and [`SegmentationMeasures`] are the tables that are shown and stored. [`weights`] has the weights by
//! which losses make up for rare classes.
//!
//! A label below 0 marks what belongs to no class: it is counted nowhere. A measure that does not exist, as
//! the IoU of a class that neither occurs nor is predicted, is `None` and has no part in a mean.
//!
//! All sums are of integers, so that results depend on neither the order of images nor the number of threads.

mod boundary;
mod class_number;
mod confusion;
mod distance;
mod error;
mod summary;
pub mod weights;

pub use boundary::{BoundaryMatches, BoundaryScore, BoundaryWorkspace, Tolerance};
pub use class_number::ClassNumber;
pub use confusion::ConfusionMatrix;
pub use distance::DistanceTransform;
pub use error::MeasureError;
pub use summary::{ClassMeasures, ClassificationMeasures, SegmentationMeasures};

/// The mean of what exists; `None` where nothing does.
fn mean(values: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    let (sum, count) = values.into_iter().flatten().fold((0.0, 0u32), |(sum, n), value| (sum + value, n + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// `part / whole`; `None` where the whole is nothing.
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
