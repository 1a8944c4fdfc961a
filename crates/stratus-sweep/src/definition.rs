//! A sweep file: an experiment with a `[sweep]` section.
//!
//! ```toml
//! [model]
//! name = "digits"
//!
//! [sweep]
//! repetitions = 3
//! zip = [["train.batch_size", "optimiser.learning_rate"]]   # these go together
//!
//! [sweep.keys]
//! "train.batch_size" = [64, 128]
//! "optimiser.learning_rate" = [0.01, 0.02]
//! "model.width" = [8, 16]
//!
//! [sweep.halving]                                           # only where it is asked for
//! factor = 2
//! epochs = 4
//! metric = "val_top1"
//! ```
//!
//! Cells are numbered from 1 in the order of an odometer: the last key changes fastest.
//!
//! A sweep that was begun has one section more, `[sweep.command]`: what was given with `--set`, and the
//! folder of the file, where files named in it are looked for.

use std::ops::Range;
use std::path::{Path, PathBuf};

use stratus_base::nearest;
use stratus_train::experiment::ExperimentText;
use stratus_train::{Experiment, ExperimentError};
use toml::de::{DeTable, DeValue};

use crate::halving::Halving;
use crate::{Error, Result};

/// The section of a file that says what is swept.
pub(crate) const SECTION: &str = "sweep";

/// The heading of the section that a sweep adds when it is begun, at the end of its file.
const COMMAND: &str = "[sweep.command]";

/// Rows that a sweep may have: cells times repetitions.
const MAX_ROWS: usize = 10_000;

/// A sweep that comes with the program.
#[derive(Clone, Copy, Debug)]
pub struct Builtin {
    /// What it is called on the command line.
    pub name: &'static str,
    /// The sweep file.
    pub text: &'static str,
}

/// The sweeps that come with the program.
pub const BUILTIN: &[Builtin] = &[
    Builtin { name: "digits-batch-filters", text: include_str!("builtin/digits_batch_filters.toml") },
    Builtin { name: "camvid-batch", text: include_str!("builtin/camvid_batch.toml") },
    Builtin { name: "layer-times", text: include_str!("builtin/layer_times.toml") },
    Builtin { name: "throughput", text: include_str!("builtin/throughput.toml") },
];

/// The built-in sweep of a name.
#[must_use]
pub fn builtin(name: &str) -> Option<&'static Builtin> {
    BUILTIN.iter().find(|builtin| builtin.name == name)
}

/// Whether a text has a `[sweep]` section.
#[must_use]
pub fn is_sweep(text: &str) -> bool {
    DeTable::parse(text).is_ok_and(|document| document.get_ref().contains_key(SECTION))
}

/// What is swept.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    /// What the sweep is called: the experiment's name, else the file's.
    pub name: String,
    /// The swept keys, in the order of the file.
    pub keys: Vec<String>,
    /// Every combination of values.
    pub cells: Vec<Cell>,
    /// Runs of each cell, which differ in nothing but the seed.
    pub repetitions: usize,
    /// How cells are stopped early, if they are.
    pub halving: Option<Halving>,
    command: Command,
}

/// What a sweep was begun with.
#[derive(Clone, Debug, Default, PartialEq)]
struct Command {
    /// Where files that the experiment names may be, beside the working directory.
    folder: Option<PathBuf>,
    /// Overrides, as `--set` takes them.
    set: Vec<(String, String)>,
}

impl Command {
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

/// A combination of values.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The values of [`Definition::keys`], as `--set` takes them.
    pub values: Vec<String>,
    /// The experiment of the first repetition.
    pub experiment: Experiment,
}

