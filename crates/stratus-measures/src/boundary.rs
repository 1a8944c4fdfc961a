//! Boundary F1, the agreement of the boundaries of two segmentations.

use std::iter::zip;

use serde::{Deserialize, Serialize};

use crate::class_index::{ClassIndex, check_classes};
use crate::ratio::{mean, ratio};
use crate::{DistanceTransform, MetricError};

/// The largest Euclidean distance at which a boundary pixel counts as matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tolerance {
    /// 0.75 % of the image's diagonal, as in the paper and in MATLAB's `bfscore`.
    #[default]
    Diagonal,
    /// A distance in pixels.
    Pixels(f64),
}

impl Tolerance {
    /// The largest squared distance within the tolerance. Squared distances between pixels are integers.
    #[must_use]
    pub fn max_squared_distance(self, [height, width]: [usize; 2]) -> u64 {
        match self {
            // 0.75 % is 3/400. Integers keep a distance of exactly the tolerance within it.
            Self::Diagonal => {
                let diagonal = (height as u128).pow(2) + (width as u128).pow(2);
                u64::try_from(9 * diagonal / 160_000).unwrap_or(u64::MAX)
            }
            // The conversion saturates: NaN and negative values become 0.
            Self::Pixels(pixels) => (pixels.max(0.0) * pixels).floor() as u64,
        }
    }
}

/// The matched boundary pixels of one class in one image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoundaryMatches {
    /// Pixels of the true boundary.
    pub truth: u64,
    /// Pixels of the true boundary with a predicted boundary within the tolerance.
    pub truth_matched: u64,
    /// Pixels of the predicted boundary.
    pub predicted: u64,
    /// Pixels of the predicted boundary with a true boundary within the tolerance.
    pub predicted_matched: u64,
}

impl BoundaryMatches {
    /// The share of the predicted boundary that matches a true one. `None` if the class is not predicted.
    #[must_use]
    pub fn precision(&self) -> Option<f64> {
        ratio(self.predicted_matched, self.predicted)
    }

    /// The share of the true boundary that matches a predicted one. `None` if the class does not occur.
    #[must_use]
    pub fn recall(&self) -> Option<f64> {
        ratio(self.truth_matched, self.truth)
    }

    /// The harmonic mean of precision and recall. It is 0 if nothing matches or if the class only occurs or
    /// is only predicted, and `None` if the class neither occurs nor is predicted.
    #[must_use]
    pub fn f1(&self) -> Option<f64> {
        match (self.precision(), self.recall()) {
            (None, None) => None,
            (Some(precision), Some(recall)) if precision + recall > 0.0 => {
                Some(2.0 * precision * recall / (precision + recall))
            }
            _ => Some(0.0),
        }
    }
}

/// Boundary F1 of every class over a number of images (Csurka, Larlus and Perronnin, "What is a good
/// evaluation measure for semantic segmentation?", BMVC 2013), the score of MATLAB's `bfscore`.
///
/// - A pixel is on the boundary of its class if one of its 4 neighbours has another class or is outside the
///   image. This is the 8-connected contour that MATLAB's `bwboundaries` traces; the manual of `bfscore` does
///   not specify the contour.
/// - A boundary pixel is matched if the other boundary has a pixel within the tolerance.
/// - Pixels with a negative label are ignored in truth and prediction. They count as another class than their
///   neighbours, so a class that meets them has a boundary there.
/// - The score of a class is the mean over the images in which it occurs or is predicted, like `MeanBFScore`
///   of MATLAB's class metrics. An image in which it only occurs or is only predicted scores 0.
/// - The overall score is the mean over the classes that have a score.
///
/// Scores are summed as multiples of 2⁻⁴⁰, so that the sum does not depend on the order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BoundaryScore {
    tolerance: Tolerance,
    classes: Vec<ClassScores>,
}

/// The sum of the scores of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ClassScores {
    /// Images in which the class occurs or is predicted.
    images: u64,
    /// The sum of the images' scores, in units of 2⁻⁴⁰.
    sum: u64,
}

