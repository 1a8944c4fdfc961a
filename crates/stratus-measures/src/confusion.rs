//! Counts of (truth, prediction) pairs, and the metrics derived from them.

use serde::{Deserialize, Serialize};

use crate::MetricError;
use crate::class_index::{ClassIndex, check_classes};
use crate::ratio::{mean, ratio};

/// A confusion matrix: for every true class, the number of images or pixels predicted as each class.
///
/// The accuracy of a class that does not occur is `None`, as is the precision of a class that is never
/// predicted and the IoU of a class to which both apply. Means exclude `None`, like torchmetrics (1.9,
/// `MulticlassJaccardIndex`, macro average) and like scikit-learn's `jaccard_score` without `labels`; with
/// `labels` it counts an absent class as `zero_division`. MATLAB's `evaluateSemanticSegmentation` defines the
/// same ratios, but its manual does not specify absent classes. A class that is predicted but does not occur
/// has an IoU of 0, which counts.
///
/// It is serialised as its rows, `counts[truth][prediction]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<Vec<u64>>", try_from = "Vec<Vec<u64>>")]
pub struct ConfusionMatrix {
    classes: usize,
    /// `[truth, prediction]`, row-major.
    counts: Vec<u64>,
}

impl ConfusionMatrix {
    /// Creates a matrix of zeros.
    #[must_use]
    pub fn new(classes: usize) -> Self {
        Self { classes, counts: vec![0; classes * classes] }
    }

    /// The number of classes.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The number of times that `prediction` was predicted for `truth`; 0 if either is out of range.
    #[must_use]
    pub fn count(&self, truth: usize, prediction: usize) -> u64 {
        if truth.max(prediction) < self.classes { self.counts[truth * self.classes + prediction] } else { 0 }
    }

    /// The rows, one per true class, with the count of each predicted class.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[u64]> {
        // `chunks_exact` panics on 0, which a matrix without classes would pass.
        self.counts.chunks_exact(self.classes.max(1))
    }

    /// Counts a batch of images, or the pixels of an image. Labels below 0 are ignored.
    ///
    /// # Errors
    /// If a label or prediction is out of range, including the prediction of an ignored label, or if the
    /// numbers of labels and predictions differ. Nothing is counted then.
    pub fn add<P: ClassIndex>(&mut self, labels: &[i32], predictions: &[P]) -> Result<(), MetricError> {
        check_classes(labels, predictions, self.classes)?;
        for (&label, prediction) in labels.iter().zip(predictions) {
            if label >= 0 {
                self.counts[label as usize * self.classes + prediction.as_index()] += 1;
            }
        }
        Ok(())
    }

    /// Adds the counts of another matrix.
    ///
    /// # Errors
    /// If the number of classes differs.
    pub fn merge(&mut self, other: &Self) -> Result<(), MetricError> {
        if self.classes != other.classes {
            return Err(MetricError::ClassCountMismatch { classes: self.classes, found: other.classes });
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        Ok(())
    }

    /// Resets all counts to 0.
    pub fn clear(&mut self) {
        self.counts.fill(0);
    }

    /// The number of images or pixels.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The number of correctly predicted images or pixels.
    #[must_use]
    pub fn correct(&self) -> u64 {
        (0..self.classes).map(|class| self.count(class, class)).sum()
    }

    /// The number of images or pixels of a class.
    #[must_use]
    pub fn truth_count(&self, class: usize) -> u64 {
        (0..self.classes).map(|prediction| self.count(class, prediction)).sum()
    }

    /// The number of images or pixels predicted as a class.
    #[must_use]
    pub fn predicted_count(&self, class: usize) -> u64 {
        (0..self.classes).map(|truth| self.count(truth, class)).sum()
    }

    /// The global accuracy: the share of correct predictions. `None` if nothing was counted.
    #[must_use]
    pub fn accuracy(&self) -> Option<f64> {
        ratio(self.correct(), self.total())
    }

    /// The accuracy (recall) of a class: the share of its images or pixels that was predicted correctly.
    /// `None` if the class does not occur.
    #[must_use]
    pub fn class_accuracy(&self, class: usize) -> Option<f64> {
        ratio(self.count(class, class), self.truth_count(class))
    }

    /// The precision of a class: the share of its predictions that is correct. `None` if it is never
    /// predicted.
    #[must_use]
    pub fn class_precision(&self, class: usize) -> Option<f64> {
        ratio(self.count(class, class), self.predicted_count(class))
    }

    /// The intersection over union of a class: its correct predictions divided by everything that belongs to
    /// it or was predicted as it. `None` if the class neither occurs nor is predicted.
    #[must_use]
    pub fn class_iou(&self, class: usize) -> Option<f64> {
        let both = self.count(class, class);
        ratio(both, self.truth_count(class) + self.predicted_count(class) - both)
    }

    /// The mean accuracy of the classes that occur.
    #[must_use]
    pub fn mean_accuracy(&self) -> Option<f64> {
        mean((0..self.classes).map(|class| self.class_accuracy(class)))
    }

    /// The mean IoU of the classes that occur or are predicted.
    #[must_use]
    pub fn mean_iou(&self) -> Option<f64> {
        mean((0..self.classes).map(|class| self.class_iou(class)))
    }

    /// The mean IoU weighted by the true frequency of the classes (Long et al., "Fully convolutional networks
    /// for semantic segmentation", 2015).
    #[must_use]
    pub fn weighted_iou(&self) -> Option<f64> {
        let total = self.total();
        let share = |class| self.class_iou(class).map_or(0.0, |iou| self.truth_count(class) as f64 * iou);
        (total > 0).then(|| (0..self.classes).map(share).sum::<f64>() / total as f64)
    }
}

impl From<ConfusionMatrix> for Vec<Vec<u64>> {
    fn from(matrix: ConfusionMatrix) -> Self {
        matrix.rows().map(<[u64]>::to_vec).collect()
    }
}

impl TryFrom<Vec<Vec<u64>>> for ConfusionMatrix {
    type Error = MetricError;

    fn try_from(rows: Vec<Vec<u64>>) -> Result<Self, MetricError> {
        let classes = rows.len();
        match rows.iter().position(|row| row.len() != classes) {
            Some(row) => Err(MetricError::RowLength { row, classes, found: rows[row].len() }),
            None => Ok(Self { classes, counts: rows.into_iter().flatten().collect() }),
        }
    }
}