impl Cell {
    /// The experiment of a repetition, counted from 1: the seed is one more for each.
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
    /// Reads the text of a sweep file. `path` is for messages, and for files named in it, which may be beside
    /// it. `overrides` stand on top of the file's experiment, below the swept keys.
    ///
    /// # Errors
    /// Where the text is no sweep, or one of its cells no experiment.
    pub fn parse<K: AsRef<str>, V: AsRef<str>>(
        text: &str,
        path: &Path,
        overrides: &[(K, V)],
    ) -> Result<Self> {
        let section = Section::read(text, path)?;
        let given = overrides.iter().map(|(key, value)| (key.as_ref().to_owned(), value.as_ref().to_owned()));
        let overrides: Vec<(String, String)> = section.command.set.iter().cloned().chain(given).collect();
        let folder = section.command.folder.clone().or_else(|| path.parent().map(Path::to_owned));
        let file = ExperimentText { text, path, folder: folder.as_deref(), without: Some(SECTION) };
        let sweeps = |key: &str| section.axes.iter().any(|axis| axis.key == key);
        // Without swept keys first: the file's own mistakes are no cell's.
        match Experiment::from_part(&file, &overrides) {
            Err(ExperimentError::Missing { key, .. }) if sweeps(key) => {}
            other => _ = other?,
        }
        if let Some((key, _)) = overrides.iter().find(|(key, _)| sweeps(key)) {
            return Err(section.file.error(
                None,
                format!("`{key}` is swept here, and set with --set too"),
                "leave out --set, or take the key out of [sweep.keys]",
            ));
        }
        let keys: Vec<String> = section.axes.iter().map(|axis| axis.key.clone()).collect();
        let mut cells: Vec<Cell> = Vec::new();
        for values in section.combinations()? {
            if let Some(same) = cells.iter().position(|cell| cell.values == values) {
                let problem = format!(
                    "cells {} and {} are the same: {}",
                    same + 1,
                    cells.len() + 1,
                    described(&keys, &values)
                );
                return Err(section.file.error(None, problem, "repeat runs with sweep.repetitions"));
            }
            let swept = keys.iter().cloned().zip(values.iter().cloned());
            let all: Vec<(String, String)> = overrides.iter().cloned().chain(swept).collect();
            let experiment = Experiment::from_part(&file, &all).map_err(|source| Error::Cell {
                cell: cells.len() + 1,
                values: described(&keys, &values),
                source: Box::new(source),
            })?;
            if let Some(halving) = &section.halving {
                halving.check(&experiment).map_err(|problem| {
                    section.file.error(None, problem, "change [sweep.halving], or leave it out")
                })?;
            }
            cells.push(Cell { values, experiment });
        }
        let named = cells.first().and_then(|cell| cell.experiment.experiment.name.clone());
        let name = named.filter(|_| !sweeps("experiment.name"));
        let stem = || path.file_stem().and_then(|stem| stem.to_str()).unwrap_or(SECTION).to_owned();
        let Section { repetitions, halving, .. } = section;
        Ok(Self {
            name: name.unwrap_or_else(stem),
            keys,
            cells,
            repetitions,
            halving,
            command: Command { folder, set: overrides },
        })
    }

    /// The text of the sweep file with the command that began the sweep: read again from anywhere, it gives
    /// the same cells.
    ///
    /// # Errors
    /// Where the section `[sweep.command]` cannot be added.
    pub fn with_command(&self, text: &str, path: &Path) -> Result<String> {
        // Of a sweep's own file: its last section.
        let before = text.rfind(&format!("\n{COMMAND}\n")).map_or(text, |at| &text[..at]);
        let mut kept = before.trim_end().to_owned();
        let set = self
            .command
            .set
            .iter()
            .map(|(key, value)| toml::Value::String(format!("{key}={value}")).to_string());
        kept.push_str(&format!("\n\n{COMMAND}\n"));
        let folder =
            self.command.folder.as_deref().map(|folder| std::path::absolute(folder).unwrap_or(folder.into()));
        if let Some(folder) = folder.as_deref().and_then(Path::to_str) {
            kept.push_str(&format!("folder = {}\n", toml::Value::String(folder.to_owned())));
        }
        kept.push_str(&format!("set = [{}]\n", set.collect::<Vec<_>>().join(", ")));
        let again = Self::parse::<&str, &str>(&kept, path, &[])?;
        let is_same = (again.repetitions, again.halving) == (self.repetitions, self.halving)
            && again.cells.iter().map(|cell| &cell.values).eq(self.cells.iter().map(|cell| &cell.values));
        if is_same {
            return Ok(kept);
        }
        let file = File { path, text };
        Err(file.error(None, "the sweep cannot be written down", "write [sweep] as a section of its own"))
    }

