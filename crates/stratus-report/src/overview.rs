//! A table of runs, one row each: their differences and results.

use std::collections::BTreeMap;
use std::iter::once;

use serde::Serialize;
use stratus_run::csv;
use stratus_run::summary::Status;

use crate::collect::RunRecord;
use crate::report::{differing_keys, settings};

/// A table of runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunOverview {
    /// Keys of the configuration whose values differ, and `machine` if that differs.
    pub keys: Vec<String>,
    /// One row per run.
    pub rows: Vec<RunOverviewRow>,
}

/// The row of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunOverviewRow {
    /// The run directory.
    pub path: String,
    /// The status.
    pub status: Status,
    /// The values of [`RunOverview::keys`]; `None` for a key that the run does not have.
    pub values: Vec<Option<String>>,
    /// Completed epochs.
    pub epochs: Option<u32>,
    /// Last loss on the training data.
    pub train_loss: Option<f64>,
    /// Last loss on the validation data.
    pub val_loss: Option<f64>,
    /// Classification: last top-1 accuracy on the validation data.
    pub val_top1: Option<f64>,
    /// Segmentation: last mean IoU on the validation data.
    pub val_miou: Option<f64>,
    /// Several labels: last mean average precision on the validation data.
    pub val_map: Option<f64>,
    /// Regression: last mean R² on the validation data.
    pub val_r2: Option<f64>,
    /// Total seconds.
    pub overall_s: Option<f64>,
    /// Median images per second.
    pub images_per_second_median: Option<f64>,
}

/// The columns of CSV other than the keys, named as in [`RunRecord::fields`].
const COLUMNS: [&str; 10] = [
    "status",
    "epochs",
    "train_loss",
    "val_loss",
    "val_top1",
    "val_miou",
    "val_map",
    "val_r2",
    "overall_s",
    "images_per_second_median",
];

impl RunOverview {
    /// A table of runs, in their order.
    #[must_use]
    pub fn new(runs: &[RunRecord]) -> Self {
        let all: Vec<BTreeMap<String, String>> = runs.iter().map(settings).collect();
        let keys = drop_redundant_keys(differing_keys(&all), &all);
        let row = |(run, settings): (&RunRecord, &BTreeMap<String, String>)| {
            let summary = run.summary.as_ref();
            let last = summary.map(|summary| &summary.final_metrics);
            RunOverviewRow {
                path: run.path.display().to_string(),
                status: run.status,
                values: keys.iter().map(|key| settings.get(key).cloned()).collect(),
                epochs: summary.map(|summary| summary.epochs),
                train_loss: last.and_then(|last| last.train_loss),
                val_loss: last.and_then(|last| last.val_loss),
                val_top1: last.and_then(|last| last.val_top1),
                val_miou: last.and_then(|last| last.val_miou),
                val_map: last.and_then(|last| last.labels.val_map),
                val_r2: last.and_then(|last| last.val_r2),
                overall_s: summary.map(|summary| summary.time.total_s),
                images_per_second_median: summary.and_then(|summary| summary.images_per_second.median),
            }
        };
        let rows = runs.iter().zip(&all).map(row).collect();
        Self { keys, rows }
    }

    /// The table as CSV, with a header. Columns are named as in [`RunRecord::fields`], keys are
    /// `config.<table>.<key>`.
    #[must_use]
    pub fn to_csv(&self, runs: &[RunRecord]) -> String {
        // Of the scores of tasks other than classification, only those that a run has.
        let is_used = |name: &str| {
            let score: fn(&RunOverviewRow) -> Option<f64> = match name {
                "val_miou" => |row| row.val_miou,
                "val_map" => |row| row.val_map,
                "val_r2" => |row| row.val_r2,
                _ => return true,
            };
            self.rows.iter().any(|row| score(row).is_some())
        };
        let keys = self.keys.iter().map(|key| match key.as_str() {
            "machine" => key.clone(),
            key => format!("config.{key}"),
        });
        let columns: Vec<&str> = COLUMNS.into_iter().filter(|name| is_used(name)).collect();
        let header =
            once("path".to_owned()).chain(keys).chain(columns.iter().map(ToString::to_string)).collect();
        let row = |(run, row): (&RunRecord, &RunOverviewRow)| {
            let fields: BTreeMap<String, String> = run.fields(false).into_iter().collect();
            let values = row.values.iter().map(|value| value.clone().unwrap_or_default());
            let results = columns.iter().map(|name| fields.get(*name).cloned().unwrap_or_default());
            once(row.path.clone()).chain(values).chain(results).collect()
        };
        csv::to_text(once::<Vec<String>>(header).chain(runs.iter().zip(&self.rows).map(row)))
    }
}

/// Removes keys that have in every run the value of an earlier key, such as `validation.batch_size` after
/// `train.batch_size`.
fn drop_redundant_keys(keys: Vec<String>, all: &[BTreeMap<String, String>]) -> Vec<String> {
    let are_equal = |a: &String, b: &String| all.iter().all(|run| run.get(a) == run.get(b));
    let mut kept: Vec<String> = Vec::new();
    for key in keys {
        if !kept.iter().any(|other| are_equal(other, &key)) {
            kept.push(key);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_keys_that_equal_another_key() {
        let run = |batch: &str, validation_batch: &str, rate: &str| {
            [("train.batch_size", batch), ("validation.batch_size", validation_batch), ("rate", rate)]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into_iter()
                .collect()
        };
        let keys = || ["rate", "train.batch_size", "validation.batch_size"].map(str::to_owned).to_vec();
        let all = [run("32", "32", "0.1"), run("64", "64", "0.1")];
        assert_eq!(drop_redundant_keys(keys(), &all), ["rate", "train.batch_size"]);
        let all = [run("32", "32", "0.1"), run("64", "32", "0.1")];
        assert_eq!(drop_redundant_keys(keys(), &all), keys());
    }
}
