//! Runs beside each other: what was set differently, what came of it, and whether a difference is more than
//! chance.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::RunReport;
use crate::collect::Experiment;

/// Keys of the configuration that say where a run or its data stand, not what is trained.
const PLACES: [&str; 4] = ["experiment.name", "data.path", "data.cache", "train.seed"];

/// A difference with a lower probability of chance is called real.
const SIGNIFICANT: f64 = 0.05;

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
    let machine = run.machine.as_ref();
    let name = machine.map(|machine| match machine.devices.first() {
        Some(device) => device.name.clone(),
        None => format!("{} ({})", machine.host, machine.cpu.model),
    });
    settings.extend(name.map(|name| ("machine".to_owned(), name)));
    settings
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

/// Mean and, of two values or more, sample variance.
fn moments(values: &[f64]) -> Option<(f64, Option<f64>)> {
    let count = values.len() as f64;
    if values.is_empty() {
        return None;
    }
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    Some((mean, (values.len() > 1).then(|| squares / (count - 1.0))))
}

/// Welch's t-test (B. L. Welch, 1947): the probability of a difference as large between equal means. None
/// where a group has fewer than two values, or neither has any spread.
fn welch(a: &[f64], b: &[f64]) -> Option<f64> {
    let ((mean_a, Some(variance_a)), (mean_b, Some(variance_b))) = (moments(a)?, moments(b)?) else {
        return None;
    };
    let (of_a, of_b) = (variance_a / a.len() as f64, variance_b / b.len() as f64);
    if of_a + of_b <= 0.0 {
        return None;
    }
    let t = (mean_a - mean_b) / (of_a + of_b).sqrt();
    let square = |of: f64, count: usize| of * of / (count as f64 - 1.0);
    let freedom = (of_a + of_b).powi(2) / (square(of_a, a.len()) + square(of_b, b.len()));
    // Two-sided: I_x(ν/2, 1/2) with x = ν / (ν + t²).
    Some(incomplete_beta(freedom / (freedom + t * t), freedom / 2.0, 0.5))
}

/// The regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22) with Lentz's
/// method.
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(1.0 - x, b, a);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (-x).ln_1p()).exp() / a;
    let tiny = 1e-300;
    let guard = |value: f64| if value.abs() < tiny { tiny } else { value };
    let (mut c, mut d) = (1.0, 1.0 / guard(1.0 - (a + b) * x / (a + 1.0)));
    let mut fraction = d;
    for m in 1..300 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut change = 1.0;
        for coefficient in [even, odd] {
            d = 1.0 / guard(1.0 + coefficient * d);
            c = guard(1.0 + coefficient / c);
            change = c * d;
            fraction *= change;
        }
        if (change - 1.0_f64).abs() < 1e-15 {
            break;
        }
    }
    front * fraction
}

/// ln Γ(x) for x > 0, by Stirling's series (DLMF 5.11.1) behind the recurrence Γ(x + 1) = x Γ(x).
fn ln_gamma(x: f64) -> f64 {
    let (mut x, mut below) = (x, 0.0);
    while x < 12.0 {
        below += x.ln();
        x += 1.0;
    }
    let inverse = 1.0 / (x * x);
    let series = (1.0 / 12.0 - inverse * (1.0 / 360.0 - inverse * (1.0 / 1260.0 - inverse / 1680.0))) / x;
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series - below
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-9, "{a} is not {b}");
    }

    #[test]
    fn gamma_and_beta_have_their_known_values() {
        near(ln_gamma(1.0), 0.0);
        near(ln_gamma(0.5), std::f64::consts::PI.sqrt().ln());
        near(ln_gamma(10.0), 362_880_f64.ln());
        // I_x(1, b) = 1 - (1 - x)^b, I_x(a, 1) = x^a, and the symmetry.
        near(incomplete_beta(0.3, 1.0, 4.0), 1.0 - 0.7_f64.powi(4));
        near(incomplete_beta(0.9, 3.0, 1.0), 0.9_f64.powi(3));
        near(incomplete_beta(0.5, 2.5, 2.5), 0.5);
    }

    #[test]
    fn differences_beyond_the_spread_are_real() {
        // t = -1 with 8 degrees of freedom: the two-sided p of Student's distribution is 0.346593507….
        let (a, b) = ([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 3.0, 4.0, 5.0, 6.0]);
        near(welch(&a, &b).unwrap(), 0.346_593_507_087_334_2);
        assert_eq!(Spread::of(&b, &a).differs, Some(false));
        assert_eq!(Spread::of(&[9.0, 9.1, 9.2], &a).differs, Some(true));
        assert_eq!((welch(&[1.0], &a), welch(&[1.0, 1.0], &[1.0, 1.0])), (None, None));
        let alone = Spread::of(&[4.0], &a);
        assert_eq!((alone.count, alone.mean, alone.deviation, alone.p), (1, Some(4.0), None, None));
        assert_eq!(Spread::of(&[], &a), Spread::default());
    }
}
