//! Counts of (truth, prediction) pairs, and the measures that follow from them.

use serde::{Deserialize, Serialize};

use crate::class_number::{ClassNumber, check};
use crate::{MeasureError, mean, ratio};

/// How often each class was predicted for each class: of images, or of pixels.
///
/// Where a class does not occur its accuracy does not exist, where it is never predicted its precision does
/// not, and where neither happens its IoU does not: these are `None`, and means are those of the classes that
/// have the measure. So they are in torchmetrics (1.9, `MulticlassJaccardIndex`, macro average).
/// scikit-learn's `jaccard_score` has the same mean for the labels that it finds in the data; where `labels`
/// are given, an absent one counts as `zero_division`. MATLAB's `evaluateSemanticSegmentation` defines the
/// same ratios; its manual leaves open what becomes of an absent class. A class that is predicted and does
/// not occur has an IoU of 0, which counts.
///
/// Serialised it is its rows, `counts[truth][prediction]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<Vec<u64>>", try_from = "Vec<Vec<u64>>")]
pub struct ConfusionMatrix {
    classes: usize,
    /// `[truth, prediction]`, row-major.
    counts: Vec<u64>,
}

impl ConfusionMatrix {
    /// Without any counts.
    #[must_use]
    pub fn new(classes: usize) -> Self {
        Self { classes, counts: vec![0; classes * classes] }
    }

    /// How many classes there are.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// How often `prediction` was predicted for `truth`; 0 where either is beyond the classes.
    #[must_use]
    pub fn count(&self, truth: usize, prediction: usize) -> u64 {
        if truth.max(prediction) < self.classes { self.counts[truth * self.classes + prediction] } else { 0 }
    }

    /// The rows, one per true class: how often each class was predicted.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[u64]> {
        // A matrix of no classes has no rows, and chunks have at least one element.
        self.counts.chunks_exact(self.classes.max(1))
    }

    /// Counts a batch of images, or an image's pixels. Labels below 0 are passed over.
    ///
    /// # Errors
    /// Where a label or a prediction (that of an ignored label too) is beyond the classes, or there is not a
    /// prediction for every label. Nothing is counted then.
    pub fn add<P: ClassNumber>(&mut self, labels: &[i32], predictions: &[P]) -> Result<(), MeasureError> {
        check(labels, predictions, self.classes)?;
        for (&label, prediction) in labels.iter().zip(predictions) {
            if label >= 0 {
                self.counts[label as usize * self.classes + prediction.index()] += 1;
            }
        }
        Ok(())
    }

    /// Adds another's counts.
    ///
    /// # Errors
    /// Where it has other classes.
    pub fn merge(&mut self, other: &Self) -> Result<(), MeasureError> {
        if self.classes != other.classes {
            return Err(MeasureError::Classes { classes: self.classes, found: other.classes });
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        Ok(())
    }

    /// Forgets all counts.
    pub fn clear(&mut self) {
        self.counts.fill(0);
    }

    /// All that was counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What was predicted rightly.
    #[must_use]
    pub fn correct(&self) -> u64 {
        (0..self.classes).map(|class| self.count(class, class)).sum()
    }

    /// Images or pixels of a class.
    #[must_use]
    pub fn samples(&self, class: usize) -> u64 {
        (0..self.classes).map(|prediction| self.count(class, prediction)).sum()
    }

    /// Images or pixels that were taken for a class.
    #[must_use]
    pub fn predicted(&self, class: usize) -> u64 {
        (0..self.classes).map(|truth| self.count(truth, class)).sum()
    }

    /// Global accuracy: the share that was predicted rightly. `None` where nothing was counted.
    #[must_use]
    pub fn accuracy(&self) -> Option<f64> {
        ratio(self.correct(), self.total())
    }

    /// A class's accuracy, which is its recall: what was predicted rightly among what belongs to it. `None`
    /// where nothing does.
    #[must_use]
    pub fn class_accuracy(&self, class: usize) -> Option<f64> {
        ratio(self.count(class, class), self.samples(class))
    }

    /// A class's precision: what was predicted rightly among what was taken for it. `None` where nothing was.
    #[must_use]
    pub fn class_precision(&self, class: usize) -> Option<f64> {
        ratio(self.count(class, class), self.predicted(class))
    }

    /// A class's intersection over union: what was predicted rightly among what belongs to it or was taken
    /// for it. `None` where nothing was.
    #[must_use]
    pub fn class_iou(&self, class: usize) -> Option<f64> {
        let both = self.count(class, class);
        ratio(both, self.samples(class) + self.predicted(class) - both)
    }

    /// The mean of the accuracies of classes that occur.
    #[must_use]
    pub fn mean_accuracy(&self) -> Option<f64> {
        mean((0..self.classes).map(|class| self.class_accuracy(class)))
    }

    /// The mean of the IoU of classes that occur or are predicted.
    #[must_use]
    pub fn mean_iou(&self) -> Option<f64> {
        mean((0..self.classes).map(|class| self.class_iou(class)))
    }

    /// The mean of IoU weighted by how frequent classes are in truth (Long et al., "Fully convolutional
    /// networks for semantic segmentation", 2015).
    #[must_use]
    pub fn weighted_iou(&self) -> Option<f64> {
        let total = self.total();
        let share = |class| self.class_iou(class).map_or(0.0, |iou| self.samples(class) as f64 * iou);
        (total > 0).then(|| (0..self.classes).map(share).sum::<f64>() / total as f64)
    }
}

impl From<ConfusionMatrix> for Vec<Vec<u64>> {
    fn from(matrix: ConfusionMatrix) -> Self {
        matrix.rows().map(<[u64]>::to_vec).collect()
    }
}

impl TryFrom<Vec<Vec<u64>>> for ConfusionMatrix {
    type Error = MeasureError;

    fn try_from(rows: Vec<Vec<u64>>) -> Result<Self, MeasureError> {
        let classes = rows.len();
        match rows.iter().position(|row| row.len() != classes) {
            Some(row) => Err(MeasureError::Row { row, classes, found: rows[row].len() }),
            None => Ok(Self { classes, counts: rows.into_iter().flatten().collect() }),
        }
    }
}
