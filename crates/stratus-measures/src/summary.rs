//! Measures as they are shown and stored.

use serde::{Deserialize, Serialize};

use crate::{BoundaryScore, ConfusionMatrix, MeasureError};

/// A row of `classes.csv`. What does not exist is `None`: null in JSON, empty in CSV.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassMeasures {
    /// The class's number.
    pub class: usize,
    /// Its name.
    pub name: String,
    /// Its images, or its pixels.
    pub samples: u64,
    /// The share of them that was predicted rightly (recall).
    pub accuracy: Option<f64>,
    /// Intersection over union.
    pub iou: Option<f64>,
    /// Boundary F1, the mean over images; segmentation alone has it.
    pub bf: Option<f64>,
}

/// What a segmentation's validation measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SegmentationMeasures {
    /// Global accuracy: the share of pixels that were predicted rightly.
    pub accuracy: Option<f64>,
    /// The mean of the classes' accuracies.
    pub mean_accuracy: Option<f64>,
    /// The mean of the classes' IoU.
    pub miou: Option<f64>,
    /// The mean of the classes' IoU, weighted by their pixels.
    pub weighted_iou: Option<f64>,
    /// The mean of the classes' boundary F1.
    pub bf: Option<f64>,
    /// Of each class.
    pub classes: Vec<ClassMeasures>,
}

/// What a classification's validation measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassificationMeasures {
    /// The share of images whose class got the highest logit.
    pub top1: Option<f64>,
    /// The share of images whose class was among the five with the highest logits.
    pub top5: Option<f64>,
    /// The mean of the classes' accuracies.
    pub mean_accuracy: Option<f64>,
    /// Of each class.
    pub classes: Vec<ClassMeasures>,
}

impl SegmentationMeasures {
    /// From the counts of pixels and, where they were compared, of boundaries. Classes are called as `name`
    /// says.
    ///
    /// # Errors
    /// Where the two have not the same classes.
    pub fn new(
        pixels: &ConfusionMatrix,
        boundaries: Option<&BoundaryScore>,
        name: impl Fn(usize) -> String,
    ) -> Result<Self, MeasureError> {
        if let Some(found) = boundaries.map(BoundaryScore::classes).filter(|&found| found != pixels.classes())
        {
            return Err(MeasureError::Classes { classes: pixels.classes(), found });
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

impl ClassificationMeasures {
    /// From the counts of images, of which `among_five` had their class among the five highest logits; `None`
    /// where that was not counted. Classes are called as `name` says.
    #[must_use]
    pub fn new(images: &ConfusionMatrix, among_five: Option<u64>, name: impl Fn(usize) -> String) -> Self {
        Self {
            top1: images.accuracy(),
            top5: among_five.and_then(|right| crate::ratio(right, images.total())),
            mean_accuracy: images.mean_accuracy(),
            classes: classes(images, |_| None, name),
        }
    }
}

fn classes(
    matrix: &ConfusionMatrix,
    bf: impl Fn(usize) -> Option<f64>,
    name: impl Fn(usize) -> String,
) -> Vec<ClassMeasures> {
    let measures = |class| ClassMeasures {
        class,
        name: name(class),
        samples: matrix.samples(class),
        accuracy: matrix.class_accuracy(class),
        iou: matrix.class_iou(class),
        bf: bf(class),
    };
    (0..matrix.classes()).map(measures).collect()
}
