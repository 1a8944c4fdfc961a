//! Published figures beside those of runs: a table of a paper or a deck, as CSV, against what was measured
//! here.
//!
//! A row of the table is held against every run of its network and batch size. Data set, epochs and input
//! may be others: that is said beside the figures.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use stratus_base::{did_you_mean, nearest};

use super::RunReport;
use super::compare::machine_name;
use crate::{Error, Result};

/// The most bytes of a table.
const LONGEST: u64 = 64 << 20;

/// Columns that a table may have. `metric` and `value` it must have.
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

/// Other names of columns.
const ALIASES: [(&str, &str); 4] =
    [("quantity", "metric"), ("network", "model"), ("batch", "batch_size"), ("data_set", "dataset")];

/// What a figure measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Seconds,
    Share,
    Bytes,
    ImagesPerSecond,
    Plain,
}

impl Kind {
    /// Units by name, with what one is in seconds, shares, bytes, images a second. The first is meant where a
    /// table names none.
    fn units(self) -> &'static [(&'static str, f64)] {
        match self {
            Self::Seconds => {
                &[("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("min", 60.0), ("h", 3600.0)]
            }
            Self::Share => &[("fraction", 1.0), ("percent", 0.01), ("%", 0.01)],
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
            Self::Plain => &[("", 1.0)],
        }
    }
}

/// A quantity that runs have a figure of.
struct Quantity {
    names: &'static [&'static str],
    kind: Kind,
    ours: fn(&RunReport) -> Option<f64>,
}

/// What can be held against a run, in the units of [`Kind::units`].
const QUANTITIES: &[Quantity] = &[
    // From the start of the process to its end, validation included.
    Quantity {
        names: &["train_time", "training_time", "total_time"],
        kind: Kind::Seconds,
        ours: |run| Some(run.experiment.summary.as_ref()?.time.total_s),
    },
    Quantity {
        names: &["encoder_time"],
        kind: Kind::Seconds,
        ours: |run| Some(run.experiment.summary.as_ref()?.first_stage.as_ref()?.total_s),
    },
    Quantity {
        names: &["decoder_time"],
        kind: Kind::Seconds,
        ours: |run| {
            let summary = run.experiment.summary.as_ref()?;
            summary.first_stage.as_ref().map(|_| summary.time.total_s)
        },
    },
    Quantity {
        names: &["iteration_time", "step_time"],
        kind: Kind::Seconds,
        ours: |run| (run.accounting.iterations > 0).then_some(run.accounting.wall.median_ms / 1e3),
    },
    Quantity {
        names: &["time_per_image"],
        kind: Kind::Seconds,
        ours: |run| Some(1.0 / images_per_second(run)?),
    },
    Quantity {
        names: &["images_per_second", "throughput"],
        kind: Kind::ImagesPerSecond,
        ours: images_per_second,
    },
    Quantity {
        names: &["accuracy", "top1", "top_1"],
        kind: Kind::Share,
        ours: |run| {
            let last = run.experiment.summary.as_ref()?.last;
            last.val_top1.or(last.val_accuracy)
        },
    },
    Quantity {
        names: &["top5", "top_5"],
        kind: Kind::Share,
        ours: |run| run.experiment.summary.as_ref()?.last.val_top5,
    },
    Quantity {
        names: &["mean_accuracy"],
        kind: Kind::Share,
        ours: |run| run.experiment.summary.as_ref()?.last.val_mean_accuracy,
    },
    Quantity {
        names: &["miou", "mean_iou"],
        kind: Kind::Share,
        ours: |run| run.experiment.summary.as_ref()?.last.val_miou,
    },
    Quantity {
        names: &["bf", "bf_score"],
        kind: Kind::Share,
        ours: |run| run.experiment.summary.as_ref()?.last.val_bf,
    },
    Quantity {
        names: &["val_loss", "validation_loss"],
        kind: Kind::Plain,
        ours: |run| run.experiment.summary.as_ref()?.last.val_loss,
    },
    Quantity {
        names: &["train_loss", "training_loss"],
        kind: Kind::Plain,
        ours: |run| run.experiment.summary.as_ref()?.last.train_loss,
    },
    Quantity {
        names: &["host_memory"],
        kind: Kind::Bytes,
        ours: |run| Some(run.experiment.summary.as_ref()?.memory.measured_peak_rss_bytes? as f64),
    },
    Quantity {
        names: &["gpu_memory", "device_memory"],
        kind: Kind::Bytes,
        ours: |run| Some(run.experiment.summary.as_ref()?.memory.device_peak_bytes? as f64),
    },
    Quantity {
        names: &["gpu_utilisation", "gpu_utilization", "gpu_usage"],
        kind: Kind::Share,
        ours: |run| Some(run.experiment.summary.as_ref()?.usage.gpu_percent_mean? / 100.0),
    },
    Quantity {
        names: &["cpu_utilisation", "cpu_utilization", "cpu_usage"],
        kind: Kind::Share,
        ours: |run| Some(run.experiment.summary.as_ref()?.usage.cpu_percent_mean? / 100.0),
    },
    Quantity {
        names: &["unattributed"],
        kind: Kind::Share,
        ours: |run| {
            let accounting = &run.accounting;
            (accounting.iterations > 0).then_some(accounting.unattributed.share_percent.abs() / 100.0)
        },
    },
];

