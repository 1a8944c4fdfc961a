//! Tables of metrics, as printed and stored.

use serde::{Deserialize, Serialize};

use crate::ratio::ratio;
use crate::{BoundaryScore, ConfusionMatrix, MetricError};

/// The metrics of a class, a row of `classes.csv`. `None` is null in JSON and empty in CSV.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassMetrics {
    /// The class index.
    pub class: usize,
    /// The class name.
    pub name: String,
    /// The number of images or pixels of the class.
    pub samples: u64,
    /// The share of its samples that was predicted correctly (recall).
    pub accuracy: Option<f64>,
    /// Intersection over union.
    pub iou: Option<f64>,
    /// Boundary F1, averaged over images; only for segmentation.
    pub bf: Option<f64>,
}

/// The metrics of a segmentation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SegmentationMetrics {
    /// Global accuracy: the share of correctly predicted pixels.
    pub accuracy: Option<f64>,
    /// The mean accuracy of the classes.
    pub mean_accuracy: Option<f64>,
    /// The mean IoU of the classes.
    pub miou: Option<f64>,
    /// The mean IoU of the classes, weighted by their pixels.
    pub weighted_iou: Option<f64>,
    /// The mean boundary F1 of the classes.
    pub bf: Option<f64>,
    /// The metrics of each class.
    pub classes: Vec<ClassMetrics>,
}

/// The metrics of a classification.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassificationMetrics {
    /// The share of images whose class has the highest logit.
    pub top1: Option<f64>,
    /// The share of images whose class is among the five highest logits.
    pub top5: Option<f64>,
    /// The mean accuracy of the classes.
    pub mean_accuracy: Option<f64>,
    /// The metrics of each class.
    pub classes: Vec<ClassMetrics>,
}

impl SegmentationMetrics {
    /// Creates the table from the counts of pixels and, if computed, the boundary scores. `name` returns the
    /// name of a class.
    ///
    /// # Errors
    /// If the numbers of classes differ.
    pub fn new(
        pixels: &ConfusionMatrix,
        boundaries: Option<&BoundaryScore>,
        name: impl Fn(usize) -> String,
    ) -> Result<Self, MetricError> {
        if let Some(found) = boundaries.map(BoundaryScore::classes).filter(|&found| found != pixels.classes())
        {
            return Err(MetricError::ClassCountMismatch { classes: pixels.classes(), found });
        }
        let bf = |class| boundaries.and_then(|score| score.class(class));
        Ok(Self {
            accuracy: pixels.accuracy(),
            mean_accuracy: pixels.mean_accuracy(),
            miou: pixels.mean_iou(),
            weighted_iou: pixels.weighted_iou(),
            bf: boundaries.and_then(BoundaryScore::mean),
            classes: classes(pixels, bf, name),
        })
    }
}

impl ClassificationMetrics {
    /// Creates the table from the counts of images. `among_five` is the number of images whose class is among
    /// the five highest logits, if counted. `name` returns the name of a class.
    #[must_use]
    pub fn new(images: &ConfusionMatrix, among_five: Option<u64>, name: impl Fn(usize) -> String) -> Self {
        Self {
            top1: images.accuracy(),
            top5: among_five.and_then(|correct| ratio(correct, images.total())),
            mean_accuracy: images.mean_accuracy(),
            classes: classes(images, |_| None, name),
        }
    }
}

fn classes(
    matrix: &ConfusionMatrix,
    bf: impl Fn(usize) -> Option<f64>,
    name: impl Fn(usize) -> String,
) -> Vec<ClassMetrics> {
    let metrics = |class| ClassMetrics {
        class,
        name: name(class),
        samples: matrix.truth_count(class),
        accuracy: matrix.class_accuracy(class),
        iou: matrix.class_iou(class),
        bf: bf(class),
    };
    (0..matrix.classes()).map(metrics).collect()
}