/// The reciprocal of the unit of [`ClassScores::sum`].
const SUM_UNIT: f64 = (1u64 << 40) as f64;

impl BoundaryScore {
    /// Creates a score without images, with the default tolerance.
    #[must_use]
    pub fn new(classes: usize) -> Self {
        Self::with_tolerance(classes, Tolerance::default())
    }

    /// Creates a score without images.
    #[must_use]
    pub fn with_tolerance(classes: usize, tolerance: Tolerance) -> Self {
        Self { tolerance, classes: vec![ClassScores::default(); classes] }
    }

    /// The number of classes.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.classes.len()
    }

    /// Adds an image of `[height, width]` pixels, row-major. Allocates only if the workspace has not seen an
    /// image of this size before.
    ///
    /// # Errors
    /// If a label or prediction is out of range, or their number differs from the number of pixels. Nothing
    /// is added then.
    pub fn add<P: ClassIndex>(
        &mut self,
        labels: &[i32],
        predictions: &[P],
        size: [usize; 2],
        workspace: &mut BoundaryWorkspace,
    ) -> Result<(), MetricError> {
        let found = workspace.compare(labels, predictions, size, self.classes.len(), self.tolerance)?;
        for (scores, found) in zip(&mut self.classes, found) {
            if let Some(f1) = found.f1() {
                scores.images += 1;
                scores.sum += (f1 * SUM_UNIT).round() as u64;
            }
        }
        Ok(())
    }

    /// Adds the images of another score.
    ///
    /// # Errors
    /// If the number of classes or the tolerance differs.
    pub fn merge(&mut self, other: &Self) -> Result<(), MetricError> {
        if self.classes() != other.classes() {
            return Err(MetricError::ClassCountMismatch { classes: self.classes(), found: other.classes() });
        }
        if self.tolerance != other.tolerance {
            return Err(MetricError::ToleranceMismatch);
        }
        for (scores, more) in zip(&mut self.classes, &other.classes) {
            scores.images += more.images;
            scores.sum += more.sum;
        }
        Ok(())
    }

    /// Removes all images.
    pub fn clear(&mut self) {
        self.classes.fill(ClassScores::default());
    }

    /// The number of images in which a class occurs or is predicted.
    #[must_use]
    pub fn images(&self, class: usize) -> u64 {
        self.classes.get(class).map_or(0, |scores| scores.images)
    }

    /// The score of a class, or `None` if it neither occurs nor is predicted in any image.
    #[must_use]
    pub fn class(&self, class: usize) -> Option<f64> {
        let scores = self.classes.get(class)?;
        (scores.images > 0).then(|| scores.sum as f64 / SUM_UNIT / scores.images as f64)
    }

    /// The mean of the scores of the classes.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        mean((0..self.classes()).map(|class| self.class(class)))
    }
}

/// Buffers for comparing boundaries, reused from image to image.
#[derive(Clone, Debug, Default)]
pub struct BoundaryWorkspace {
    truth: Boundaries,
    predicted: Boundaries,
    distances: DistanceTransform,
    matches: Vec<BoundaryMatches>,
}