fn images_per_second(run: &RunReport) -> Option<f64> {
    run.experiment.summary.as_ref()?.images_per_second.median.filter(|rate| *rate > 0.0)
}

/// Published figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    path: PathBuf,
    rows: Vec<Published>,
}

/// A published figure. Texts that the table leaves empty are empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Published {
    /// Who published it.
    pub source: String,
    /// What computed it.
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
    /// Images a batch.
    pub batch_size: Option<u64>,
    /// What was measured.
    pub metric: String,
    /// The figure.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// A remark.
    pub note: String,
}

/// Published figures beside those of runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Against {
    /// The table.
    pub file: PathBuf,
    /// A row for each published figure and run that it can be held against.
    pub rows: Vec<AgainstRow>,
    /// Rows of the table that are of other networks or batch sizes than the runs.
    pub of_others: usize,
    /// Quantities that runs have no figure of, and how many rows of the table are of each.
    pub unknown: BTreeMap<String, usize>,
}

/// A published figure beside a run's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AgainstRow {
    /// The published figure.
    pub published: Published,
    /// The run's label.
    pub run: String,
    /// The run's machine.
    pub machine: Option<String>,
    /// The run's figure, in the unit of the published one; none where the run has none.
    pub ours: Option<f64>,
    /// Ours divided by the published one; none where that is 0.
    pub ratio: Option<f64>,
    /// In what the run was another than the published one, as `epochs 50, here 10`.
    pub differences: Vec<String>,
}

impl Reference {
    /// Reads a table of published figures.
    ///
    /// # Errors
    /// Where it cannot be read, a column is unknown or missing, a figure is no number, or a unit is not one
    /// of its quantity. The message names the line.
    pub fn read(path: &Path) -> Result<Self> {
        let length = std::fs::metadata(path).map_err(Error::io("read", path))?.len();
        if length > LONGEST {
            return Err(refused(path, format!("it has {length} bytes, a table has at most {LONGEST}")));
        }
        let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
        let damaged = |error: csv::Error| refused(path, error.to_string());
        let columns = columns(path, reader.headers().map_err(damaged)?)?;
        let mut rows = Vec::new();
        for record in reader.records() {
            let record = record.map_err(damaged)?;
            let line = record.position().map_or(0, csv::Position::line);
            let row = published(&columns, &record)
                .map_err(|reason| refused(path, format!("line {line}: {reason}")))?;
            rows.push(row);
        }
        Ok(Self { path: path.to_owned(), rows })
    }
}

impl Against {
    /// Holds published figures against runs.
    pub(super) fn of(reference: &Reference, runs: &[RunReport]) -> Self {
        let (mut rows, mut of_others, mut unknown) = (Vec::new(), 0, BTreeMap::new());
        for published in &reference.rows {
            let Some((quantity, unit)) = quantity(published) else {
                *unknown.entry(published.metric.clone()).or_default() += 1;
                continue;
            };
            let mut matched = false;
            for run in runs.iter().filter(|run| is_of(published, run)) {
                matched = true;
                let ours = (quantity.ours)(run).map(|value| value / unit).filter(|value| value.is_finite());
                rows.push(AgainstRow {
                    run: run.label.clone(),
                    machine: machine_name(&run.experiment),
                    ours,
                    ratio: ours.filter(|_| published.value != 0.0).map(|ours| ours / published.value),
                    differences: differences(published, run),
                    published: published.clone(),
                });
            }
            of_others += usize::from(!matched);
        }
        Self { file: reference.path.clone(), rows, of_others, unknown }
    }

