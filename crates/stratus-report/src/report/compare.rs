//! Runs beside each other: what was set differently, what came of it, and whether a difference is more than
//! chance.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::RunReport;
use super::statistics::{SIGNIFICANT, moments, welch};
use crate::collect::Experiment;

/// Keys of the configuration that say where a run or its data stand, not what is trained, or of what size the
/// batches are that a learning rate was meant for, which the rate and the batch tell.
const PLACES: [&str; 5] =
    ["experiment.name", "data.path", "data.cache", "train.seed", "optimiser.learning_rate_batch"];

/// The comparison of several runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// What the runs are compared by: `top-1`, `mean IoU`; `score` where their tasks differ.
    pub score: &'static str,
    /// Keys of the configuration whose values differ, and `machine` where that does.
    pub keys: Vec<String>,
    /// A row a run.
    pub rows: Vec<ComparisonRow>,
    /// Runs that differ in nothing but the seed, as one; only where there is a repetition at all.
    pub repetitions: Vec<Repetitions>,
}

/// A run in the comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparisonRow {
    /// The run's label.
    pub label: String,
    /// How it ended: `completed`, `interrupted`, ….
    pub status: String,
    /// The values of [`Comparison::keys`].
    pub values: Vec<String>,
    /// The best [`Comparison::score`] on the validation data.
    pub best_score: Option<f64>,
    /// The last loss on the validation data.
    pub val_loss: Option<f64>,
    /// The last loss on the training data.
    pub train_loss: Option<f64>,
    /// Milliseconds of an iteration: the median.
    pub iteration_ms: Option<f64>,
    /// Images a second: the median.
    pub images_per_second: Option<f64>,
    /// Images a second against the first run's.
    pub speed_up: Option<f64>,
    /// Seconds in all.
    pub total_s: Option<f64>,
    /// The most resident memory, in bytes; a device's where there is one.
    pub peak_bytes: Option<u64>,
}

/// Runs that differ in nothing but the seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Repetitions {
    /// The labels of the runs.
    pub runs: Vec<String>,
    /// The values of [`Comparison::keys`].
    pub values: Vec<String>,
    /// The best [`Comparison::score`] on the validation data.
    pub best_score: Spread,
    /// Images a second.
    pub images_per_second: Spread,
    /// Seconds in all.
    pub total_s: Spread,
}

/// Mean and spread of repetitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// How many values there are.
    pub count: usize,
    /// Their mean.
    pub mean: Option<f64>,
    /// Their sample standard deviation; none of fewer than two.
    pub deviation: Option<f64>,
    /// The probability, by Welch's t-test (two-sided), of a difference as large between means that are equal,
    /// against the first group.
    pub p: Option<f64>,
    /// Whether the difference from the first group is called real: `p` below 0.05.
    pub differs: Option<bool>,
}

impl Comparison {
    /// Compares runs, in their order.
    pub(crate) fn of(runs: &[RunReport]) -> Self {
        let settings: Vec<BTreeMap<String, String>> =
            runs.iter().map(|run| settings(&run.experiment)).collect();
        let keys = differing(&settings);
        let values = |of: usize| -> Vec<String> {
            keys.iter().map(|key| settings[of].get(key).cloned().unwrap_or_default()).collect()
        };
        let speed = |run: &RunReport| run.experiment.summary.as_ref()?.images_per_second.median;
        let first = runs.first().and_then(speed);
        let rows: Vec<ComparisonRow> = runs
            .iter()
            .enumerate()
            .map(|(number, run)| {
                let summary = run.experiment.summary.as_ref();
                let images_per_second = speed(run);
                ComparisonRow {
                    label: run.label.clone(),
                    status: run.experiment.status.name().to_owned(),
                    values: values(number),
                    best_score: run.epochs.iter().filter_map(|epoch| epoch.val_score).reduce(f64::max),
                    val_loss: summary.and_then(|summary| summary.last.val_loss),
                    train_loss: summary.and_then(|summary| summary.last.train_loss),
                    iteration_ms: (run.accounting.iterations > 0).then_some(run.accounting.wall.median_ms),
                    images_per_second,
                    speed_up: images_per_second.zip(first).map(|(now, first)| now / first),
                    total_s: summary.map(|summary| summary.time.total_s),
                    peak_bytes: summary.and_then(|summary| {
                        summary.memory.device_peak_bytes.or(summary.memory.measured_peak_rss_bytes)
                    }),
                }
            })
            .collect();
        let repetitions = repetitions(&rows);
        let mut names = runs.iter().map(|run| super::score_name(run.task));
        let score = match names.next() {
            Some(name) if names.all(|other| other == name) => name,
            _ => "score",
        };
        Self { score, keys, rows, repetitions }
    }
}

