//! Boundary F1: how well the boundaries of segmentations agree.

use std::iter::zip;

use serde::{Deserialize, Serialize};

use crate::class_number::{ClassNumber, check};
use crate::{DistanceTransform, MeasureError, mean, ratio};

/// How far a boundary may be off and still count as found, Euclidean distance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tolerance {
    /// 0.75 % of the image's diagonal, as in the paper and in MATLAB's `bfscore`.
    #[default]
    Diagonal,
    /// So many pixels.
    Pixels(f64),
}

impl Tolerance {
    /// The largest squared distance within the tolerance: distances between pixels squared are integers.
    #[must_use]
    pub fn squared(self, [height, width]: [usize; 2]) -> u64 {
        match self {
            // 0.75 % is 3/400. In integers, so that a distance of exactly that is within it.
            Self::Diagonal => {
                let diagonal = (height as u128).pow(2) + (width as u128).pow(2);
                u64::try_from(9 * diagonal / 160_000).unwrap_or(u64::MAX)
            }
            // A conversion that saturates: NaN and what is negative become 0.
            Self::Pixels(pixels) => (pixels.max(0.0) * pixels).floor() as u64,
        }
    }
}

/// How the boundaries of one class in one image match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoundaryMatches {
    /// Pixels of the true boundary.
    pub truth: u64,
    /// Those with a predicted boundary within the tolerance.
    pub truth_matched: u64,
    /// Pixels of the predicted boundary.
    pub predicted: u64,
    /// Those with a true boundary within the tolerance.
    pub predicted_matched: u64,
}

impl BoundaryMatches {
    /// The share of the predicted boundary that is near a true one. `None` where the class is not predicted.
    #[must_use]
    pub fn precision(&self) -> Option<f64> {
        ratio(self.predicted_matched, self.predicted)
    }

    /// The share of the true boundary that is near a predicted one. `None` where the class does not occur.
    #[must_use]
    pub fn recall(&self) -> Option<f64> {
        ratio(self.truth_matched, self.truth)
    }

    /// The harmonic mean of precision and recall; 0 where the class occurs and is not predicted, or the
    /// reverse, or nothing matches. `None` where it neither occurs nor is predicted.
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
/// - A pixel of a class is on its boundary where one of its 4 neighbours is not of the class or lies outside
///   the image. This is the 8-connected contour that MATLAB's `bwboundaries` traces; the manual of `bfscore`
///   does not say which pixels it takes.
/// - A boundary pixel is found where one of the other boundary is at most the tolerance away.
/// - Pixels whose label is negative are of no class, in truth and in prediction: what is predicted there does
///   not matter, and where a class meets them it has a boundary.
/// - A class's score is the mean over the images where it occurs or is predicted; other images are left out.
///   (`MeanBFScore` of MATLAB's class metrics is a mean over images too.) Where it is only one of both, it is
///   0.
/// - The overall score is the mean over the classes that have one.
///
/// Scores are added up as multiples of 2⁻⁴⁰, so that the sum is the same in any order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BoundaryScore {
    tolerance: Tolerance,
    classes: Vec<ClassScores>,
}

/// The scores of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ClassScores {
    /// Images where it occurs or is predicted.
    images: u64,
    /// The sum of their scores, in units of 2⁻⁴⁰.
    sum: u64,
}

/// The unit of sums.
const ONE: f64 = (1u64 << 40) as f64;

impl BoundaryScore {
    /// Of no images, with the usual tolerance.
    #[must_use]
    pub fn new(classes: usize) -> Self {
        Self::with_tolerance(classes, Tolerance::default())
    }

    /// Of no images.
    #[must_use]
    pub fn with_tolerance(classes: usize, tolerance: Tolerance) -> Self {
        Self { tolerance, classes: vec![ClassScores::default(); classes] }
    }