    /// A cell's values in words: `train.batch_size = 64, model.width = 8`.
    #[must_use]
    pub fn described(&self, cell: &Cell) -> String {
        described(&self.keys, &cell.values)
    }
}

fn described(keys: &[String], values: &[String]) -> String {
    let pairs: Vec<String> = keys.iter().zip(values).map(|(key, value)| format!("{key} = {value}")).collect();
    pairs.join(", ")
}

/// A file, for messages about it.
#[derive(Clone, Copy)]
struct File<'a> {
    path: &'a Path,
    text: &'a str,
}

impl File<'_> {
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
struct Section<'a> {
    file: File<'a>,
    repetitions: usize,
    axes: Vec<Axis>,
    /// Groups of keys that go together.
    zip: Vec<Vec<String>>,
    halving: Option<Halving>,
    command: Command,
}

impl<'a> Section<'a> {
    fn read(text: &'a str, path: &'a Path) -> Result<Self> {
        let file = File { path, text };
        let example = "say what is swept, like [sweep.keys] \"train.batch_size\" = [64, 128]";
        let document = DeTable::parse(text).map_err(|error| {
            file.error(error.span(), format!("not valid TOML: {}", error.message()), example)
        })?;
        let Some(section) = document.get_ref().get(SECTION) else {
            return Err(file.error(None, "there is no [sweep] section", example));
        };
        let DeValue::Table(table) = section.get_ref() else {
            return Err(file.error(Some(section.span()), "`sweep` is no section", example));
        };
        let mut found = Self {
            file,
            repetitions: 1,
            axes: Vec::new(),
            zip: Vec::new(),
            halving: None,
            command: Command::default(),
        };
        for (name, value) in table {
            let at = Some(name.span());
            match (name.get_ref().as_ref(), value.get_ref()) {
                ("repetitions", value) => {
                    found.repetitions = whole(value).filter(|&count| count >= 1).ok_or_else(|| {
                        file.error(at, "`sweep.repetitions` is no whole number from 1", "give it like 3")
                    })?;
                }
                ("keys", DeValue::Table(keys)) => found.read_keys(keys, "")?,
                ("keys", _) => return Err(file.error(at, "`sweep.keys` is no section", example)),
                ("zip", value) => {
                    found.zip = groups(value).ok_or_else(|| {
                        let hint = "give it like [[\"train.batch_size\", \"optimiser.learning_rate\"]]";
                        file.error(at, "`sweep.zip` is no list of lists of keys", hint)
                    })?;
                }
                ("halving", DeValue::Table(table)) => {
                    let read = Halving::read(table);
                    found.halving = Some(read.map_err(|(at, problem)| {
                        file.error(Some(at), problem, "give factor, epochs and metric, each at most once")
                    })?);
                }
                ("command", DeValue::Table(table)) => {
                    found.command = Command::read(table).ok_or_else(|| {
                        let hint = "leave it out: a sweep that is begun writes it";
                        file.error(at, "`sweep.command` is not as a sweep writes it", hint)
                    })?;
                }
                (other, _) => {
                    let known = ["repetitions", "keys", "zip", "halving"];
                    let hint = match nearest(other, known) {
                        Some(near) => format!("did you mean `sweep.{near}`?"),
                        None => format!("there are sweep.{}", known.join(", sweep.")),
                    };
                    return Err(file.error(at, format!("unknown key `sweep.{other}`"), &hint));
                }
            }
        }
        if found.axes.is_empty() {
            return Err(file.error(Some(section.span()), "nothing is swept", example));
        }
        found.axes.sort_by_key(|axis| axis.line);
        Ok(found)
    }

