//! Comparison of published figures, such as a paper's table as CSV, with figures of runs.
//!
//! A row of the table is compared with every run of its network and batch size. Data set, epochs and input
//! may differ, which is noted with the figures.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use stratus_base::{did_you_mean, nearest, read_text_at_most};
use stratus_run::summary::{FinalMetrics, Summary};

use super::compare::machine_name;
use super::run::RunReport;
use crate::{Error, Result};

/// Maximum size of a table.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Columns of a table; only `metric` and `value` are required.
pub const COLUMNS: [&str; 13] = [
    "source",
    "framework",
    "model",
    "dataset",
    "machine",
    "image_size",
    "epochs",
    "iterations",
    "batch_size",
    "metric",
    "value",
    "unit",
    "note",
];

/// Aliases of columns.
const ALIASES: [(&str, &str); 4] =
    [("quantity", "metric"), ("network", "model"), ("batch", "batch_size"), ("data_set", "dataset")];

/// The kind of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuantityKind {
    Seconds,
    Fraction,
    Bytes,
    ImagesPerSecond,
    Dimensionless,
}

impl QuantityKind {
    /// Units by name, each with its value in seconds, fractions, bytes or images per second. The first is the
    /// default.
    fn units(self) -> &'static [(&'static str, f64)] {
        match self {
            Self::Seconds => {
                &[("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("min", 60.0), ("h", 3600.0)]
            }
            Self::Fraction => &[("fraction", 1.0), ("percent", 0.01), ("%", 0.01)],
            Self::Bytes => &[
                ("B", 1.0),
                ("kB", 1e3),
                ("MB", 1e6),
                ("GB", 1e9),
                ("KiB", 1024.0),
                ("MiB", 1_048_576.0),
                ("GiB", 1_073_741_824.0),
            ],
            Self::ImagesPerSecond => {
                &[("img/s", 1.0), ("images/s", 1.0), ("imgs/s", 1.0), ("samples/s", 1.0)]
            }
            Self::Dimensionless => &[("", 1.0)],
        }
    }
}

/// A quantity that can be compared with runs.
struct Quantity {
    names: &'static [&'static str],
    kind: QuantityKind,
    /// The value in a run, in the first of [`QuantityKind::units`].
    ours: fn(&RunReport) -> Option<f64>,
}

const fn quantity(
    names: &'static [&'static str],
    kind: QuantityKind,
    ours: fn(&RunReport) -> Option<f64>,
) -> Quantity {
    Quantity { names, kind, ours }
}