impl BoundaryWorkspace {
    /// Compares the boundaries of an image of `[height, width]` pixels, row-major. Returns one result per
    /// class.
    ///
    /// # Errors
    /// If a label or prediction is out of range, their number differs from the number of pixels, the image is
    /// higher than 65535 pixels, or there are more than 65535 classes.
    pub fn compare<P: ClassIndex>(
        &mut self,
        labels: &[i32],
        predictions: &[P],
        size: [usize; 2],
        classes: usize,
        tolerance: Tolerance,
    ) -> Result<&[BoundaryMatches], MetricError> {
        check_classes(labels, predictions, classes)?;
        let [height, width] = size;
        if height.checked_mul(width) != Some(labels.len()) {
            return Err(MetricError::ImageSizeMismatch { height, width, labels: labels.len() });
        }
        for (found, items, max) in [
            (classes, "classes", usize::from(NO_CLASS)),
            (height, "rows", DistanceTransform::MAX_HEIGHT),
            (labels.len(), "pixels", u32::MAX as usize),
        ] {
            if found > max {
                return Err(MetricError::LimitExceeded { found, items, max });
            }
        }
        // Both are below `classes`, which fits `u16`.
        let class = |label: i32, class: usize| if label < 0 { NO_CLASS } else { class as u16 };
        self.truth.find(labels.iter().map(|&label| class(label, label as usize)), width, classes);
        let predictions =
            zip(labels, predictions).map(|(&label, prediction)| class(label, prediction.as_index()));
        self.predicted.find(predictions, width, classes);
        let limit = tolerance.max_squared_distance(size);
        self.matches.clear();
        for class in 0..classes {
            let (truth, predicted) = (self.truth.points(class), self.predicted.points(class));
            let mut matches = BoundaryMatches {
                truth: truth.len() as u64,
                predicted: predicted.len() as u64,
                ..BoundaryMatches::default()
            };
            if !truth.is_empty() && !predicted.is_empty() {
                let mut count_matched = |points: &[u32], boundaries: &Boundaries| {
                    self.distances.compute(&boundaries.map, width, class as u16);
                    points
                        .iter()
                        .filter(|&&point| self.distances.squared_at(point as usize, limit).is_some())
                        .count() as u64
                };
                matches.truth_matched = count_matched(truth, &self.predicted);
                matches.predicted_matched = count_matched(predicted, &self.truth);
            }
            self.matches.push(matches);
        }
        Ok(&self.matches)
    }
}

/// The boundaries of all classes of a segmentation.
#[derive(Clone, Debug, Default)]
struct Boundaries {
    /// The class of every pixel.
    classes: Vec<u16>,
    /// The class of every pixel on a boundary, [`NO_CLASS`] elsewhere.
    map: Vec<u16>,
    /// The pixels on boundaries, by class.
    points: Vec<u32>,
    /// The end of each class's range in `points`.
    ends: Vec<usize>,
}

/// Marks pixels without a class.
const NO_CLASS: u16 = u16::MAX;

impl Boundaries {
    fn find(&mut self, pixels: impl Iterator<Item = u16>, width: usize, classes: usize) {
        self.classes.clear();
        self.classes.extend(pixels);
        self.map.clear();
        self.map.resize(self.classes.len(), NO_CLASS);
        self.ends.clear();
        self.ends.resize(classes, 0);
        let width = width.max(1);
        let height = self.classes.len() / width;
        for row in 0..height {
            let current = &self.classes[row * width..][..width];
            // A neighbour outside the image is `None`, which differs from every class.
            let above = row.checked_sub(1).map(|above| &self.classes[above * width..][..width]);
            let below = self.classes.get((row + 1) * width..(row + 2) * width);
            let out = &mut self.map[row * width..][..width];
            for column in 0..width {
                let class = current[column];
                let same = |row: Option<&[u16]>| row.is_some_and(|row| row[column] == class);
                let inner = same(above)
                    && same(below)
                    && column > 0
                    && current[column - 1] == class
                    && current.get(column + 1) == Some(&class);
                if class != NO_CLASS && !inner {
                    out[column] = class;
                    self.ends[usize::from(class)] += 1;
                }
            }
        }
        // Prefix sum: counts become starts; filling turns starts into ends.
        let mut total = 0;
        for end in &mut self.ends {
            total += std::mem::replace(end, total);
        }
        self.points.clear();
        // Reserving for all pixels avoids an allocation in the next image of this size.
        self.points.reserve(self.map.len());
        self.points.resize(total, 0);
        for (point, &class) in (0u32..).zip(&self.map) {
            if class != NO_CLASS {
                let end = &mut self.ends[usize::from(class)];
                self.points[*end] = point;
                *end += 1;
            }
        }
    }

    fn points(&self, class: usize) -> &[u32] {
        let start = class.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.points[start..self.ends[class]]
    }
}