    /// How many classes there are.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.classes.len()
    }

    /// Adds an image of `[height, width]` pixels, row-major. Once the workspace has seen an image as large it
    /// allocates nothing.
    ///
    /// # Errors
    /// Where a label or a prediction is beyond the classes, or the image has not as many of both as pixels.
    /// Nothing is added then.
    pub fn add<P: ClassNumber>(
        &mut self,
        labels: &[i32],
        predictions: &[P],
        size: [usize; 2],
        workspace: &mut BoundaryWorkspace,
    ) -> Result<(), MeasureError> {
        let found = workspace.compare(labels, predictions, size, self.classes.len(), self.tolerance)?;
        for (scores, found) in zip(&mut self.classes, found) {
            if let Some(f1) = found.f1() {
                scores.images += 1;
                scores.sum += (f1 * ONE).round() as u64;
            }
        }
        Ok(())
    }

    /// Adds another's images.
    ///
    /// # Errors
    /// Where it has other classes or another tolerance.
    pub fn merge(&mut self, other: &Self) -> Result<(), MeasureError> {
        if self.classes() != other.classes() {
            return Err(MeasureError::Classes { classes: self.classes(), found: other.classes() });
        }
        if self.tolerance != other.tolerance {
            return Err(MeasureError::Tolerance);
        }
        for (scores, more) in zip(&mut self.classes, &other.classes) {
            scores.images += more.images;
            scores.sum += more.sum;
        }
        Ok(())
    }

    /// Forgets all images.
    pub fn clear(&mut self) {
        self.classes.fill(ClassScores::default());
    }

    /// The images where a class occurs or is predicted.
    #[must_use]
    pub fn images(&self, class: usize) -> u64 {
        self.classes.get(class).map_or(0, |scores| scores.images)
    }

    /// A class's score; `None` where it neither occurs nor is predicted in any image.
    #[must_use]
    pub fn class(&self, class: usize) -> Option<f64> {
        let scores = self.classes.get(class)?;
        (scores.images > 0).then(|| scores.sum as f64 / ONE / scores.images as f64)
    }

    /// The mean of the classes' scores.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        mean((0..self.classes()).map(|class| self.class(class)))
    }
}

/// The memory in which boundaries are compared, kept from image to image.
#[derive(Clone, Debug, Default)]
pub struct BoundaryWorkspace {
    truth: Boundaries,
    predicted: Boundaries,
    distances: DistanceTransform,
    matches: Vec<BoundaryMatches>,
}

impl BoundaryWorkspace {
    /// Compares the boundaries of an image of `[height, width]` pixels, row-major: a result per class.
    ///
    /// # Errors
    /// Where a label or a prediction is beyond the classes, the image has not as many of both as pixels, or
    /// is higher than 65535 pixels, or there are more classes than that.
    pub fn compare<P: ClassNumber>(
        &mut self,
        labels: &[i32],
        predictions: &[P],
        size: [usize; 2],
        classes: usize,
        tolerance: Tolerance,
    ) -> Result<&[BoundaryMatches], MeasureError> {
        check(labels, predictions, classes)?;
        let [height, width] = size;
        if height.checked_mul(width) != Some(labels.len()) {
            return Err(MeasureError::Image { height, width, labels: labels.len() });
        }
        for (found, what, most) in [
            (classes, "classes", usize::from(NO_CLASS)),
            (height, "rows", DistanceTransform::LARGEST_HEIGHT),
            (labels.len(), "pixels", u32::MAX as usize),
        ] {
            if found > most {
                return Err(MeasureError::Limit { found, what, most });
            }
        }
        // Both are below `classes`, which fits.
        let class = |label: i32, class: usize| if label < 0 { NO_CLASS } else { class as u16 };
        self.truth.find(labels.iter().map(|&label| class(label, label as usize)), width, classes);
        let predictions =
            zip(labels, predictions).map(|(&label, prediction)| class(label, prediction.index()));
        self.predicted.find(predictions, width, classes);
        let limit = tolerance.squared(size);
        self.matches.clear();
        for class in 0..classes {
            let (truth, predicted) = (self.truth.points(class), self.predicted.points(class));
            let mut matches = BoundaryMatches {
                truth: truth.len() as u64,
                predicted: predicted.len() as u64,
                ..BoundaryMatches::default()
            };
            if !truth.is_empty() && !predicted.is_empty() {
                let mut near = |points: &[u32], boundaries: &Boundaries| {
                    self.distances.measure(&boundaries.map, width, class as u16);
                    points
                        .iter()
                        .filter(|&&point| self.distances.squared(point as usize, limit).is_some())
                        .count() as u64
                };
                matches.truth_matched = near(truth, &self.predicted);
                matches.predicted_matched = near(predicted, &self.truth);
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
    /// Where each class's points end.
    ends: Vec<usize>,
}

/// The class of pixels that belong to none.
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
            let here = &self.classes[row * width..][..width];
            // A neighbour outside is of no class, which differs from every class.
            let above = row.checked_sub(1).map(|above| &self.classes[above * width..][..width]);
            let below = self.classes.get((row + 1) * width..(row + 2) * width);
            let out = &mut self.map[row * width..][..width];
            for column in 0..width {
                let class = here[column];
                let same = |row: Option<&[u16]>| row.is_some_and(|row| row[column] == class);
                let inner = same(above)
                    && same(below)
                    && column > 0
                    && here[column - 1] == class
                    && here.get(column + 1) == Some(&class);
                if class != NO_CLASS && !inner {
                    out[column] = class;
                    self.ends[usize::from(class)] += 1;
                }
            }
        }
        // From counts to where each class begins, which filling moves on to where it ends.
        let mut total = 0;
        for end in &mut self.ends {
            total += std::mem::replace(end, total);
        }
        self.points.clear();
        // All pixels can be on boundaries, of the next image of this size too.
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
