//! A sweep file: an experiment with a `[sweep]` section.
//!
//! ```toml
//! [model]
//! name = "digits"
//!
//! [sweep]
//! repetitions = 3
//! zip = [["train.batch_size", "optimiser.learning_rate"]]   # changed together
//!
//! [sweep.keys]
//! "train.batch_size" = [64, 128]
//! "optimiser.learning_rate" = [0.01, 0.02]
//! "model.width" = [8, 16]
//!
//! [sweep.halving]                                           # optional
//! factor = 2
//! epochs = 4
//! metric = "val_top1"
//! ```
//!
//! Cells are numbered from 1; the last key changes fastest.
//!
//! The copy in a sweep's directory has one more section, `[sweep.command]`: the `--set` overrides, and the
//! folder of the original file, to which its paths are relative.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use stratus_base::{nearest, read_text_at_most};
use stratus_experiment::{Experiment, ExperimentError, ExperimentText, MAX_FILE_BYTES, ParsedExperiment};
use toml::de::{DeTable, DeValue};

use crate::halving::Halving;
use crate::value::{parse_count, parse_key_groups, to_set_value};
use crate::{Error, Result};

/// The section of a sweep file that names the swept keys.
pub(crate) const SECTION: &str = "sweep";

/// The heading of the section that is appended to the copy of a sweep file.
const COMMAND_HEADING: &str = "[sweep.command]";

/// The maximum number of rows: cells times repetitions.
const MAX_ROWS: usize = 10_000;

/// The maximum number of bytes of texts and lists in all cells, each of which has a copy.
const MAX_CELL_BYTES: usize = 64 << 20;

/// A built-in sweep.
#[derive(Clone, Copy, Debug)]
pub struct Builtin {
    /// The name on the command line.
    pub name: &'static str,
    /// The sweep file.
    pub text: &'static str,
}

/// The built-in sweeps.
pub const BUILTIN: &[Builtin] = &[
    Builtin { name: "digits-batch-filters", text: include_str!("../builtin/digits_batch_filters.toml") },
    Builtin { name: "camvid-batch", text: include_str!("../builtin/camvid_batch.toml") },
    Builtin { name: "layer-times", text: include_str!("../builtin/layer_times.toml") },
    Builtin { name: "throughput", text: include_str!("../builtin/throughput.toml") },
];

/// Returns the built-in sweep with this name.
#[must_use]
pub fn builtin(name: &str) -> Option<&'static Builtin> {
    BUILTIN.iter().find(|builtin| builtin.name == name)
}

/// Reads the text of a sweep file.
///
/// # Errors
/// If it cannot be read, is not UTF-8, or exceeds [`MAX_FILE_BYTES`].
pub fn read_definition(path: &Path) -> io::Result<String> {
    read_text_at_most(path, MAX_FILE_BYTES)
}

/// Returns whether a text has a `[sweep]` section.
#[must_use]
pub fn is_sweep(text: &str) -> bool {
    DeTable::parse(text).is_ok_and(|document| document.get_ref().contains_key(SECTION))
}

/// A parsed sweep file.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    /// The name of the sweep: the experiment's, or else the file's.
    pub name: String,
    /// The swept keys, in the order of the file.
    pub keys: Vec<String>,
    /// Every combination of values.
    pub cells: Vec<Cell>,
    /// Runs per cell, which differ only in the seed.
    pub repetitions: usize,
    /// Early stopping of worse cells; `None` if every cell is trained to its end.
    pub halving: Option<Halving>,
    command: SavedCommand,
}

/// The `[sweep.command]` section.
#[derive(Clone, Debug, Default, PartialEq)]
struct SavedCommand {
    /// A folder besides the working directory in which files named by the experiment are searched.
    folder: Option<PathBuf>,
    /// Overrides, in the syntax of `--set`.
    set: Vec<(String, String)>,
}

impl SavedCommand {
    fn read(table: &DeTable<'_>) -> Option<Self> {
        let mut command = Self::default();
        for (name, value) in table {
            match (name.get_ref().as_ref(), value.get_ref()) {
                ("folder", DeValue::String(folder)) => command.folder = Some(PathBuf::from(folder.as_ref())),
                ("set", DeValue::Array(set)) => {
                    for pair in set {
                        let DeValue::String(pair) = pair.get_ref() else { return None };
                        let (key, value) = pair.split_once('=')?;
                        command.set.push((key.to_owned(), value.to_owned()));
                    }
                }
                _ => return None,
            }
        }
        Some(command)
    }
}

/// One combination of values.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The values of [`Definition::keys`], in the syntax of `--set`.
    pub values: Vec<String>,
    /// The experiment of the first repetition.
    pub experiment: Experiment,
}

