//! Comparison of runs: differences in configuration and results, and their significance.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::run::RunReport;
use super::score::Score;
use super::statistics::{SIGNIFICANT, moments, welch};
use crate::collect::{RunRecord, flatten};
use stratus_base::text::significant;
use stratus_run::csv::Task;
use stratus_run::rate;

/// Keys of the configuration that do not affect what is trained: names, paths and the seed.
const IGNORED_KEYS: [&str; 4] = ["experiment.name", "data.path", "data.cache", "train.seed"];
/// Sections of the configuration in the order in which differences are listed.
const SECTION_ORDER: [&str; 5] = ["model.", "optimiser.", "schedule.", "train.", "data."];
/// Maximum number of differences in the verdict.
const MAX_NAMED: usize = 3;
/// Half-width of the 95 % interval of a normal distribution, in standard errors.
const Z_95: f64 = 1.96;

/// The comparison of several runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The metric of the comparison.
    pub score: Score,
    /// Keys of the configuration whose values differ, and `machine` if that differs.
    pub keys: Vec<String>,
    /// The best run, the significance, and the differences; `None` with fewer than two scores.
    pub verdict: Option<String>,
    /// One row per run.
    pub rows: Vec<ComparisonRow>,
    /// Groups of runs that differ only in the seed; empty without repetitions.
    pub repetitions: Vec<Repetitions>,
}

/// The row of a run in the comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparisonRow {
    /// The label of the run.
    pub label: String,
    /// The status: `completed`, `interrupted`, ….
    pub status: String,
    /// The values of [`Comparison::keys`].
    pub values: Vec<String>,
    /// The best [`Comparison::score`] on the validation data.
    pub best_score: Option<f64>,
    /// Last loss on the validation data.
    pub val_loss: Option<f64>,
    /// Last loss on the training data.
    pub train_loss: Option<f64>,
    /// Median milliseconds of an iteration.
    pub iteration_ms: Option<f64>,
    /// Median images per second.
    pub images_per_second: Option<f64>,
    /// Images per second, relative to the first run.
    pub speed_up: Option<f64>,
    /// Total seconds.
    pub total_s: Option<f64>,
    /// Peak memory in bytes, on the device if there is one.
    pub peak_bytes: Option<u64>,
}

/// A group of runs that differ only in the seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Repetitions {
    /// The labels of the runs.
    pub runs: Vec<String>,
    /// The values of [`Comparison::keys`].
    pub values: Vec<String>,
    /// The best [`Comparison::score`] on the validation data.
    pub best_score: SampleStatistics,
    /// Images per second.
    pub images_per_second: SampleStatistics,
    /// Total seconds.
    pub total_s: SampleStatistics,
}

/// Statistics of the values of repetitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SampleStatistics {
    /// Number of values.
    pub count: usize,
    /// Their mean.
    pub mean: Option<f64>,
    /// Their sample standard deviation; `None` with fewer than two.
    pub deviation: Option<f64>,
    /// The p-value of Welch's t-test (two-sided) against the first group.
    pub p: Option<f64>,
    /// True if the difference from the first group is significant: `p` below 0.05.
    pub differs: Option<bool>,
}

