//! The tables of `stratus collect --out`: layers, iterations or runs, of several runs in one file.
//!
//! The first column is the path of the run. Columns that a run does not have are empty in its rows.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use stratus_run::RunDir;
use stratus_run::csv::{CsvReader, IterationRow, Task};
use stratus_run::variants;

use crate::collect::{RunRecord, present};
use crate::layers;
use crate::table::{Column, ColumnType, FieldValue, TableFormat, TableWriter};
use crate::{Error, Result};

/// The kind of rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// One row per layer and iteration, with the columns of `layers.csv`.
    Layers,
    /// One row per iteration, with the columns of `iterations.csv`.
    Iterations,
    /// One row per variant of the networks of optimised runs, with the columns of `variants.csv`.
    Variants,
    /// One row per run: configuration, machine, times, results.
    Runs {
        /// True to include the identity of the machine: `uuid` and `mac`.
        identity: bool,
    },
}

/// Writes a table of `runs` to `path`, replacing it atomically; returns the number of rows.
///
/// # Errors
/// If a run cannot be read, or the file cannot be written.
pub fn write(
    runs: &[RunDir],
    rows: TableKind,
    format: TableFormat,
    path: &Path,
    skip: Option<u64>,
) -> Result<u64> {
    let mut written = 0;
    stratus_run::atomic::write_with(path, |out| {
        let mut out = NamedOutput { out, path };
        written = match rows {
            TableKind::Layers => write_layers(runs, format, &mut out)?,
            TableKind::Iterations => write_iterations(runs, format, &mut out)?,
            TableKind::Variants => write_variants(runs, format, &mut out)?,
            TableKind::Runs { identity } => write_runs(runs, format, &mut out, skip, identity)?,
        };
        Ok::<(), Error>(())
    })?;
    Ok(written)
}

/// The output of a table, with its path for messages.
struct NamedOutput<'a> {
    out: &'a mut dyn Write,
    path: &'a Path,
}

impl NamedOutput<'_> {
    fn table(&mut self, format: TableFormat, columns: Vec<Column>) -> Result<TableWriter<'_>> {
        TableWriter::new(self.out, format, columns).map_err(Error::io("write", self.path))
    }
}

fn name(run: &RunDir) -> String {
    run.path().display().to_string()
}

fn write_layers(runs: &[RunDir], format: TableFormat, out: &mut NamedOutput<'_>) -> Result<u64> {
    let path = out.path.to_owned();
    let column_type = |name: &str| match name {
        "epoch" | "iteration" => ColumnType::Integer,
        "layer" | "kind" | "device" => ColumnType::Text,
        _ => ColumnType::Float,
    };
    let columns = std::iter::once(Column::new("run", ColumnType::Text))
        .chain(layers::COLUMNS.map(|name| Column::new(name, column_type(name))));
    let mut table = out.table(format, columns.collect())?;
    for run in runs {
        let name = name(run);
        layers::for_each(run, |times| {
            let [forward, backward, update] = times.ns.map(|ns| FieldValue::Float(ns as f64 / 1e3));
            let fields = [
                FieldValue::Text(&name),
                FieldValue::Integer(i64::from(times.epoch)),
                FieldValue::Integer(to_i64(times.iteration)),
                FieldValue::Text(times.layer),
                FieldValue::Text(times.kind),
                FieldValue::Text(times.device),
                forward,
                backward,
                update,
            ];
            table.row(&fields).map_err(Error::io("write", &path))
        })?;
    }
    table.finish().map_err(Error::io("write", &path))
}