/// Every quantity that a run may have.
const QUANTITIES: &[Quantity] = {
    use QuantityKind::{Bytes, Dimensionless, Fraction, ImagesPerSecond, Seconds};
    &[
        // From the start of the process to its end, validation included.
        quantity(&["train_time", "training_time", "total_time"], Seconds, |run| {
            Some(summary(run)?.time.total_s)
        }),
        quantity(&["encoder_time"], Seconds, |run| Some(summary(run)?.first_stage.as_ref()?.total_s)),
        quantity(&["decoder_time"], Seconds, |run| {
            let summary = summary(run)?;
            summary.first_stage.as_ref().map(|_| summary.time.total_s)
        }),
        quantity(&["iteration_time", "step_time"], Seconds, |run| {
            (run.accounting.iterations > 0).then_some(run.accounting.wall.median_ms / 1e3)
        }),
        quantity(&["time_per_image"], Seconds, |run| Some(1.0 / images_per_second(run)?)),
        quantity(&["images_per_second", "throughput"], ImagesPerSecond, images_per_second),
        quantity(&["accuracy", "top1", "top_1"], Fraction, |run| {
            last(run)?.val_top1.or(last(run)?.val_accuracy)
        }),
        quantity(&["top5", "top_5"], Fraction, |run| last(run)?.val_top5),
        quantity(&["mean_accuracy"], Fraction, |run| last(run)?.val_mean_accuracy),
        quantity(&["miou", "mean_iou"], Fraction, |run| last(run)?.val_miou),
        quantity(&["bf", "bf_score"], Fraction, |run| last(run)?.val_bf),
        quantity(&["map", "mean_average_precision"], Fraction, |run| last(run)?.labels.val_map),
        quantity(&["auc", "mean_auc"], Fraction, |run| last(run)?.labels.val_auc),
        quantity(&["f1", "mean_f1"], Fraction, |run| last(run)?.labels.val_f1),
        quantity(&["exact_match"], Fraction, |run| last(run)?.labels.val_exact_match),
        quantity(&["label_accuracy"], Fraction, |run| last(run)?.val_label_accuracy),
        quantity(&["r2"], Dimensionless, |run| last(run)?.val_r2),
        // In the unit of the targets, which runs do not know.
        quantity(&["mae", "mean_absolute_error"], Dimensionless, |run| last(run)?.numbers.val_mae),
        quantity(&["rmse"], Dimensionless, |run| last(run)?.numbers.val_rmse),
        quantity(&["val_loss", "validation_loss"], Dimensionless, |run| last(run)?.val_loss),
        quantity(&["train_loss", "training_loss"], Dimensionless, |run| last(run)?.train_loss),
        quantity(&["host_memory"], Bytes, |run| Some(summary(run)?.memory.measured_peak_rss_bytes? as f64)),
        quantity(&["gpu_memory", "device_memory"], Bytes, |run| {
            Some(summary(run)?.memory.device_peak_bytes? as f64)
        }),
        quantity(&["gpu_utilisation", "gpu_utilization", "gpu_usage"], Fraction, |run| {
            Some(summary(run)?.usage.gpu_percent_mean? / 100.0)
        }),
        quantity(&["cpu_utilisation", "cpu_utilization", "cpu_usage"], Fraction, |run| {
            Some(summary(run)?.usage.cpu_percent_mean? / 100.0)
        }),
        quantity(&["unattributed"], Fraction, |run| {
            let percent = run.accounting.unattributed.share_percent.abs();
            (run.accounting.iterations > 0).then_some(percent / 100.0)
        }),
    ]
};

fn summary(run: &RunReport) -> Option<&Summary> {
    run.record.summary.as_ref()
}

/// The metrics at the end of the last epoch.
fn last(run: &RunReport) -> Option<&FinalMetrics> {
    Some(&summary(run)?.final_metrics)
}

fn images_per_second(run: &RunReport) -> Option<f64> {
    summary(run)?.images_per_second.median.filter(|rate| *rate > 0.0)
}

/// A table of published figures.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedTable {
    path: PathBuf,
    rows: Vec<PublishedFigure>,
}

/// A published figure. Empty fields of the table are empty strings.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PublishedFigure {
    /// The source.
    pub source: String,
    /// The framework.
    pub framework: String,
    /// The network.
    pub model: String,
    /// The data set.
    pub dataset: String,
    /// The machine.
    pub machine: String,
    /// The size of the network's input.
    pub image_size: String,
    /// Epochs.
    pub epochs: Option<u64>,
    /// Iterations.
    pub iterations: Option<u64>,
    /// Images per batch.
    pub batch_size: Option<u64>,
    /// The name of the quantity.
    pub metric: String,
    /// The figure.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// A remark.
    pub note: String,
}

/// A comparison of published figures with figures of runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PublishedComparison {
    /// The table.
    pub file: PathBuf,
    /// One row per published figure and matching run.
    pub rows: Vec<PublishedComparisonRow>,
    /// Number of rows for other networks or batch sizes.
    #[serde(rename = "unmatched_rows")]
    pub unmatched_rows: usize,
    /// Metrics that runs do not have, with their number of rows.
    #[serde(rename = "unknown")]
    pub unsupported_metrics: BTreeMap<String, usize>,
}

/// A published figure with the corresponding figure of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PublishedComparisonRow {
    /// The published figure.
    pub published: PublishedFigure,
    /// The label of the run.
    pub run: String,
    /// The machine of the run.
    pub machine: Option<String>,
    /// The figure of the run, in the unit of the published one, if the run has it.
    pub ours: Option<f64>,
    /// Ours divided by the published figure; `None` if that is 0.
    pub ratio: Option<f64>,
    /// The differences of the run from the published one, such as `epochs 50, here 10`.
    pub differences: Vec<String>,
}

