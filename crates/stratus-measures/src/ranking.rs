//! The samples of a label in the order of their scores, and the metrics that depend on this order.

use serde::{Deserialize, Serialize};

use crate::ratio::ratio;

/// The samples of one label, ranked by their score: the counts at every threshold.
///
/// A sample is predicted positive if its score is at least the threshold. Samples of equal score are a tie:
/// no threshold separates them. 0 and -0 are equal.
#[derive(Clone, Debug)]
pub struct LabelRanking {
    positives: u64,
    negatives: u64,
    missing: u64,
    /// A step per distinct score, in descending order.
    steps: Vec<Step>,
}

/// The counts at one threshold.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// The score, which is the threshold.
    threshold: f32,
    /// The number of samples with this score or a higher one.
    predicted: u64,
    /// The number of positive samples among them.
    true_positives: u64,
}

/// Decisions of a label at a threshold, and their metrics.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperatingPoint {
    /// The smallest score that is predicted positive.
    pub threshold: f32,
    /// The number of positive samples that are predicted positive.
    pub true_positives: u64,
    /// The number of negative samples that are predicted positive.
    pub false_positives: u64,
    /// The number of positive samples that are predicted negative.
    pub false_negatives: u64,
    /// The share of positive predictions that is correct. `None` if no sample is predicted positive.
    pub precision: Option<f64>,
    /// The share of positive samples that is predicted positive. `None` without positive samples.
    pub recall: Option<f64>,
    /// The harmonic mean of precision and recall. `None` if no sample is or is predicted positive.
    pub f1: Option<f64>,
}

/// A point of a precision–recall curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// The threshold: the smallest score that is predicted positive.
    pub threshold: f32,
    /// The share of positive samples that is predicted positive.
    pub recall: f64,
    /// The share of positive predictions that is correct.
    pub precision: f64,
}

/// The F1 of summed counts. `None` if nothing is or is predicted positive.
pub(crate) fn f1(true_positives: u64, false_positives: u64, false_negatives: u64) -> Option<f64> {
    ratio(2 * true_positives, 2 * true_positives + false_positives + false_negatives)
}

impl LabelRanking {
    /// Ranks (score, target) pairs. A target above 0.5 is positive, NaN is missing. Scores are not NaN, which
    /// [`ScoreTable::append`](crate::ScoreTable::append) ensures.
    pub(crate) fn new(samples: impl Iterator<Item = (f32, f32)>) -> Self {
        let mut missing = 0;
        let mut present: Vec<(f32, bool)> = Vec::new();
        for (score, target) in samples {
            if target.is_nan() {
                missing += 1;
            } else {
                present.push((score, target > 0.5));
            }
        }
        // 0 and -0 are neighbours in this order, and equal below.
        present.sort_unstable_by(|(left, _), (right, _)| right.total_cmp(left));
        let mut steps: Vec<Step> = Vec::new();
        let mut true_positives = 0;
        for (predicted, (threshold, positive)) in (1..).zip(present) {
            true_positives += u64::from(positive);
            let step = Step { threshold, predicted, true_positives };
            match steps.last_mut() {
                Some(last) if last.threshold == threshold => *last = step,
                _ => steps.push(step),
            }
        }
        let samples = steps.last().map_or(0, |last| last.predicted);
        Self { positives: true_positives, negatives: samples - true_positives, missing, steps }
    }

    /// The number of positive samples.
    #[must_use]
    pub fn positives(&self) -> u64 {
        self.positives
    }

    /// The number of negative samples.
    #[must_use]
    pub fn negatives(&self) -> u64 {
        self.negatives
    }