/// Writes the columns of runs of any task; `accuracy` is of pixels.
fn write_iterations(runs: &[RunDir], format: TableFormat, out: &mut NamedOutput<'_>) -> Result<u64> {
    let path = out.path.to_owned();
    let numbers = [
        "loss",
        "top1",
        "top5",
        "accuracy",
        "label_accuracy",
        "r2",
        "learning_rate",
        "data_s",
        "train_s",
        "unattributed_s",
    ];
    let columns =
        [("run", ColumnType::Text), ("epoch", ColumnType::Integer), ("iteration", ColumnType::Integer)]
            .into_iter()
            .chain(numbers.map(|name| (name, ColumnType::Float)))
            .map(|(name, kind)| Column::new(name, kind));
    let mut table = out.table(format, columns.collect())?;
    for run in runs {
        let name = name(run);
        // A run that was stopped before its first iteration has no rows.
        let Some(reader) = present(CsvReader::<IterationRow>::open(&run.iterations()))? else { continue };
        let task = reader.task();
        for row in reader {
            let row = row?;
            let accuracy_of = |own: Task| row.accuracy.filter(|_| task == own);
            let fields = [
                FieldValue::Text(&name),
                FieldValue::Integer(i64::from(row.epoch)),
                FieldValue::Integer(to_i64(row.iteration)),
                FieldValue::Float(row.loss),
                accuracy_of(Task::Classification).into(),
                row.top5.into(),
                accuracy_of(Task::Segmentation).into(),
                accuracy_of(Task::MultiLabel).into(),
                accuracy_of(Task::Regression).into(),
                FieldValue::Float(row.learning_rate),
                FieldValue::Float(row.data_s),
                FieldValue::Float(row.train_s),
                FieldValue::Float(row.unattributed_s),
            ];
            table.row(&fields).map_err(Error::io("write", &path))?;
        }
    }
    table.finish().map_err(Error::io("write", &path))
}

/// Writes the variants of the runs that have some; others have no rows.
fn write_variants(runs: &[RunDir], format: TableFormat, out: &mut NamedOutput<'_>) -> Result<u64> {
    let path = out.path.to_owned();
    let column_type = |name: &str| match name {
        "variant" => ColumnType::Text,
        "bytes" | "multiply_adds" => ColumnType::Integer,
        _ => ColumnType::Float,
    };
    let columns = std::iter::once(Column::new("run", ColumnType::Text))
        .chain(variants::COLUMNS.map(|name| Column::new(name, column_type(name))));
    let mut table = out.table(format, columns.collect())?;
    for run in runs {
        let name = name(run);
        for variant in present(variants::read(&run.variants()))?.unwrap_or_default() {
            let fields = [
                FieldValue::Text(&name),
                FieldValue::Text(&variant.variant),
                variant.measure.into(),
                FieldValue::Float(variant.ms_median),
                FieldValue::Float(variant.ms_p99),
                FieldValue::Float(variant.ms_batch8),
                FieldValue::Integer(to_i64(variant.bytes)),
                FieldValue::Integer(to_i64(variant.multiply_adds)),
            ];
            table.row(&fields).map_err(Error::io("write", &path))?;
        }
    }
    table.finish().map_err(Error::io("write", &path))
}

fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn write_runs(
    runs: &[RunDir],
    format: TableFormat,
    out: &mut NamedOutput<'_>,
    skip: Option<u64>,
    identity: bool,
) -> Result<u64> {
    let path = out.path.to_owned();
    let mut names: Vec<String> = Vec::new();
    let mut rows: Vec<BTreeMap<String, String>> = Vec::new();
    for run in runs {
        let fields = RunRecord::read(run, skip)?.fields(identity);
        // Not every run has every key of the configuration.
        for (name, _) in &fields {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        rows.push(fields.into_iter().collect());
    }
    names.sort_by_key(|name| name.starts_with("config."));
    // The type of a column follows from its values.
    let kind = |name: &str| {
        let values: Vec<&String> =
            rows.iter().filter_map(|row| row.get(name)).filter(|value| !value.is_empty()).collect();
        if !values.is_empty() && values.iter().all(|value| value.parse::<i64>().is_ok()) {
            ColumnType::Integer
        } else if !values.is_empty() && values.iter().all(|value| value.parse::<f64>().is_ok()) {
            ColumnType::Float
        } else {
            ColumnType::Text
        }
    };
    let columns: Vec<Column> = names.iter().map(|name| Column::new(name, kind(name))).collect();
    let kinds: Vec<ColumnType> = columns.iter().map(|column| column.column_type).collect();
    let mut table = out.table(format, columns)?;
    for row in &rows {
        let fields: Vec<FieldValue<'_>> = names
            .iter()
            .zip(&kinds)
            .map(|(name, kind)| {
                let Some(value) = row.get(name).filter(|value| !value.is_empty()) else {
                    return FieldValue::None;
                };
                match kind {
                    ColumnType::Integer => value.parse().map_or(FieldValue::None, FieldValue::Integer),
                    ColumnType::Float => value.parse().map_or(FieldValue::None, FieldValue::Float),
                    ColumnType::Text => FieldValue::Text(value),
                }
            })
            .collect();
        table.row(&fields).map_err(Error::io("write", &path))?;
    }
    table.finish().map_err(Error::io("write", &path))
}