impl PublishedTable {
    /// Reads a table of published figures.
    ///
    /// # Errors
    /// If the file cannot be read, a column is unknown or missing, a value is not a number, or a unit does
    /// not belong to its metric. The message names the line.
    pub fn read(path: &Path) -> Result<Self> {
        let length = std::fs::metadata(path).map_err(Error::io("read", path))?.len();
        if length > MAX_FILE_BYTES {
            return Err(invalid(path, format!("it has {length} bytes; the limit is {MAX_FILE_BYTES}")));
        }
        let text = read_text_at_most(path, MAX_FILE_BYTES).map_err(Error::io("read", path))?;
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
        let damaged = |error: csv::Error| invalid(path, error.to_string());
        let columns = columns(path, reader.headers().map_err(damaged)?)?;
        let mut rows = Vec::new();
        for record in reader.records() {
            let record = record.map_err(damaged)?;
            let line = record.position().map_or(0, csv::Position::line);
            let row = parse_row(&columns, &record)
                .map_err(|reason| invalid(path, format!("line {line}: {reason}")))?;
            rows.push(row);
        }
        Ok(Self { path: path.to_owned(), rows })
    }
}

impl PublishedComparison {
    /// Compares published figures with runs.
    pub(super) fn new(reference: &PublishedTable, runs: &[RunReport]) -> Self {
        let (mut rows, mut unmatched_rows, mut unknown) = (Vec::new(), 0, BTreeMap::new());
        for published in &reference.rows {
            let Some((quantity, unit)) = quantity_and_unit(published) else {
                *unknown.entry(published.metric.clone()).or_default() += 1;
                continue;
            };
            let mut matched = false;
            for run in runs.iter().filter(|run| matches_run(published, run)) {
                matched = true;
                let ours = (quantity.ours)(run).map(|value| value / unit).filter(|value| value.is_finite());
                rows.push(PublishedComparisonRow {
                    run: run.label.clone(),
                    machine: machine_name(&run.record),
                    ours,
                    ratio: ours.filter(|_| published.value != 0.0).map(|ours| ours / published.value),
                    differences: differences(published, run),
                    published: published.clone(),
                });
            }
            unmatched_rows += usize::from(!matched);
        }
        Self { file: reference.path.clone(), rows, unmatched_rows, unsupported_metrics: unknown }
    }

    /// A description of rows that could not be compared; empty if there are none.
    #[must_use]
    pub fn omissions(&self) -> String {
        let mut text = String::new();
        if self.unmatched_rows > 0 {
            let rows = if self.unmatched_rows == 1 { "row is" } else { "rows are" };
            text = format!("{} {rows} for other networks or batch sizes.", self.unmatched_rows);
        }
        if !self.unsupported_metrics.is_empty() {
            let separator = if text.is_empty() { "" } else { " " };
            let names: Vec<String> =
                self.unsupported_metrics.iter().map(|(name, count)| format!("{name} ({count})")).collect();
            text.push_str(&format!("{separator}Unsupported metrics: {}.", names.join(", ")));
        }
        text
    }
}

fn invalid(path: &Path, reason: String) -> Error {
    Error::PublishedTable { path: path.to_owned(), reason }
}

/// The positions of columns, by name.
fn columns(path: &Path, heading: &csv::StringRecord) -> Result<BTreeMap<&'static str, usize>> {
    let mut columns = BTreeMap::new();
    for (position, written) in heading.iter().enumerate() {
        let written = written.trim_start_matches('\u{feff}');
        let name = written.to_lowercase().replace([' ', '-'], "_");
        let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name.as_str(), |(_, name)| name);
        let Some(known) = COLUMNS.into_iter().find(|known| *known == name) else {
            let similar = nearest(name, COLUMNS);
            let reason = format!(
                "line 1: unknown column `{written}`{}; expected {}",
                did_you_mean(similar),
                COLUMNS.join(", ")
            );
            return Err(invalid(path, reason));
        };
        if columns.insert(known, position).is_some() {
            return Err(invalid(path, format!("line 1: duplicate column `{known}`")));
        }
    }
    for needed in ["metric", "value"] {
        if !columns.contains_key(needed) {
            return Err(invalid(path, format!("line 1: missing column `{needed}`")));
        }
    }
    Ok(columns)
}

