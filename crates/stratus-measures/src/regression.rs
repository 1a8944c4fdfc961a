//! Errors of predicted numbers.

use serde::{Deserialize, Serialize};

use crate::ScoreTable;
use crate::ratio::mean;

/// The errors of one target, in its unit. `None` is undefined, and null in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetMetrics {
    /// The target index.
    pub target: usize,
    /// The target name.
    pub name: String,
    /// The number of samples with this target.
    pub samples: u64,
    /// The number of samples whose target is missing.
    pub missing: u64,
    /// The mean of the true numbers.
    pub mean: Option<f64>,
    /// The mean absolute error.
    pub mae: Option<f64>,
    /// The root of the mean squared error.
    pub rmse: Option<f64>,
    /// The coefficient of determination R²: 1 less the ratio of the squared errors to the squared deviations
    /// from the mean of these samples. `None` with fewer than 2 samples, or if all true numbers are equal.
    pub r2: Option<f64>,
}

/// The errors of predicted numbers.
///
/// They agree with scikit-learn's (1.9) `mean_absolute_error`, `root_mean_squared_error` and `r2_score`,
/// computed for each target on the samples that have it. For a constant target scikit-learn returns an R² of
/// 0 or 1, which is `None` here and excluded from means.
///
/// Sums are of `f64` in the order of samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetErrors {
    /// The number of samples with at least one target.
    pub samples: u64,
    /// The mean MAE of the targets that occur, without weights. Its unit is that of the targets: with several
    /// targets of different units or sizes, the largest dominate it.
    pub mae: Option<f64>,
    /// The mean RMSE of the targets that occur, without weights, as for `mae`.
    pub rmse: Option<f64>,
    /// The mean R² of the targets that have one. It does not depend on units.
    pub r2: Option<f64>,
    /// The errors of each target.
    pub targets: Vec<TargetMetrics>,
}

impl TargetErrors {
    /// Computes the errors of a table whose outputs have the unit of its targets. `name` returns the name of
    /// a target.
    #[must_use]
    pub fn new(table: &ScoreTable, name: impl Fn(usize) -> String) -> Self {
        let targets: Vec<TargetMetrics> =
            (0..table.columns()).map(|target| TargetMetrics::new(table, target, name(target))).collect();
        let known = |(_, targets): &(&[f32], &[f32])| targets.iter().any(|target| !target.is_nan());
        Self {
            samples: table.rows().filter(known).count() as u64,
            mae: mean(targets.iter().map(|target| target.mae)),
            rmse: mean(targets.iter().map(|target| target.rmse)),
            r2: mean(targets.iter().map(|target| target.r2)),
            targets,
        }
    }
}

impl TargetMetrics {
    fn new(table: &ScoreTable, target: usize, name: String) -> Self {
        let present = || {
            let values = table.column(target).filter(|(_, truth)| !truth.is_nan());
            values.map(|(output, truth)| (f64::from(output), f64::from(truth)))
        };
        let samples = present().count();
        let share = |sum: f64| (samples > 0).then(|| sum / samples as f64);
        let center = share(present().map(|(_, truth)| truth).sum());
        let squared = present().map(|(output, truth)| (output - truth).powi(2)).sum::<f64>();
        // Equal numbers are recognised exactly: the rounded mean may differ from them.
        let first = present().next().map(|(_, truth)| truth);
        let varies = present().any(|(_, truth)| Some(truth) != first);
        let r2 = center
            .filter(|_| varies)
            .map(|center| 1.0 - squared / present().map(|(_, truth)| (truth - center).powi(2)).sum::<f64>());
        Self {
            target,
            name,
            samples: samples as u64,
            missing: (table.samples() - samples) as u64,
            mean: center,
            mae: share(present().map(|(output, truth)| (output - truth).abs()).sum()),
            rmse: share(squared).map(f64::sqrt),
            r2,
        }
    }
}