    /// What was left out, in a sentence or two; empty where nothing was.
    #[must_use]
    pub fn left_out(&self) -> String {
        let mut text = String::new();
        if self.of_others > 0 {
            let rows = if self.of_others == 1 { "row is" } else { "rows are" };
            text = format!("{} {rows} of other networks or batch sizes.", self.of_others);
        }
        if !self.unknown.is_empty() {
            let gap = if text.is_empty() { "" } else { " " };
            let names: Vec<String> =
                self.unknown.iter().map(|(name, count)| format!("{name} ({count})")).collect();
            text.push_str(&format!("{gap}Runs have no figure of: {}.", names.join(", ")));
        }
        text
    }
}

fn refused(path: &Path, reason: String) -> Error {
    Error::Reference { path: path.to_owned(), reason }
}

/// The positions of known columns, by name.
fn columns(path: &Path, heading: &csv::StringRecord) -> Result<BTreeMap<&'static str, usize>> {
    let mut columns = BTreeMap::new();
    for (position, written) in heading.iter().enumerate() {
        let written = written.trim_start_matches('\u{feff}');
        let name = written.to_lowercase().replace([' ', '-'], "_");
        let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name.as_str(), |(_, name)| name);
        let Some(known) = COLUMNS.into_iter().find(|known| *known == name) else {
            let near = nearest(name, COLUMNS);
            let reason = format!(
                "line 1: unknown column `{written}`{}; a table may have {}",
                did_you_mean(near),
                COLUMNS.join(", ")
            );
            return Err(refused(path, reason));
        };
        if columns.insert(known, position).is_some() {
            return Err(refused(path, format!("line 1: column `{known}` is there twice")));
        }
    }
    for needed in ["metric", "value"] {
        if !columns.contains_key(needed) {
            return Err(refused(path, format!("line 1: there is no column `{needed}`")));
        }
    }
    Ok(columns)
}

/// A row of the table. The error says what is wrong with it.
fn published(
    columns: &BTreeMap<&'static str, usize>,
    record: &csv::StringRecord,
) -> std::result::Result<Published, String> {
    let text = |name: &str| columns.get(name).and_then(|&at| record.get(at)).unwrap_or_default().to_owned();
    let count = |name: &str| match text(name).as_str() {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| format!("{name} is `{text}`; it is a whole number")),
    };
    let value = text("value");
    let value = value
        .parse::<f64>()
        .ok()
        .filter(|value| value.is_finite())
        .ok_or_else(|| format!("value is `{value}`; it is a number, with a point and without a unit"))?;
    let row = Published {
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
        return Err("metric is empty; it names what was measured".to_owned());
    }
    if let Some(kind) = known(&row.metric).map(|quantity| quantity.kind)
        && kind != Kind::Plain
        && quantity(&row).is_none()
    {
        let units: Vec<&str> = kind.units().iter().map(|(name, _)| *name).collect();
        return Err(format!("unit is `{}`; {} is given in {}", row.unit, row.metric, units.join(", ")));
    }
    Ok(row)
}

fn known(metric: &str) -> Option<&'static Quantity> {
    let metric = metric.to_lowercase().replace([' ', '-'], "_");
    QUANTITIES.iter().find(|quantity| quantity.names.contains(&metric.as_str()))
}

/// The quantity of a figure, and what its unit is in the quantity's own.
fn quantity(published: &Published) -> Option<(&'static Quantity, f64)> {
    let quantity = known(&published.metric)?;
    let units = quantity.kind.units();
    let unit = match published.unit.as_str() {
        "" => units.first(),
        _ if quantity.kind == Kind::Plain => units.first(),
        unit => units.iter().find(|(name, _)| *name == unit),
    };
    Some((quantity, unit?.1))
}

/// Whether a figure is of a run's network and batch size, as far as it names them.
fn is_of(published: &Published, run: &RunReport) -> bool {
    let Some(summary) = &run.experiment.summary else { return false };
    let model = published.model.is_empty() || plain(&published.model) == plain(&summary.model);
    model && published.batch_size.is_none_or(|size| size == summary.batch_size)
}

/// A name as it is compared: `DeepLabv3+-ResNet18` and `deeplabv3plus_resnet18` are one.
fn plain(name: &str) -> String {
    let name = name.to_lowercase().replace('+', "plus");
    name.chars().filter(|letter| letter.is_alphanumeric()).collect()
}

fn differences(published: &Published, run: &RunReport) -> Vec<String> {
    let Some(summary) = &run.experiment.summary else { return Vec::new() };
    let mut differences = Vec::new();
    let mut add = |what: &str, theirs: String, ours: String| {
        differences.push(format!("{what} {theirs}, here {ours}"));
    };
    if !published.dataset.is_empty() && plain(&published.dataset) != plain(&summary.dataset) {
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
