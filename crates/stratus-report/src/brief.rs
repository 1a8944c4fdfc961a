//! Runs beside each other, a row each: in what they differ, and what came of them.

use std::collections::BTreeMap;

use serde::Serialize;
use stratus_run::summary::Status;

use crate::collect::{Experiment, row_of};
use crate::report::{differing, settings};

/// Runs beside each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Brief {
    /// Keys of the configuration whose values differ, and `machine` where that does.
    pub keys: Vec<String>,
    /// A row a run.
    pub rows: Vec<BriefRow>,
}

/// A run in a row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BriefRow {
    /// The run directory.
    pub path: String,
    /// How it stands.
    pub status: Status,
    /// The values of [`Brief::keys`]; a key that the run does not have has none.
    pub values: Vec<Option<String>>,
    /// Epochs done.
    pub epochs: Option<u32>,
    /// The last loss on the training data.
    pub train_loss: Option<f64>,
    /// The last loss on the validation data.
    pub val_loss: Option<f64>,
    /// Classification: the last share of right answers on the validation data.
    pub val_top1: Option<f64>,
    /// Segmentation: the last mean IoU on the validation data.
    pub val_miou: Option<f64>,
    /// Seconds in all.
    pub overall_s: Option<f64>,
    /// Images a second: the median.
    pub images_per_second_median: Option<f64>,
}

/// The columns of CSV beside the keys, as [`Experiment::fields`] calls them; `val_miou` where a run has it.
const COLUMNS: [&str; 8] = [
    "status",
    "epochs",
    "train_loss",
    "val_loss",
    "val_top1",
    "val_miou",
    "overall_s",
    "images_per_second_median",
];

impl Brief {
    /// Puts runs beside each other, in their order.
    #[must_use]
    pub fn of(runs: &[Experiment]) -> Self {
        let all: Vec<BTreeMap<String, String>> = runs.iter().map(settings).collect();
        let keys = without_followers(differing(&all), &all);
        let row = |(run, settings): (&Experiment, &BTreeMap<String, String>)| {
            let summary = run.summary.as_ref();
            let last = summary.map(|summary| &summary.last);
            BriefRow {
                path: run.path.display().to_string(),
                status: run.status,
                values: keys.iter().map(|key| settings.get(key).cloned()).collect(),
                epochs: summary.map(|summary| summary.epochs),
                train_loss: last.and_then(|last| last.train_loss),
                val_loss: last.and_then(|last| last.val_loss),
                val_top1: last.and_then(|last| last.val_top1),
                val_miou: last.and_then(|last| last.val_miou),
                overall_s: summary.map(|summary| summary.time.total_s),
                images_per_second_median: summary.and_then(|summary| summary.images_per_second.median),
            }
        };
        let rows = runs.iter().zip(&all).map(row).collect();
        Self { keys, rows }
    }

    /// As CSV, a header and a row a run. Columns that [`Experiment::fields`] has too have its names, and keys
    /// are `config.<table>.<key>`.
    #[must_use]
    pub fn to_csv(&self, runs: &[Experiment]) -> String {
        let is_used = |name: &str| name != "val_miou" || self.rows.iter().any(|row| row.val_miou.is_some());
        let keys = self.keys.iter().map(|key| match key.as_str() {
            "machine" => key.clone(),
            key => format!("config.{key}"),
        });
        let names: Vec<String> = std::iter::once("path".to_owned())
            .chain(keys)
            .chain(COLUMNS.into_iter().filter(|name| is_used(name)).map(str::to_owned))
            .collect();
        let mut text = row_of(names.iter().map(String::as_str));
        for (run, row) in runs.iter().zip(&self.rows) {
            let fields: BTreeMap<String, String> = run.fields(false).into_iter().collect();
            let values = row.values.iter().map(|value| value.as_deref().unwrap_or_default());
            let columns = COLUMNS.into_iter().filter(|name| is_used(name));
            let results = columns.map(|name| fields.get(name).map_or("", String::as_str));
            text.push_str(&row_of(std::iter::once(row.path.as_str()).chain(values).chain(results)));
        }
        text
    }
}

/// Keys without those that have in every run the value of one before, such as `validation.batch_size` beside
/// `train.batch_size`.
fn without_followers(keys: Vec<String>, all: &[BTreeMap<String, String>]) -> Vec<String> {
    let same = |one: &String, other: &String| all.iter().all(|run| run.get(one) == run.get(other));
    let mut kept: Vec<String> = Vec::new();
    for key in keys {
        if !kept.iter().any(|other| same(other, &key)) {
            kept.push(key);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_from_another_key_has_no_column() {
        let run = |batch: &str, of_validation: &str, rate: &str| {
            [("train.batch_size", batch), ("validation.batch_size", of_validation), ("rate", rate)]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into_iter()
                .collect()
        };
        let keys = || ["rate", "train.batch_size", "validation.batch_size"].map(str::to_owned).to_vec();
        let all = [run("32", "32", "0.1"), run("64", "64", "0.1")];
        assert_eq!(without_followers(keys(), &all), ["rate", "train.batch_size"]);
        let all = [run("32", "32", "0.1"), run("64", "32", "0.1")];
        assert_eq!(without_followers(keys(), &all), keys());
    }
}
