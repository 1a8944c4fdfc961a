//! The metrics of an epoch that can stop training early and choose the checkpoint to keep: columns of
//! `epochs.csv`.

use crate::value::choices;
use stratus_run::csv::{EpochRow, Row, Task};

/// Declares the metrics: a name, whether lower or higher is better, and the value in an epoch's row.
macro_rules! metrics {
    ($( $(#[doc = $doc:literal])* $name:ident = $column:literal, $direction:ident, $value:expr; )*) => {
        choices! {
            /// A metric of an epoch: a column of `epochs.csv`.
            EpochMetric { $( $(#[doc = $doc])* $name = $column, )* }
        }

        impl EpochMetric {
            /// Returns the direction of better values.
            #[must_use]
            pub fn direction(self) -> Direction {
                match self { $(Self::$name => Direction::$direction,)* }
            }

            /// The metric of a name; `None` if there is none.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($column => Some(Self::$name),)* _ => None }
            }

            /// The names of all metrics.
            pub const NAMES: &[&str] = &[$($column),*];

            /// Returns whether runs of `task` record this metric.
            #[must_use]
            pub fn applies_to(self, task: Task) -> bool {
                let name = match self { $(Self::$name => $column,)* };
                EpochRow::columns(task).contains(&name)
            }

            /// The names of the metrics that runs of `task` record.
            #[must_use]
            pub fn names(task: Task) -> Vec<&'static str> {
                let columns = EpochRow::columns(task);
                [$($column),*].into_iter().filter(|name| columns.contains(name)).collect()
            }

            /// The value in an epoch's row; `None` if the epoch has none.
            #[must_use]
            pub fn value_in(self, row: &EpochRow) -> Option<f64> {
                let value: fn(&EpochRow) -> Option<f64> = match self { $(Self::$name => $value,)* };
                value(row)
            }
        }
    };
}

metrics! {
    /// Mean loss over the training samples.
    TrainLoss = "train_loss", LowerIsBetter, |row| Some(row.train_loss);
    /// Top-1 accuracy over the training samples.
    TrainTop1 = "train_top1", HigherIsBetter, |row| Some(row.train_accuracy);
    /// Segmentation: accuracy over the training pixels.
    TrainAccuracy = "train_accuracy", HigherIsBetter, |row| Some(row.train_accuracy);
    /// Several labels: accuracy over the labels of the training samples.
    TrainLabelAccuracy = "train_label_accuracy", HigherIsBetter, |row| Some(row.train_accuracy);
    /// Regression: R² over the training samples.
    TrainR2 = "train_r2", HigherIsBetter, |row| Some(row.train_accuracy);
    /// Mean loss over the validation samples.
    ValLoss = "val_loss", LowerIsBetter, |row| row.val_loss;
    /// Top-1 accuracy on the validation samples.
    ValTop1 = "val_top1", HigherIsBetter, |row| row.val_accuracy;
    /// Top-5 accuracy on the validation samples.
    ValTop5 = "val_top5", HigherIsBetter, |row| row.val_top5;
    /// Segmentation: accuracy on the validation pixels.
    ValAccuracy = "val_accuracy", HigherIsBetter, |row| row.val_accuracy;
    /// Segmentation: the mean of the classes' accuracies on the validation pixels.
    ValMeanAccuracy = "val_mean_accuracy", HigherIsBetter, |row| row.val_mean_accuracy;
    /// Segmentation: mean intersection over union on the validation images.
    ValMiou = "val_miou", HigherIsBetter, |row| row.val_miou;
    /// Segmentation: mean boundary F1 on the validation images.
    ValBf = "val_bf", HigherIsBetter, |row| row.val_bf;
    /// Several labels: accuracy over the labels of the validation samples.
    ValLabelAccuracy = "val_label_accuracy", HigherIsBetter, |row| row.val_accuracy;
    /// Several labels: mean average precision on the validation samples.
    ValMap = "val_map", HigherIsBetter, |row| row.labels.val_map;
    /// Several labels: mean area under the ROC curve on the validation samples.
    ValAuc = "val_auc", HigherIsBetter, |row| row.labels.val_auc;
    /// Several labels: mean F1 on the validation samples, at the threshold of each label.
    ValF1 = "val_f1", HigherIsBetter, |row| row.labels.val_f1;
    /// Several labels: the fraction of validation samples with all labels correct.
    ValExactMatch = "val_exact_match", HigherIsBetter, |row| row.labels.val_exact_match;
    /// Regression: mean R² of the targets on the validation samples.
    ValR2 = "val_r2", HigherIsBetter, |row| row.val_accuracy;
    /// Regression: mean absolute error on the validation samples.
    ValMae = "val_mae", LowerIsBetter, |row| row.numbers.val_mae;
    /// Regression: root mean squared error on the validation samples.
    ValRmse = "val_rmse", LowerIsBetter, |row| row.numbers.val_rmse;
}

/// The direction of better values of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Such as a loss.
    LowerIsBetter,
    /// Such as an accuracy.
    HigherIsBetter,
}

impl Direction {
    /// By how much `value` is better than `other`; negative if it is worse.
    #[must_use]
    pub fn improvement(self, value: f64, other: f64) -> f64 {
        match self {
            Direction::LowerIsBetter => other - value,
            Direction::HigherIsBetter => value - other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{Setting, ValueKind};

    /// Each metric reads the column of its name, and lower is better for losses only.
    #[test]
    fn metrics_read_the_columns_of_their_names() {
        let ValueKind::Choice(names) = EpochMetric::KIND else { panic!("no choice") };
        assert_eq!(names, EpochMetric::NAMES);
        assert!(
            names
                .iter()
                .all(|name| EpochMetric::from_name(name).is_some_and(|metric| metric.as_str() == *name))
        );
        for (name, task) in names.iter().flat_map(|name| Task::ALL.map(|task| (name, task))) {
            let columns = EpochRow::columns(task);
            let fields: Vec<String> = (1..=columns.len()).map(|number| number.to_string()).collect();
            let row = EpochRow::parse(task, &fields.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
            let value = crate::Value::String((*name).to_owned());
            let metric = EpochMetric::from_value(&value).unwrap();
            let column = columns.iter().position(|column| column == name);
            assert_eq!(metric.applies_to(task), column.is_some(), "{name}");
            let Some(column) = column else { continue };
            assert_eq!(metric.value_in(&row), Some((column + 1) as f64), "{name}");
            let is_error = ["loss", "mae", "rmse"].iter().any(|end| name.ends_with(end));
            assert_eq!(metric.direction() == Direction::LowerIsBetter, is_error, "{name}");
        }
        assert_eq!(EpochMetric::ValTop1.value_in(&EpochRow::default()), None);
        let names = ["train_loss", "train_top1", "val_loss", "val_top1", "val_top5"];
        assert_eq!(EpochMetric::names(Task::Classification), names);
        assert!(
            Task::ALL.iter().all(|&task| names.iter().any(|name| EpochRow::columns(task).contains(name)))
        );
    }
}
