//! Runs beside each other: what was set differently, what came of it, and whether a difference is more than
//! chance.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::RunReport;
use super::statistics::{SIGNIFICANT, moments, welch};
use crate::collect::Experiment;
use stratus_base::text::significant;
use stratus_run::csv::Task;
use stratus_run::rate;

/// Keys of the configuration that say where a run or its data stand, not what is trained.
const PLACES: [&str; 4] = ["experiment.name", "data.path", "data.cache", "train.seed"];
/// Sections of the configuration whose differences are named first.
const TELLING: [&str; 5] = ["model.", "optimiser.", "schedule.", "train.", "data."];
/// Differences that the verdict names.
const NAMED: usize = 3;
/// Standard errors within which chance keeps 95 % of differences.
const CHANCE: f64 = 1.96;

/// The comparison of several runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// What the runs are compared by: `top-1`, `mean IoU`; `score` where their tasks differ.
    pub score: &'static str,
    /// Keys of the configuration whose values differ, and `machine` where that does.
    pub keys: Vec<String>,
    /// Which run is best, whether by more than chance, and in what they differ; none of fewer than two
    /// scores.
    pub verdict: Option<String>,
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
        let images =
            runs.iter().map(validated).reduce(|a, b| a.filter(|images| Some(*images) == b)).flatten();
        let mut names = runs.iter().map(|run| super::score_name(run.task));
        let score = match names.next() {
            Some(name) if names.all(|other| other == name) => name,
            _ => "score",
        };
        let verdict = verdict(score, &keys, &rows, images);
        Self { score, keys, verdict, rows, repetitions }
    }
}

/// Images that a classification was validated on; none where that is not known.
fn validated(run: &RunReport) -> Option<u64> {
    let classes = &run.experiment.summary.as_ref()?.classes;
    let images = classes.iter().map(|class| class.samples).sum();
    (run.task == Task::Classification && images > 0).then_some(images)
}

/// Runs of equal values, in the order of their first.
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

/// Which is best, in words: single runs judged by the number of images they were validated on, repetitions by
/// how far they spread.
fn verdict(score: &str, keys: &[String], rows: &[ComparisonRow], images: Option<u64>) -> Option<String> {
    let mut ranked: Vec<(&ComparisonRow, Vec<f64>)> = groups(rows)
        .into_iter()
        .map(|group| (group[0], group.iter().filter_map(|row| row.best_score).collect()))
        .filter(|(_, scores): &(_, Vec<f64>)| !scores.is_empty())
        .collect();
    let mean = |scores: &[f64]| scores.iter().sum::<f64>() / scores.len() as f64;
    ranked.sort_by(|a, b| mean(&b.1).total_cmp(&mean(&a.1)));
    let [(best, of_best), (next, of_next), ..] = &ranked[..] else { return None };
    let (high, low) = (mean(of_best), mean(of_next));
    let repeated = of_best.len() > 1 && of_next.len() > 1;
    let judged = match (welch(of_best, of_next).filter(|_| repeated), images) {
        (Some(p), _) if p < SIGNIFICANT => format!(", beyond the spread of repetitions (p = {p:.3})"),
        (Some(p), _) => format!(", within the spread of repetitions (p = {p:.3})"),
        (None, Some(images)) if of_best.len() == 1 && of_next.len() == 1 => {
            let error = ((high * (1.0 - high) + low * (1.0 - low)) / images as f64).sqrt();
            let more = if high - low > CHANCE * error { "more" } else { "no more" };
            format!(", {more} than chance makes of {images} validation images")
        }
        _ => String::new(),
    };
    let first = if high > low { "Best" } else { "Even" };
    let of = |row: &ComparisonRow, scores: &[f64]| {
        let more =
            if scores.len() > 1 { format!(" and {} like it", scores.len() - 1) } else { String::new() };
        format!("{}{more} {:.2} %", row.label, 100.0 * mean(scores))
    };
    let mut text = format!("{first} by {score}: {}, then {}{judged}.", of(best, of_best), of(next, of_next));
    let mut different: Vec<_> =
        keys.iter().zip(best.values.iter().zip(&next.values)).filter(|(_, (a, b))| a != b).collect();
    // What is trained and how comes before where it is kept.
    let rank = |key: &str| TELLING.iter().position(|table| key.starts_with(table)).unwrap_or(TELLING.len());
    different.sort_by_key(|(key, _)| rank(key));
    let differences: Vec<String> =
        different.into_iter().map(|(key, (a, b))| format!("{key} ({a}, {b})")).collect();
    if !differences.is_empty() {
        let more = differences.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more keys") } else { String::new() };
        text += &format!(
            " These two differ in {}{more}.",
            differences[..differences.len().min(NAMED)].join(", ")
        );
    }
    Some(text)
}