/// Whether a key says where a run or its data stand, not what is trained.
pub(crate) fn is_place(key: &str) -> bool {
    PLACES.contains(&key)
}

/// Runs of equal values as one, each group compared with the first; empty where every run stands alone.
fn repetitions(rows: &[ComparisonRow]) -> Vec<Repetitions> {
    let mut groups: Vec<Vec<&ComparisonRow>> = Vec::new();
    for row in rows {
        match groups.iter_mut().find(|group| group[0].values == row.values) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    if groups.iter().all(|group| group.len() < 2) {
        return Vec::new();
    }
    let of = |group: &[&ComparisonRow], value: fn(&ComparisonRow) -> Option<f64>| -> Vec<f64> {
        group.iter().filter_map(|row| value(row)).collect()
    };
    let spread = |group: &[&ComparisonRow], value| Spread::of(&of(group, value), &of(&groups[0], value));
    groups
        .iter()
        .map(|group| Repetitions {
            runs: group.iter().map(|row| row.label.clone()).collect(),
            values: group[0].values.clone(),
            best_score: spread(group, |row| row.best_score),
            images_per_second: spread(group, |row| row.images_per_second),
            total_s: spread(group, |row| row.total_s),
        })
        .collect()
}

/// The keys whose values differ between runs, by name, without those of places.
pub(crate) fn differing(settings: &[BTreeMap<String, String>]) -> Vec<String> {
    let mut keys: Vec<String> = settings.iter().flat_map(BTreeMap::keys).cloned().collect();
    keys.sort_unstable();
    keys.dedup();
    let differs = |key: &String| {
        let first = settings.first().and_then(|settings| settings.get(key));
        settings.iter().any(|settings| settings.get(key) != first)
    };
    keys.retain(|key| differs(key) && !is_place(key));
    keys
}

/// Every key of the configuration with its value as text, and the machine.
pub(crate) fn settings(run: &Experiment) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    if let Some(tables) = run.configuration.as_object() {
        tables.iter().for_each(|(name, value)| flatten(name, value, &mut settings));
    }
    settings.extend(machine_name(run).map(|name| ("machine".to_owned(), name)));
    settings
}

/// The device that a run ran on, or the host and its processor.
pub(super) fn machine_name(run: &Experiment) -> Option<String> {
    let machine = run.machine.as_ref()?;
    Some(match machine.devices.first() {
        Some(device) => device.name.clone(),
        None => format!("{} ({})", machine.host, machine.cpu.model),
    })
}

/// Enters the keys of a table, `train.epochs`, with their values as text.
pub(crate) fn flatten(name: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(table) => {
            table.iter().for_each(|(key, value)| flatten(&format!("{name}.{key}"), value, into));
        }
        Value::String(text) => _ = into.insert(name.to_owned(), text.clone()),
        other => _ = into.insert(name.to_owned(), other.to_string()),
    }
}

impl Spread {
    fn of(values: &[f64], first: &[f64]) -> Self {
        let Some((mean, variance)) = moments(values) else { return Self::default() };
        let count = values.len();
        let p = if std::ptr::eq(values, first) || values == first { None } else { welch(values, first) };
        Self {
            count,
            mean: Some(mean),
            deviation: variance.map(f64::sqrt),
            p,
            differs: p.map(|p| p < SIGNIFICANT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_beyond_the_spread_are_real() {
        let (a, b) = ([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(Spread::of(&b, &a).differs, Some(false));
        assert_eq!(Spread::of(&[9.0, 9.1, 9.2], &a).differs, Some(true));
        let alone = Spread::of(&[4.0], &a);
        assert_eq!((alone.count, alone.mean, alone.deviation, alone.p), (1, Some(4.0), None, None));
        assert_eq!(Spread::of(&[], &a), Spread::default());
    }
}