/// Parses a row of the table; the error describes the problem.
fn parse_row(
    columns: &BTreeMap<&'static str, usize>,
    record: &csv::StringRecord,
) -> std::result::Result<PublishedFigure, String> {
    let text = |name: &str| columns.get(name).and_then(|&at| record.get(at)).unwrap_or_default().to_owned();
    let count = |name: &str| match text(name).as_str() {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| format!("{name} must be an integer, but is `{text}`")),
    };
    let value = text("value");
    let value = value.parse::<f64>().ok().filter(|value| value.is_finite()).ok_or_else(|| {
        format!("value must be a number with a decimal point and without a unit, but is `{value}`")
    })?;
    let row = PublishedFigure {
        source: text("source"),
        framework: text("framework"),
        model: text("model"),
        dataset: text("dataset"),
        machine: text("machine"),
        image_size: text("image_size"),
        epochs: count("epochs")?,
        iterations: count("iterations")?,
        batch_size: count("batch_size")?,
        metric: text("metric"),
        value,
        unit: text("unit"),
        note: text("note"),
    };
    if row.metric.is_empty() {
        return Err("metric must not be empty".to_owned());
    }
    if let Some(kind) = find_quantity(&row.metric).map(|quantity| quantity.kind)
        && kind != QuantityKind::Dimensionless
        && quantity_and_unit(&row).is_none()
    {
        let units: Vec<&str> = kind.units().iter().map(|(name, _)| *name).collect();
        return Err(format!("unknown unit `{}` of {}; expected {}", row.unit, row.metric, units.join(", ")));
    }
    Ok(row)
}

fn find_quantity(metric: &str) -> Option<&'static Quantity> {
    let metric = metric.to_lowercase().replace([' ', '-'], "_");
    QUANTITIES.iter().find(|quantity| quantity.names.contains(&metric.as_str()))
}

/// The quantity of a figure, and the value of the figure's unit in the quantity's unit.
fn quantity_and_unit(published: &PublishedFigure) -> Option<(&'static Quantity, f64)> {
    let quantity = find_quantity(&published.metric)?;
    let units = quantity.kind.units();
    let unit = match published.unit.as_str() {
        "" => units.first(),
        _ if quantity.kind == QuantityKind::Dimensionless => units.first(),
        unit => units.iter().find(|(name, _)| *name == unit),
    };
    Some((quantity, unit?.1))
}

/// Returns whether a figure is for the network and batch size of a run, if it names them.
fn matches_run(published: &PublishedFigure, run: &RunReport) -> bool {
    let Some(summary) = &run.record.summary else { return false };
    let model =
        published.model.is_empty() || normalised_name(&published.model) == normalised_name(&summary.model);
    model && published.batch_size.is_none_or(|size| size == summary.batch_size)
}

/// Normalises a name for comparison: `DeepLabv3+-ResNet18` and `deeplabv3plus_resnet18` are equal.
fn normalised_name(name: &str) -> String {
    let name = name.to_lowercase().replace('+', "plus");
    name.chars().filter(|letter| letter.is_alphanumeric()).collect()
}

fn differences(published: &PublishedFigure, run: &RunReport) -> Vec<String> {
    let Some(summary) = &run.record.summary else { return Vec::new() };
    let mut differences = Vec::new();
    let mut add = |name: &str, theirs: String, ours: String| {
        differences.push(format!("{name} {theirs}, here {ours}"));
    };
    if !published.dataset.is_empty()
        && normalised_name(&published.dataset) != normalised_name(&summary.dataset)
    {
        add("data set", published.dataset.clone(), summary.dataset.clone());
    }
    if let Some(epochs) = published.epochs.filter(|epochs| *epochs != u64::from(summary.epochs)) {
        add("epochs", epochs.to_string(), summary.epochs.to_string());
    }
    if let Some(iterations) = published.iterations.filter(|count| *count != summary.iterations) {
        add("iterations", iterations.to_string(), summary.iterations.to_string());
    }
    differences
}