/// Whether a key says where a run or its data stand, not what is trained.
pub(crate) fn is_place(key: &str) -> bool {
    PLACES.contains(&key)
}

/// Runs of equal values as one, each group compared with the first; empty where every run stands alone.
fn repetitions(rows: &[ComparisonRow]) -> Vec<Repetitions> {
    let groups = groups(rows);
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
    settle_rate(&mut settings);
    settings.extend(machine_name(run).map(|name| ("machine".to_owned(), name)));
    settings
}

/// Puts the learning rate that was trained with in the place of a recipe's, which is for batches of another
/// size: two runs of one recipe differ in it where their batches do.
pub(crate) fn settle_rate(settings: &mut BTreeMap<String, String>) {
    let Some(meant_for) = settings.remove("optimiser.learning_rate_batch") else { return };
    let number = |key: &str| settings.get(key).and_then(|value| value.parse::<f64>().ok());
    let scales = settings.get("schedule.scale_with_batch").is_none_or(|scales| scales == "true");
    let sizes = number("train.batch_size").zip(meant_for.parse().ok()).filter(|_| scales);
    if let (Some((batch, meant_for)), Some(rate)) = (sizes, number("optimiser.learning_rate")) {
        let name = settings.get("optimiser.name").map_or("sgd", String::as_str);
        let rate = rate * rate::factor(name, batch, meant_for);
        settings.insert("optimiser.learning_rate".to_owned(), significant(rate));
    }
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
    fn the_rate_that_was_trained_with_is_compared() {
        let run = |keys: &[(&str, &str)]| {
            let mut settings: BTreeMap<String, String> =
                keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            settle_rate(&mut settings);
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
    fn the_verdict_says_which_is_best_and_by_what() {
        let keys = ["rate".to_owned()];
        let told = |rows: &[ComparisonRow], images| verdict("top-1", &keys, rows, images);
        let two = [row("a", "0.1", Some(0.6)), row("b", "0.2", Some(0.7))];
        assert_eq!(
            told(&two, Some(100)).unwrap(),
            "Best by top-1: b 70.00 %, then a 60.00 %, no more than chance makes of 100 validation images. \
             These two differ in rate (0.2, 0.1)."
        );
        assert!(told(&two, Some(1000)).unwrap().contains(", more than chance makes of 1000"));
        assert!(!told(&two, None).unwrap().contains("chance"));
        let even = told(&[two[0].clone(), row("b", "0.2", Some(0.6))], None).unwrap();
        assert!(even.starts_with("Even by top-1: a 60.00 %, then b 60.00 %."), "{even}");
        assert_eq!(told(&two[..1], Some(100)), None);
        assert_eq!(told(&[two[0].clone(), row("b", "0.2", None)], Some(100)), None);
        let repeated = [[0.1, 0.60], [0.1, 0.61], [0.1, 0.62], [0.2, 0.70], [0.2, 0.71], [0.2, 0.72]];
        let rows = repeated.map(|[rate, score]| row("r", &rate.to_string(), Some(score)));
        let text = told(&rows, Some(100)).unwrap();
        assert!(
            text.starts_with("Best by top-1: r and 2 like it 71.00 %, then r and 2 like it 61.00 %, beyond"),
            "{text}"
        );
    }

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