impl Cell {
    /// Returns the experiment of a repetition, counted from 1; each has the next seed.
    #[must_use]
    pub fn repetition(&self, number: usize) -> Experiment {
        let mut experiment = self.experiment.clone();
        experiment.train.seed = experiment.train.seed.wrapping_add(number as u64 - 1);
        experiment
    }
}

/// A key and its values.
struct Axis {
    key: String,
    values: Vec<String>,
    line: usize,
}

impl Definition {
    /// Parses the text of a sweep file. `path` is used in messages, and its folder is searched for files that
    /// the experiment names. `overrides` override the experiment of the file; swept keys override both.
    ///
    /// # Errors
    /// If the text is not a sweep, or a cell is not a valid experiment.
    pub fn parse<K: AsRef<str>, V: AsRef<str>>(
        text: &str,
        path: &Path,
        overrides: &[(K, V)],
    ) -> Result<Self> {
        let section = SweepSection::read(text, path)?;
        let given = overrides.iter().map(|(key, value)| (key.as_ref().to_owned(), value.as_ref().to_owned()));
        let overrides: Vec<(String, String)> = section.command.set.iter().cloned().chain(given).collect();
        let folder = section.command.folder.clone().or_else(|| path.parent().map(Path::to_owned));
        let file = ExperimentText { text, path, folder: folder.as_deref(), excluded_section: Some(SECTION) };
        let sweeps = |key: &str| section.axes.iter().any(|axis| axis.key == key);
        // Parses without swept keys first, so that errors of the file are not reported for a cell.
        let parsed = ParsedExperiment::parse(&file)?;
        match parsed.experiment(&overrides) {
            Err(ExperimentError::Missing { key, .. }) if sweeps(key) => {}
            other => _ = other?,
        }
        if let Some((key, _)) = overrides.iter().find(|(key, _)| sweeps(key)) {
            return Err(section.source.error(
                None,
                format!("`{key}` is both swept and set with --set"),
                "remove it from --set or from [sweep.keys]",
            ));
        }
        let keys: Vec<String> = section.axes.iter().map(|axis| axis.key.clone()).collect();
        let mut cells: Vec<Cell> = Vec::new();
        let mut numbers = HashMap::new();
        for values in section.combinations(parsed.value_bytes())? {
            if let Some(earlier) = numbers.insert(values.clone(), cells.len() + 1) {
                let problem = format!(
                    "cells {earlier} and {} are identical: {}",
                    cells.len() + 1,
                    describe_values(&keys, &values)
                );
                return Err(section.source.error(None, problem, "set sweep.repetitions to repeat runs"));
            }
            let swept = keys.iter().cloned().zip(values.iter().cloned());
            let all: Vec<(String, String)> = overrides.iter().cloned().chain(swept).collect();
            let experiment = parsed.experiment(&all).map_err(|source| Error::Cell {
                cell: cells.len() + 1,
                values: describe_values(&keys, &values),
                source: Box::new(source),
            })?;
            if let Some(halving) = &section.halving {
                halving.check(&experiment).map_err(|problem| {
                    section.source.error(None, problem, "change or remove [sweep.halving]")
                })?;
            }
            cells.push(Cell { values, experiment });
        }
        let experiment_name = cells.first().and_then(|cell| cell.experiment.experiment.name.clone());
        let name = experiment_name.filter(|_| !sweeps("experiment.name"));
        let stem = || path.file_stem().and_then(|stem| stem.to_str()).unwrap_or(SECTION).to_owned();
        let SweepSection { repetitions, halving, .. } = section;
        Ok(Self {
            name: name.unwrap_or_else(stem),
            keys,
            cells,
            repetitions,
            halving,
            command: SavedCommand { folder, set: overrides },
        })
    }

    /// Returns the text of the sweep file with the command that started the sweep added. Parsed in any
    /// folder, it has the same cells.
    ///
    /// # Errors
    /// If the section `[sweep.command]` cannot be added.
    pub fn with_command(&self, text: &str, path: &Path) -> Result<String> {
        // In the copy of a sweep file, the section is the last one.
        let before = text.rfind(&format!("\n{COMMAND_HEADING}\n")).map_or(text, |at| &text[..at]);
        let mut extended = before.trim_end().to_owned();
        let set = self
            .command
            .set
            .iter()
            .map(|(key, value)| toml::Value::String(format!("{key}={value}")).to_string());
        extended.push_str(&format!("\n\n{COMMAND_HEADING}\n"));
        let folder =
            self.command.folder.as_deref().map(|folder| std::path::absolute(folder).unwrap_or(folder.into()));
        if let Some(folder) = folder.as_deref().and_then(Path::to_str) {
            extended.push_str(&format!("folder = {}\n", toml::Value::String(folder.to_owned())));
        }
        extended.push_str(&format!("set = [{}]\n", set.collect::<Vec<_>>().join(", ")));
        let reparsed = Self::parse::<&str, &str>(&extended, path, &[])?;
        let is_same = (reparsed.repetitions, reparsed.halving) == (self.repetitions, self.halving)
            && reparsed.cells.iter().map(|cell| &cell.values).eq(self.cells.iter().map(|cell| &cell.values));
        if is_same {
            return Ok(extended);
        }
        let file = SourceText { path, text };
        Err(file.error(None, "cannot add [sweep.command]", "write [sweep] as a separate section"))
    }

