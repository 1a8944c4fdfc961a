//! What `stratus collect --out` writes: layers, iterations or runs, of several runs in one file.
//!
//! Every row begins with its run's path. A column that a run does not have is empty in its rows.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use stratus_run::RunDir;
use stratus_run::csv::{CsvReader, IterationRow};

use crate::collect::Experiment;
use crate::layers;
use crate::table::{Column, Field, Format, Kind, TableWriter};
use crate::{Error, Result};

/// The rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// A layer in an iteration: the columns of `layers.csv`.
    Layers,
    /// An iteration: the columns of `iterations.csv`.
    Iterations,
    /// A run: configuration, machine, times, results; with what identifies the machine, or without.
    Experiments {
        /// Whether `uuid` and `mac` of the machine are columns.
        identity: bool,
    },
}

/// Writes a table of `runs` to `path`, which is replaced when it is complete; gives the number of rows.
///
/// # Errors
/// Where a run cannot be read, or the file not be written.
pub fn write(runs: &[RunDir], rows: Rows, format: Format, path: &Path, skip: Option<u64>) -> Result<u64> {
    let mut written = 0;
    stratus_run::atomic::write_with(path, |out| {
        let mut out = Named { out, path };
        written = match rows {
            Rows::Layers => of_layers(runs, format, &mut out)?,
            Rows::Iterations => of_iterations(runs, format, &mut out)?,
            Rows::Experiments { identity } => of_experiments(runs, format, &mut out, skip, identity)?,
        };
        Ok::<(), Error>(())
    })?;
    Ok(written)
}

/// Where a table goes, with its name for messages.
struct Named<'a> {
    out: &'a mut dyn Write,
    path: &'a Path,
}

impl Named<'_> {
    fn table(&mut self, format: Format, columns: Vec<Column>) -> Result<TableWriter<'_>> {
        TableWriter::new(self.out, format, columns).map_err(Error::io("write", self.path))
    }
}

fn name(run: &RunDir) -> String {
    run.path().display().to_string()
}

fn of_layers(runs: &[RunDir], format: Format, out: &mut Named<'_>) -> Result<u64> {
    let path = out.path.to_owned();
    let kind_of = |name: &str| match name {
        "epoch" | "iteration" => Kind::Whole,
        "layer" | "kind" | "device" => Kind::Text,
        _ => Kind::Number,
    };
    let columns = std::iter::once(Column::new("run", Kind::Text))
        .chain(layers::COLUMNS.split(',').map(|name| Column::new(name, kind_of(name))));
    let mut table = out.table(format, columns.collect())?;
    for run in runs {
        let name = name(run);
        layers::each(run, |times| {
            let [forward, backward, update] = times.ns.map(|ns| Field::Number(ns as f64 / 1e3));
            let fields = [
                Field::Text(&name),
                Field::Whole(i64::from(times.epoch)),
                Field::Whole(whole(times.iteration)),
                Field::Text(times.layer),
                Field::Text(times.kind),
                Field::Text(times.device),
                forward,
                backward,
                update,
            ];
            table.row(&fields).map_err(Error::io("write", &path))
        })?;
    }
    table.finish().map_err(Error::io("write", &path))
}

/// All columns that runs of any task have; `accuracy` is the share of right pixels.
fn of_iterations(runs: &[RunDir], format: Format, out: &mut Named<'_>) -> Result<u64> {
    let path = out.path.to_owned();
    let numbers =
        ["loss", "top1", "top5", "accuracy", "learning_rate", "data_s", "train_s", "unattributed_s"];
    let columns = [("run", Kind::Text), ("epoch", Kind::Whole), ("iteration", Kind::Whole)]
        .into_iter()
        .chain(numbers.map(|name| (name, Kind::Number)))
        .map(|(name, kind)| Column::new(name, kind));
    let mut table = out.table(format, columns.collect())?;
    for run in runs {
        let name = name(run);
        let reader = match CsvReader::<IterationRow>::open(&run.iterations()) {
            Ok(reader) => reader,
            // A run that was stopped before its first iteration has none.
            Err(error) if error.is_not_found() => continue,
            Err(error) => return Err(error.into()),
        };
        let is_classification = reader.task() == stratus_run::csv::Task::Classification;
        for row in reader {
            let row = row?;
            let (top1, accuracy) =
                if is_classification { (row.accuracy, None) } else { (None, row.accuracy) };
            let fields = [
                Field::Text(&name),
                Field::Whole(i64::from(row.epoch)),
                Field::Whole(whole(row.iteration)),
                Field::Number(row.loss),
                top1.into(),
                row.top5.into(),
                accuracy.into(),
                Field::Number(row.learning_rate),
                Field::Number(row.data_s),
                Field::Number(row.train_s),
                Field::Number(row.unattributed_s),
            ];
            table.row(&fields).map_err(Error::io("write", &path))?;
        }
    }
    table.finish().map_err(Error::io("write", &path))
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn of_experiments(
    runs: &[RunDir],
    format: Format,
    out: &mut Named<'_>,
    skip: Option<u64>,
    identity: bool,
) -> Result<u64> {
    let path = out.path.to_owned();
    let mut names: Vec<String> = Vec::new();
    let mut rows: Vec<BTreeMap<String, String>> = Vec::new();
    for run in runs {
        let fields = Experiment::of(run, skip)?.fields(identity);
        // Keys of the configuration come last, and not every run has every key.
        for (name, _) in &fields {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        rows.push(fields.into_iter().collect());
    }
    names.sort_by_key(|name| name.starts_with("config."));
    // What a column holds its values say.
    let kind = |name: &str| {
        let values: Vec<&String> =
            rows.iter().filter_map(|row| row.get(name)).filter(|value| !value.is_empty()).collect();
        if !values.is_empty() && values.iter().all(|value| value.parse::<i64>().is_ok()) {
            Kind::Whole
        } else if !values.is_empty() && values.iter().all(|value| value.parse::<f64>().is_ok()) {
            Kind::Number
        } else {
            Kind::Text
        }
    };
    let columns: Vec<Column> = names.iter().map(|name| Column::new(name, kind(name))).collect();
    let kinds: Vec<Kind> = columns.iter().map(|column| column.kind).collect();
    let mut table = out.table(format, columns)?;
    for row in &rows {
        let fields: Vec<Field<'_>> = names
            .iter()
            .zip(&kinds)
            .map(|(name, kind)| {
                let Some(value) = row.get(name).filter(|value| !value.is_empty()) else { return Field::None };
                match kind {
                    Kind::Whole => value.parse().map_or(Field::None, Field::Whole),
                    Kind::Number => value.parse().map_or(Field::None, Field::Number),
                    Kind::Text => Field::Text(value),
                }
            })
            .collect();
        table.row(&fields).map_err(Error::io("write", &path))?;
    }
    table.finish().map_err(Error::io("write", &path))
}