    /// The number of samples whose target is missing.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.missing
    }

    /// Average precision: the sum over all thresholds, from the highest, of the precision times the increase
    /// of recall, without interpolation, as scikit-learn's `average_precision_score` defines it. `None`
    /// without positive samples, where scikit-learn returns 0; 1 without negative samples.
    #[must_use]
    pub fn average_precision(&self) -> Option<f64> {
        let mut before = 0;
        let mut sum = 0.0;
        for step in &self.steps {
            let gained = step.true_positives - before;
            sum += gained as f64 * (step.true_positives as f64 / step.predicted as f64);
            before = step.true_positives;
        }
        (self.positives > 0).then(|| sum / self.positives as f64)
    }

    /// The area under the ROC curve: the probability that a positive sample has a higher score than a
    /// negative one, where a tie counts half. `None` without positive or without negative samples.
    #[must_use]
    pub fn auc(&self) -> Option<f64> {
        let pairs = u128::from(self.positives) * u128::from(self.negatives);
        // Twice the number of pairs in the right order, so that it is an integer.
        let mut ordered: u128 = 0;
        let [mut positives, mut negatives] = [0; 2];
        for step in &self.steps {
            let tied = step.true_positives - positives;
            let tied_negatives = step.predicted - step.true_positives - negatives;
            ordered += u128::from(tied_negatives) * u128::from(2 * positives + tied);
            positives += tied;
            negatives += tied_negatives;
        }
        (pairs > 0).then(|| ordered as f64 / (2 * pairs) as f64)
    }

    /// The decisions if every score of at least `threshold` is positive.
    #[must_use]
    pub fn at(&self, threshold: f32) -> OperatingPoint {
        let above = self.steps.partition_point(|step| step.threshold >= threshold);
        let [predicted, true_positives] = match above.checked_sub(1).and_then(|last| self.steps.get(last)) {
            Some(step) => [step.predicted, step.true_positives],
            None => [0, 0],
        };
        let false_positives = predicted - true_positives;
        let false_negatives = self.positives - true_positives;
        OperatingPoint {
            threshold,
            true_positives,
            false_positives,
            false_negatives,
            precision: ratio(true_positives, predicted),
            recall: ratio(true_positives, self.positives),
            f1: f1(true_positives, false_positives, false_negatives),
        }
    }

    /// The decisions at the threshold with the highest F1; of several such thresholds, at the highest. `None`
    /// without positive samples.
    ///
    /// The threshold is the score of a positive sample. It fits the samples that it was chosen on, so its F1
    /// on other samples is lower on average.
    #[must_use]
    pub fn best_f1(&self) -> Option<OperatingPoint> {
        self.best_step().map(|best| self.at(self.steps[best].threshold))
    }

    /// The index of the step with the highest F1, the first of several.
    fn best_step(&self) -> Option<usize> {
        // F1 is 2·true positives / (predicted + positives): fractions are compared exactly.
        let fraction = |step: &Step| [step.true_positives, step.predicted + self.positives].map(u128::from);
        self.first_maximum(fraction)
    }

    /// The first step with the highest fraction, numerator and denominator, if the label has positives.
    fn first_maximum(&self, fraction: impl Fn(&Step) -> [u128; 2]) -> Option<usize> {
        let mut best = None;
        let mut highest = [0, 1];
        for (index, step) in self.steps.iter().enumerate() {
            let candidate = fraction(step);
            if candidate[0] * highest[1] > highest[0] * candidate[1] {
                (best, highest) = (Some(index), candidate);
            }
        }
        best
    }

    /// The precision–recall curve from the highest threshold to the lowest, with at most `max_points` points
    /// (at least 4). Empty without positive samples.
    ///
    /// A longer curve is thinned to points about equally far apart along the curve. The first and the last
    /// point, the point of the highest precision and that of the highest F1 are kept.
    #[must_use]
    pub fn curve(&self, max_points: usize) -> Vec<CurvePoint> {
        let (Some(best), Some(last)) = (self.best_step(), self.steps.len().checked_sub(1)) else {
            return Vec::new();
        };
        let point = |index: usize| {
            let Step { threshold, predicted, true_positives } = self.steps[index];
            CurvePoint {
                threshold,
                recall: true_positives as f64 / self.positives as f64,
                precision: true_positives as f64 / predicted as f64,
            }
        };
        if last < max_points {
            return (0..=last).map(point).collect();
        }
        let precision = |step: &Step| [step.true_positives, step.predicted].map(u128::from);
        let mut kept = vec![0, best, self.first_maximum(precision).unwrap_or(best), last];
        // The length from the first point to each step.
        let mut length = 0.0;
        let mut lengths = vec![0.0];
        for index in 1..=last {
            let (from, to) = (point(index - 1), point(index));
            length += (to.recall - from.recall).hypot(to.precision - from.precision);
            lengths.push(length);
        }
        let free = max_points.saturating_sub(kept.len());
        kept.extend((1..=free).map(|number| {
            let wanted = length * number as f64 / (free + 1) as f64;
            lengths.partition_point(|&length| length < wanted).min(last)
        }));
        kept.sort_unstable();
        kept.dedup();
        kept.into_iter().map(point).collect()
    }
}
