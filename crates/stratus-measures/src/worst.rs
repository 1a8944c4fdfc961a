//! Single predictions of a table: the worst ones, and some for a chart.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::{LabelScores, ScoreTable, TargetErrors};

/// A prediction and its target.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The sample, counted from 0 within the table.
    pub sample: usize,
    /// The label or target, counted from 0.
    pub column: usize,
    /// The output.
    pub output: f32,
    /// The target; not NaN.
    pub target: f32,
}

impl ScoreTable {
    /// All predictions whose target is known, sample by sample.
    fn predictions(&self) -> impl Iterator<Item = Prediction> {
        self.rows().enumerate().flat_map(|(sample, (outputs, targets))| {
            let values = outputs.iter().zip(targets).enumerate();
            values
                .filter(|(_, (_, target))| !target.is_nan())
                .map(move |(column, (&output, &target))| Prediction { sample, column, output, target })
        })
    }

    /// Predictions of a column at equal distances in the order of samples, at most `max_points`, for a chart
    /// of predicted over true values. Samples whose target is missing are not counted.
    #[must_use]
    pub fn points(&self, column: usize, max_points: usize) -> Vec<Prediction> {
        let known = || {
            let values = self.column(column).enumerate();
            values
                .filter(|(_, (_, target))| !target.is_nan())
                .map(move |(sample, (output, target))| Prediction { sample, column, output, target })
        };
        if max_points == 0 {
            return Vec::new();
        }
        let distance = known().count().div_ceil(max_points).max(1);
        known().step_by(distance).collect()
    }
}

impl LabelScores {
    /// The `count` most confident mistakes: wrong decisions at the labels' own thresholds, those whose output
    /// is furthest from the threshold first. Logits are comparable between labels. `table` is the table of
    /// these metrics.
    #[must_use]
    pub fn worst(&self, table: &ScoreTable, count: usize) -> Vec<Prediction> {
        let points = self.labels.iter().map(|label| label.at_chosen.unwrap_or(label.at_default));
        let thresholds: Vec<f32> = points.map(|point| point.threshold).collect();
        let mistakes = table.predictions().filter_map(|found| {
            let threshold = *thresholds.get(found.column)?;
            let is_wrong = (found.output >= threshold) != (found.target > 0.5);
            is_wrong.then(|| ((f64::from(found.output) - f64::from(threshold)).abs(), found))
        });
        largest(mistakes, count)
    }
}

impl TargetErrors {
    /// The `count` predictions with the largest absolute errors, the largest first. Errors are divided by the
    /// RMSE of their target, so that units do not matter. `table` is the table of these errors.
    #[must_use]
    pub fn worst(&self, table: &ScoreTable, count: usize) -> Vec<Prediction> {
        let errors = table.predictions().filter_map(|found| {
            let rmse = self.targets.get(found.column)?.rmse.filter(|rmse| *rmse > 0.0)?;
            let error = (f64::from(found.output) - f64::from(found.target)).abs();
            (error > 0.0).then_some((error / rmse, found))
        });
        largest(errors, count)
    }
}

/// The `count` predictions with the largest keys, the largest first, in the order of samples and columns if
/// they are equal. Holds twice as many at most.
fn largest(predictions: impl Iterator<Item = (f64, Prediction)>, count: usize) -> Vec<Prediction> {
    let order = |(left, one): &(f64, Prediction), (right, other): &(f64, Prediction)| -> Ordering {
        right.total_cmp(left).then((one.sample, one.column).cmp(&(other.sample, other.column)))
    };
    let mut kept: Vec<(f64, Prediction)> = Vec::new();
    for prediction in predictions {
        kept.push(prediction);
        if kept.len() > count.saturating_mul(2) {
            kept.sort_unstable_by(order);
            kept.truncate(count);
        }
    }
    kept.sort_unstable_by(order);
    kept.truncate(count);
    kept.into_iter().map(|(_, prediction)| prediction).collect()
}