impl Comparison {
    /// Compares runs, in their order.
    pub(crate) fn new(runs: &[RunReport]) -> Self {
        let settings: Vec<BTreeMap<String, String>> = runs.iter().map(|run| settings(&run.record)).collect();
        let keys = differing_keys(&settings);
        let values = |run: usize| -> Vec<String> {
            keys.iter().map(|key| settings[run].get(key).cloned().unwrap_or_default()).collect()
        };
        let speed = |run: &RunReport| run.record.summary.as_ref()?.images_per_second.median;
        let first = runs.first().and_then(speed);
        let rows: Vec<ComparisonRow> = runs
            .iter()
            .enumerate()
            .map(|(number, run)| {
                let summary = run.record.summary.as_ref();
                let images_per_second = speed(run);
                ComparisonRow {
                    label: run.label.clone(),
                    status: run.record.status.name().to_owned(),
                    values: values(number),
                    best_score: run.epochs.iter().filter_map(|epoch| epoch.val_score).reduce(f64::max),
                    val_loss: summary.and_then(|summary| summary.final_metrics.val_loss),
                    train_loss: summary.and_then(|summary| summary.final_metrics.train_loss),
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
        let images =
            runs.iter().map(validation_images).reduce(|a, b| a.filter(|images| Some(*images) == b)).flatten();
        let score = Score::of_all(runs.iter().map(|run| run.task));
        let verdict = verdict(score, &keys, &rows, images);
        Self { score, keys, verdict, rows, repetitions }
    }
}

/// Number of validation images of a classification, if known.
fn validation_images(run: &RunReport) -> Option<u64> {
    let classes = &run.record.summary.as_ref()?.outputs.classes;
    let images = classes.iter().map(|class| class.samples).sum();
    (run.task == Task::Classification && images > 0).then_some(images)
}

/// Groups runs with equal values, in the order of their first run.
fn groups(rows: &[ComparisonRow]) -> Vec<Vec<&ComparisonRow>> {
    let mut groups: Vec<Vec<&ComparisonRow>> = Vec::new();
    for row in rows {
        match groups.iter_mut().find(|group| group[0].values == row.values) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups
}

/// The best run, in words. The significance is based on the number of validation images for single runs, and
/// on the spread for repetitions.
fn verdict(score: Score, keys: &[String], rows: &[ComparisonRow], images: Option<u64>) -> Option<String> {
    let mut ranked: Vec<(&ComparisonRow, Vec<f64>)> = groups(rows)
        .into_iter()
        .map(|group| (group[0], group.iter().filter_map(|row| row.best_score).collect()))
        .filter(|(_, scores): &(_, Vec<f64>)| !scores.is_empty())
        .collect();
    let mean = |scores: &[f64]| scores.iter().sum::<f64>() / scores.len() as f64;
    ranked.sort_by(|a, b| mean(&b.1).total_cmp(&mean(&a.1)));
    let [(best, best_scores), (next, next_scores), ..] = &ranked[..] else { return None };
    let (high, low) = (mean(best_scores), mean(next_scores));
    let repeated = best_scores.len() > 1 && next_scores.len() > 1;
    let significance = match (welch(best_scores, next_scores).filter(|_| repeated), images) {
        (Some(p), _) if p < SIGNIFICANT => format!(", significant across repetitions (p = {p:.3})"),
        (Some(p), _) => format!(", not significant across repetitions (p = {p:.3})"),
        (None, Some(images)) if best_scores.len() == 1 && next_scores.len() == 1 => {
            let error = ((high * (1.0 - high) + low * (1.0 - low)) / images as f64).sqrt();
            let significant = if high - low > Z_95 * error { "significant" } else { "not significant" };
            format!(", {significant} for {images} validation images")
        }
        _ => String::new(),
    };
    let first = if high > low { "Best" } else { "Equal" };
    let describe = |row: &ComparisonRow, scores: &[f64]| {
        let repetitions =
            if scores.len() > 1 { format!(" (mean of {})", scores.len()) } else { String::new() };
        format!("{}{repetitions} {}", row.label, score.text(mean(scores)))
    };
    let mut text = format!(
        "{first} {}: {}, then {}{significance}.",
        score.name(),
        describe(best, best_scores),
        describe(next, next_scores)
    );
    let mut different: Vec<_> =
        keys.iter().zip(best.values.iter().zip(&next.values)).filter(|(_, (a, b))| a != b).collect();
    // List differences in what is trained first.
    let rank = |key: &str| {
        SECTION_ORDER.iter().position(|table| key.starts_with(table)).unwrap_or(SECTION_ORDER.len())
    };
    different.sort_by_key(|(key, _)| rank(key));
    let differences: Vec<String> =
        different.into_iter().map(|(key, (a, b))| format!("{key} ({a}, {b})")).collect();
    if !differences.is_empty() {
        let more = differences.len().saturating_sub(MAX_NAMED);
        let more = if more > 0 { format!(" and {more} more keys") } else { String::new() };
        text +=
            &format!(" They differ in {}{more}.", differences[..differences.len().min(MAX_NAMED)].join(", "));
    }
    Some(text)
}

/// Returns whether a key does not affect what is trained.
pub(crate) fn is_ignored_key(key: &str) -> bool {
    IGNORED_KEYS.contains(&key)
}

/// Groups of runs with equal values, each compared with the first group; empty without repetitions.
fn repetitions(rows: &[ComparisonRow]) -> Vec<Repetitions> {
    let groups = groups(rows);
    if groups.iter().all(|group| group.len() < 2) {
        return Vec::new();
    }
    let values = |group: &[&ComparisonRow], value: fn(&ComparisonRow) -> Option<f64>| -> Vec<f64> {
        group.iter().filter_map(|row| value(row)).collect()
    };
    let statistics = |group: &[&ComparisonRow], value| {
        SampleStatistics::new(&values(group, value), &values(&groups[0], value))
    };
    groups
        .iter()
        .map(|group| Repetitions {
            runs: group.iter().map(|row| row.label.clone()).collect(),
            values: group[0].values.clone(),
            best_score: statistics(group, |row| row.best_score),
            images_per_second: statistics(group, |row| row.images_per_second),
            total_s: statistics(group, |row| row.total_s),
        })
        .collect()
}

/// The keys whose values differ between runs, sorted by name, without ignored keys.
pub(crate) fn differing_keys(settings: &[BTreeMap<String, String>]) -> Vec<String> {
    let mut keys: Vec<String> = settings.iter().flat_map(BTreeMap::keys).cloned().collect();
    keys.sort_unstable();
    keys.dedup();
    let differs = |key: &String| {
        let first = settings.first().and_then(|settings| settings.get(key));
        settings.iter().any(|settings| settings.get(key) != first)
    };
    keys.retain(|key| differs(key) && !is_ignored_key(key));
    keys
}

/// All keys of the configuration with their values as text, and the machine.
pub(crate) fn settings(run: &RunRecord) -> BTreeMap<String, String> {
    let mut settings = effective_settings(&run.configuration);
    settings.extend(machine_name(run).map(|name| ("machine".to_owned(), name)));
    settings
}

/// All keys of a configuration with their values as text, and the learning rate that was used.
pub(crate) fn effective_settings(configuration: &Value) -> BTreeMap<String, String> {
    let mut settings = flatten(configuration);
    apply_batch_scaling(&mut settings);
    settings
}

/// Replaces a recipe's learning rate by the batch-scaled rate that was used, so that runs of a recipe with
/// different batch sizes differ in it.
fn apply_batch_scaling(settings: &mut BTreeMap<String, String>) {
    let Some(reference_batch) = settings.remove("optimiser.learning_rate_batch") else { return };
    let number = |key: &str| settings.get(key).and_then(|value| value.parse::<f64>().ok());
    let scales = settings.get("schedule.scale_with_batch").is_none_or(|scales| scales == "true");
    let sizes = number("train.batch_size").zip(reference_batch.parse().ok()).filter(|_| scales);
    if let (Some((batch, reference_batch)), Some(rate)) = (sizes, number("optimiser.learning_rate")) {
        let name = settings.get("optimiser.name").map_or("sgd", String::as_str);
        let rate = rate * rate::batch_scaling_factor(name, batch, reference_batch);
        settings.insert("optimiser.learning_rate".to_owned(), significant(rate));
    }
}

/// The device of a run, or the host and its CPU.
pub(super) fn machine_name(run: &RunRecord) -> Option<String> {
    let machine = run.machine.as_ref()?;
    Some(match machine.devices.first() {
        Some(device) => device.name.clone(),
        None => format!("{} ({})", machine.host, machine.cpu.model),
    })
}

impl SampleStatistics {
    fn new(values: &[f64], first: &[f64]) -> Self {
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
    fn compares_the_scaled_learning_rate() {
        let run = |keys: &[(&str, &str)]| {
            let mut settings: BTreeMap<String, String> =
                keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            apply_batch_scaling(&mut settings);
            settings.remove("optimiser.learning_rate").unwrap()
        };
        let recipe = [
            ("optimiser.name", "sgd"),
            ("optimiser.learning_rate", "0.1"),
            ("optimiser.learning_rate_batch", "128"),
            ("train.batch_size", "32"),
        ];
        assert_eq!(run(&recipe), "0.025");
        let adam = [("optimiser.name", "adam"), recipe[1], recipe[2], recipe[3]];
        assert_eq!(run(&adam), "0.05");
        assert_eq!(run(&[recipe[0], recipe[1], recipe[3]]), "0.1");
        assert_eq!(run(&[&recipe[..], &[("schedule.scale_with_batch", "false")]].concat()), "0.1");
    }

    fn row(label: &str, rate: &str, best_score: Option<f64>) -> ComparisonRow {
        ComparisonRow {
            label: label.to_owned(),
            status: "completed".to_owned(),
            values: vec![rate.to_owned()],
            best_score,
            val_loss: None,
            train_loss: None,
            iteration_ms: None,
            images_per_second: None,
            speed_up: None,
            total_s: None,
            peak_bytes: None,
        }
    }

    #[test]
    fn verdict_names_the_best_run_and_the_significance() {
        let keys = ["rate".to_owned()];
        let verdict_of =
            |rows: &[ComparisonRow], images| verdict(Score::Of(Task::Classification), &keys, rows, images);
        let two = [row("a", "0.1", Some(0.6)), row("b", "0.2", Some(0.7))];
        assert_eq!(
            verdict_of(&two, Some(100)).unwrap(),
            "Best top-1: b 70.00 %, then a 60.00 %, not significant for 100 validation images. \
             They differ in rate (0.2, 0.1)."
        );
        assert!(verdict_of(&two, Some(1000)).unwrap().contains(", significant for 1000"));
        assert!(!verdict_of(&two, None).unwrap().contains("significant"));
        let even = verdict_of(&[two[0].clone(), row("b", "0.2", Some(0.6))], None).unwrap();
        assert!(even.starts_with("Equal top-1: a 60.00 %, then b 60.00 %."), "{even}");
        assert_eq!(verdict_of(&two[..1], Some(100)), None);
        assert_eq!(verdict_of(&[two[0].clone(), row("b", "0.2", None)], Some(100)), None);
        let repeated = [[0.1, 0.60], [0.1, 0.61], [0.1, 0.62], [0.2, 0.70], [0.2, 0.71], [0.2, 0.72]];
        let rows = repeated.map(|[rate, score]| row("r", &rate.to_string(), Some(score)));
        let text = verdict_of(&rows, Some(100)).unwrap();
        assert!(
            text.starts_with("Best top-1: r (mean of 3) 71.00 %, then r (mean of 3) 61.00 %, significant"),
            "{text}"
        );
    }

    #[test]
    fn differences_beyond_the_spread_are_significant() {
        let (a, b) = ([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(SampleStatistics::new(&b, &a).differs, Some(false));
        assert_eq!(SampleStatistics::new(&[9.0, 9.1, 9.2], &a).differs, Some(true));
        let alone = SampleStatistics::new(&[4.0], &a);
        assert_eq!((alone.count, alone.mean, alone.deviation, alone.p), (1, Some(4.0), None, None));
        assert_eq!(SampleStatistics::new(&[], &a), SampleStatistics::default());
    }
}