    /// Formats the values of a cell: `train.batch_size = 64, model.width = 8`.
    #[must_use]
    pub fn describe_cell(&self, cell: &Cell) -> String {
        describe_values(&self.keys, &cell.values)
    }
}

fn describe_values(keys: &[String], values: &[String]) -> String {
    let pairs: Vec<String> = keys.iter().zip(values).map(|(key, value)| format!("{key} = {value}")).collect();
    pairs.join(", ")
}

/// A sweep file and its path, for error messages.
#[derive(Clone, Copy)]
struct SourceText<'a> {
    path: &'a Path,
    text: &'a str,
}

impl SourceText<'_> {
    fn error(self, at: Option<Range<usize>>, problem: impl Into<String>, hint: &str) -> Error {
        Error::Definition {
            path: self.path.to_owned(),
            line: at.map(|at| self.line(&at)),
            problem: problem.into(),
            hint: hint.to_owned(),
        }
    }

    fn line(self, at: &Range<usize>) -> usize {
        self.text.as_bytes().iter().take(at.start).filter(|byte| **byte == b'\n').count() + 1
    }
}

/// The `[sweep]` section.
struct SweepSection<'a> {
    source: SourceText<'a>,
    repetitions: usize,
    axes: Vec<Axis>,
    /// Groups of keys that change together.
    zip: Vec<Vec<String>>,
    halving: Option<Halving>,
    command: SavedCommand,
}

impl<'a> SweepSection<'a> {
    fn read(text: &'a str, path: &'a Path) -> Result<Self> {
        let file = SourceText { path, text };
        let example = "list the values of a key, like [sweep.keys] \"train.batch_size\" = [64, 128]";
        let document = DeTable::parse(text).map_err(|error| {
            file.error(error.span(), format!("not valid TOML: {}", error.message()), example)
        })?;
        let Some(section) = document.get_ref().get(SECTION) else {
            return Err(file.error(None, "[sweep] is missing", example));
        };
        let DeValue::Table(table) = section.get_ref() else {
            return Err(file.error(Some(section.span()), "`sweep` must be a table", example));
        };
        let mut found = Self {
            source: file,
            repetitions: 1,
            axes: Vec::new(),
            zip: Vec::new(),
            halving: None,
            command: SavedCommand::default(),
        };
        for (name, value) in table {
            let at = Some(name.span());
            match (name.get_ref().as_ref(), value.get_ref()) {
                ("repetitions", value) => {
                    found.repetitions = parse_count(value).filter(|&count| count >= 1).ok_or_else(|| {
                        file.error(at, "`sweep.repetitions` must be a positive integer", "write it like 3")
                    })?;
                }
                ("keys", DeValue::Table(keys)) => found.read_keys(keys, "")?,
                ("keys", _) => return Err(file.error(at, "`sweep.keys` must be a table", example)),
                ("zip", value) => {
                    found.zip = parse_key_groups(value).ok_or_else(|| {
                        let hint = "write it like [[\"train.batch_size\", \"optimiser.learning_rate\"]]";
                        file.error(at, "`sweep.zip` must be a list of lists of keys", hint)
                    })?;
                }
                ("halving", DeValue::Table(table)) => {
                    let read = Halving::read(table);
                    found.halving = Some(read.map_err(|(at, problem)| {
                        file.error(Some(at), problem, "the keys are factor, epochs and metric")
                    })?);
                }
                ("command", DeValue::Table(table)) => {
                    found.command = SavedCommand::read(table).ok_or_else(|| {
                        let hint = "remove it: stratus writes this section";
                        file.error(at, "`sweep.command` is invalid", hint)
                    })?;
                }
                (other, _) => {
                    let known = ["repetitions", "keys", "zip", "halving"];
                    let hint = match nearest(other, known) {
                        Some(name) => format!("did you mean `sweep.{name}`?"),
                        None => format!("the keys are sweep.{}", known.join(", sweep.")),
                    };
                    return Err(file.error(at, format!("unknown key `sweep.{other}`"), &hint));
                }
            }
        }
        if found.axes.is_empty() {
            return Err(file.error(Some(section.span()), "[sweep.keys] is empty", example));
        }
        found.axes.sort_by_key(|axis| axis.line);
        Ok(found)
    }