    /// Keys may be quoted, `"train.batch_size"`, or sections of their own.
    fn read_keys(&mut self, table: &DeTable<'_>, prefix: &str) -> Result<()> {
        let file = self.file;
        for (name, value) in table {
            let key = match prefix {
                "" => name.get_ref().to_string(),
                _ => format!("{prefix}.{}", name.get_ref()),
            };
            let at = Some(name.span());
            let hint = "give the values in a list, like [64, 128]";
            match value.get_ref() {
                DeValue::Table(inner) => self.read_keys(inner, &key)?,
                DeValue::Array(values) if !values.is_empty() => {
                    let values: Vec<String> = values.iter().map(|value| argument(value.get_ref())).collect();
                    self.axes.push(Axis { key, values, line: name.span().start });
                }
                DeValue::Array(_) => return Err(file.error(at, format!("`{key}` has no values"), hint)),
                _ => return Err(file.error(at, format!("`{key}` is no list of values"), hint)),
            }
        }
        Ok(())
    }

    /// The values of every cell, in their order.
    fn combinations(&self) -> Result<Vec<Vec<String>>> {
        let group_of = |key: &str| self.zip.iter().position(|group| group.iter().any(|of| of == key));
        let hint = "name keys of [sweep.keys], each in one group, with as many values as the others of it";
        let wrong = |problem: String| Err(self.file.error(None, problem, hint));
        for (number, group) in self.zip.iter().enumerate() {
            let mut lengths = Vec::new();
            for key in group {
                let Some(axis) = self.axes.iter().find(|axis| axis.key == *key) else {
                    return wrong(format!("`sweep.zip` names `{key}`, which is not swept"));
                };
                if group_of(key) != Some(number) || group.iter().filter(|of| *of == key).count() > 1 {
                    return wrong(format!("`sweep.zip` names `{key}` twice"));
                }
                lengths.push(axis.values.len());
            }
            if lengths.windows(2).any(|pair| pair[0] != pair[1]) {
                return wrong(format!(
                    "the keys {} go together, but have {lengths:?} values",
                    group.join(", ")
                ));
            }
        }
        // One wheel of the odometer for each group and each key of none, where its first key stands.
        let mut wheels: Vec<(Vec<usize>, usize)> = Vec::new();
        for (at, axis) in self.axes.iter().enumerate() {
            let before = group_of(&axis.key).and_then(|group| {
                wheels.iter_mut().find(|(axes, _)| group_of(&self.axes[axes[0]].key) == Some(group))
            });
            match before {
                Some((axes, _)) => axes.push(at),
                None => wheels.push((vec![at], axis.values.len())),
            }
        }
        let cells = wheels.iter().try_fold(1_usize, |cells, (_, values)| cells.checked_mul(*values));
        let rows = cells.and_then(|cells| cells.checked_mul(self.repetitions));
        let Some(cells) = cells.filter(|_| rows.is_some_and(|rows| rows <= MAX_ROWS)) else {
            return Err(self.file.error(
                None,
                format!("the sweep has more than {MAX_ROWS} runs"),
                "sweep fewer keys, fewer values or fewer repetitions",
            ));
        };
        Ok((0..cells)
            .map(|mut number| {
                let mut values = vec![String::new(); self.axes.len()];
                for (axes, count) in wheels.iter().rev() {
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

/// A value as `--set` takes it: a text as it is, everything else as TOML writes it.
fn argument(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Array(values) => {
            let inner = values.iter().map(|value| match value.get_ref() {
                DeValue::String(text) => toml::Value::String(text.to_string()).to_string(),
                other => argument(other),
            });
            format!("[{}]", inner.collect::<Vec<_>>().join(", "))
        }
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Table(_) => "{}".to_owned(),
    }
}

/// A whole number that is not negative.
pub(crate) fn whole(value: &DeValue<'_>) -> Option<usize> {
    match value {
        DeValue::Integer(number) if number.radix() == 10 => number.as_str().replace('_', "").parse().ok(),
        _ => None,
    }
}

fn groups(value: &DeValue<'_>) -> Option<Vec<Vec<String>>> {
    let DeValue::Array(groups) = value else { return None };
    groups
        .iter()
        .map(|group| {
            let DeValue::Array(keys) = group.get_ref() else { return None };
            keys.iter()
                .map(|key| match key.get_ref() {
                    DeValue::String(text) => Some(text.to_string()),
                    _ => None,
                })
                .collect()
        })
        .collect()
}

#[cfg(test)]
mod tests;