    /// Reads keys, quoted (`"train.batch_size"`) or as nested sections.
    fn read_keys(&mut self, table: &DeTable<'_>, prefix: &str) -> Result<()> {
        let file = self.source;
        for (name, value) in table {
            let key = match prefix {
                "" => name.get_ref().to_string(),
                _ => format!("{prefix}.{}", name.get_ref()),
            };
            let at = Some(name.span());
            let hint = "list its values, like [64, 128]";
            match value.get_ref() {
                DeValue::Table(inner) => self.read_keys(inner, &key)?,
                DeValue::Array(values) if !values.is_empty() => {
                    let values: Vec<String> =
                        values.iter().map(|value| to_set_value(value.get_ref())).collect();
                    self.axes.push(Axis { key, values, line: name.span().start });
                }
                DeValue::Array(_) => return Err(file.error(at, format!("`{key}` is empty"), hint)),
                _ => return Err(file.error(at, format!("`{key}` must be a list of values"), hint)),
            }
        }
        Ok(())
    }

    /// Checks the memory of all cells, each of which has a copy of the file's values and of its own.
    fn check_memory(&self, cells: usize, value_bytes: usize) -> Result<()> {
        let longest = |axis: &Axis| axis.values.iter().map(String::len).max().unwrap_or(0);
        let cell_bytes = value_bytes + self.axes.iter().map(longest).sum::<usize>();
        if cells.saturating_mul(cell_bytes) <= MAX_CELL_BYTES {
            return Ok(());
        }
        Err(self.source.error(
            None,
            format!("the texts and lists of {cells} cells take more than {} MiB", MAX_CELL_BYTES >> 20),
            "sweep fewer values, or shorten the longest ones",
        ))
    }

    /// Returns the values of every cell, in order. An experiment of the file has `value_bytes` bytes.
    fn combinations(&self, value_bytes: usize) -> Result<Vec<Vec<String>>> {
        let group_of = |key: &str| self.zip.iter().position(|group| group.iter().any(|member| member == key));
        let hint = "zip keys of [sweep.keys] that have equal numbers of values, each key in one group";
        let invalid = |problem: String| Err(self.source.error(None, problem, hint));
        for (number, group) in self.zip.iter().enumerate() {
            let mut lengths = Vec::new();
            for key in group {
                let Some(axis) = self.axes.iter().find(|axis| axis.key == *key) else {
                    return invalid(format!("`sweep.zip` names `{key}`, which is not swept"));
                };
                if group_of(key) != Some(number) || group.iter().filter(|member| *member == key).count() > 1 {
                    return invalid(format!("`sweep.zip` names `{key}` twice"));
                }
                lengths.push(axis.values.len());
            }
            if lengths.windows(2).any(|pair| pair[0] != pair[1]) {
                let lengths: Vec<String> = lengths.iter().map(ToString::to_string).collect();
                let (keys, lengths) = (group.join(", "), lengths.join(", "));
                return invalid(format!("zipped keys {keys} have different numbers of values: {lengths}"));
            }
        }
        // One counter per zip group and per other key, at the position of its first key.
        let mut counters: Vec<(Vec<usize>, usize)> = Vec::new();
        for (at, axis) in self.axes.iter().enumerate() {
            let counter = group_of(&axis.key).and_then(|group| {
                counters.iter_mut().find(|(axes, _)| group_of(&self.axes[axes[0]].key) == Some(group))
            });
            match counter {
                Some((axes, _)) => axes.push(at),
                None => counters.push((vec![at], axis.values.len())),
            }
        }
        let cells = counters.iter().try_fold(1_usize, |cells, (_, values)| cells.checked_mul(*values));
        let rows = cells.and_then(|cells| cells.checked_mul(self.repetitions));
        let Some(cells) = cells.filter(|_| rows.is_some_and(|rows| rows <= MAX_ROWS)) else {
            return Err(self.source.error(
                None,
                format!("the sweep has more than {MAX_ROWS} runs"),
                "sweep fewer keys, fewer values or fewer repetitions",
            ));
        };
        self.check_memory(cells, value_bytes)?;
        Ok((0..cells)
            .map(|mut number| {
                let mut values = vec![String::new(); self.axes.len()];
                for (axes, count) in counters.iter().rev() {
                    for &axis in axes {
                        values[axis].clone_from(&self.axes[axis].values[number % count]);
                    }
                    number /= count;
                }
                values
            })
            .collect())
    }
}

#[cfg(test)]
mod tests;
