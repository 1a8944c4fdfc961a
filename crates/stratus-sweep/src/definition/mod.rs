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
use std::path::{Path, PathBuf};

use stratus_base::read_text_at_most;
use stratus_experiment::{Experiment, ExperimentError, ExperimentText, MAX_FILE_BYTES, ParsedExperiment};
use toml::de::DeTable;

use crate::halving::Halving;
use crate::search::{MAX_ATTEMPTS, Observation, Search};
use crate::{Error, Result};

mod section;

use section::{SavedCommand, SourceText, SweepSection};

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
    /// The cells: every combination of values, or those that the search has drawn so far.
    pub cells: Vec<Cell>,
    /// Runs per cell, which differ only in the seed.
    pub repetitions: usize,
    /// Early stopping of worse cells; `None` if every cell is trained to its end.
    pub halving: Option<Halving>,
    /// The search that draws the cells; `None` for every combination of values.
    pub search: Option<Search>,
    template: Template,
}

/// The file that cells are made from.
#[derive(Clone, Debug, PartialEq)]
struct Template {
    /// The sweep file; read again for cells that a search draws later.
    text: String,
    path: PathBuf,
    command: SavedCommand,
}

impl Template {
    /// Parses the experiment of the file.
    fn parse(&self) -> Result<ParsedExperiment<'_>, ExperimentError> {
        ParsedExperiment::parse(&ExperimentText {
            text: &self.text,
            path: &self.path,
            folder: self.command.folder.as_deref(),
            excluded_section: Some(SECTION),
        })
    }

    fn source(&self) -> SourceText<'_> {
        SourceText { path: &self.path, text: &self.text }
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
        let template = Template {
            text: text.to_owned(),
            path: path.to_owned(),
            command: SavedCommand { folder, set: overrides },
        };
        let sweeps = |key: &str| section.axes.iter().any(|axis| axis.key == key);
        // Parses without swept keys first, so that errors of the file are not reported for a cell.
        let parsed = template.parse()?;
        match parsed.experiment(&template.command.set) {
            Err(ExperimentError::Missing { key, .. }) if sweeps(key) => {}
            other => _ = other?,
        }
        if let Some((key, _)) = template.command.set.iter().find(|(key, _)| sweeps(key)) {
            return Err(section.source.error(
                None,
                format!("`{key}` is both swept and set with --set"),
                "remove it from --set or from [sweep.keys]",
            ));
        }
        let search = section.search(parsed.value_bytes())?;
        let mut definition = Self {
            name: String::new(),
            keys: section.axes.iter().map(|axis| axis.key.clone()).collect(),
            cells: Vec::new(),
            repetitions: section.repetitions,
            halving: section.halving,
            search: None,
            template: template.clone(),
        };
        match &search {
            None => {
                let mut numbers = HashMap::new();
                for (values, number) in section.combinations(parsed.value_bytes())?.into_iter().zip(1_usize..)
                {
                    if let Some(earlier) = numbers.insert(values.clone(), number) {
                        let cell = describe_values(&definition.keys, &values);
                        let problem = format!("cells {earlier} and {number} are identical: {cell}");
                        let hint = "set sweep.repetitions to repeat runs";
                        return Err(section.source.error(None, problem, hint));
                    }
                    definition.add_cell(values, &parsed)?;
                }
            }
            Some(search) => {
                for trial in 1..=search.initial_trials() {
                    let values = definition.draw_new(search, trial, &[], |_| true)?;
                    definition.add_cell(values, &parsed)?;
                }
                definition.check_corners(search, &parsed)?;
            }
        }
        definition.search = search;
        let experiment_name =
            definition.cells.first().and_then(|cell| cell.experiment.experiment.name.clone());
        let stem = || path.file_stem().and_then(|stem| stem.to_str()).unwrap_or(SECTION).to_owned();
        definition.name = experiment_name.filter(|_| !sweeps("experiment.name")).unwrap_or_else(stem);
        Ok(definition)
    }

    /// The number of cells at the end of the sweep.
    #[must_use]
    pub fn final_cells(&self) -> usize {
        self.search.as_ref().map_or(self.cells.len(), |search| search.trials)
    }

    /// Adds the next cell of a search, drawn from the results so far. Values that are not a valid experiment
    /// are drawn again. Returns whether there was one.
    ///
    /// # Errors
    /// If no other cell can be drawn.
    pub(crate) fn draw_cell(&mut self, observations: &[Observation]) -> Result<bool> {
        let Some(search) = self.search.clone() else { return Ok(false) };
        let trial = self.cells.len() + 1;
        if trial > search.trials {
            return Ok(false);
        }
        let template = self.template.clone();
        let parsed = template.parse()?;
        let is_valid = |values: &[String]| self.experiment(values, &parsed).is_ok();
        let values = self.draw_new(&search, trial, observations, is_valid)?;
        self.add_cell(values, &parsed)?;
        Ok(true)
    }

    /// Adds the next cell of a search, with the values that a table has recorded. Returns whether it is one.
    pub(crate) fn add_recorded_cell(&mut self, values: Vec<String>) -> bool {
        let template = self.template.clone();
        let is_in_space = self.search.as_ref().is_some_and(|search| {
            self.cells.len() < search.trials
                && values.len() == self.keys.len()
                && search.space.point_of(&values).is_some()
        });
        is_in_space && template.parse().is_ok_and(|parsed| self.add_cell(values, &parsed).is_ok())
    }

    /// Draws values that no cell has and that are acceptable.
    fn draw_new(
        &self,
        search: &Search,
        trial: usize,
        observations: &[Observation],
        is_acceptable: impl Fn(&[String]) -> bool,
    ) -> Result<Vec<String>> {
        let is_new = |values: &Vec<String>| self.cells.iter().all(|cell| cell.values != *values);
        (0..MAX_ATTEMPTS)
            .map(|attempt| search.draw(trial, attempt, observations))
            .find(|values| is_new(values) && is_acceptable(values))
            .ok_or_else(|| {
                self.template.source().error(
                    None,
                    format!("found no new valid values for cell {trial}"),
                    "lower sweep.trials, or widen the ranges of [sweep.keys]",
                )
            })
    }

    /// Checks cells with the ends of each range and the choices of each list.
    fn check_corners(&self, search: &Search, parsed: &ParsedExperiment<'_>) -> Result<()> {
        self.corners(search, parsed).map(drop)
    }

    /// The experiments with the ends of each range and the choices of each list.
    fn corners(&self, search: &Search, parsed: &ParsedExperiment<'_>) -> Result<Vec<Experiment>> {
        let Some(point) = self.cells.first().and_then(|cell| search.space.point_of(&cell.values)) else {
            return Ok(Vec::new());
        };
        let corners = search.space.corners(&point).into_iter().map(|corner| {
            let values = search.space.values_at(&corner);
            self.experiment(&values, parsed).map_err(|source| Error::Corner {
                values: describe_values(&self.keys, &values),
                source: Box::new(source),
            })
        });
        corners.collect()
    }

    /// Experiments that name every file that a cell may name: those with the ends of each range and the
    /// choices of each list, if a search draws more cells.
    ///
    /// # Errors
    /// If the sweep file is not valid.
    pub fn experiments_of_later_cells(&self) -> Result<Vec<Experiment>> {
        match &self.search {
            Some(search) if self.cells.len() < search.trials => self.corners(search, &self.template.parse()?),
            _ => Ok(Vec::new()),
        }
    }

    /// The experiment with the values of a cell.
    fn experiment(
        &self,
        values: &[String],
        parsed: &ParsedExperiment<'_>,
    ) -> Result<Experiment, ExperimentError> {
        let swept = self.keys.iter().cloned().zip(values.iter().cloned());
        let all: Vec<(String, String)> = self.template.command.set.iter().cloned().chain(swept).collect();
        parsed.experiment(&all)
    }

    fn add_cell(&mut self, values: Vec<String>, parsed: &ParsedExperiment<'_>) -> Result<()> {
        let number = self.cells.len() + 1;
        let experiment = self.experiment(&values, parsed).map_err(|source| Error::Cell {
            cell: number,
            values: describe_values(&self.keys, &values),
            source: Box::new(source),
        })?;
        if let Some(halving) = &self.halving {
            halving.check(&experiment).map_err(|problem| {
                self.template.source().error(None, problem, "change or remove [sweep.halving]")
            })?;
        }
        self.cells.push(Cell { values, experiment });
        Ok(())
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
            .template
            .command
            .set
            .iter()
            .map(|(key, value)| toml::Value::String(format!("{key}={value}")).to_string());
        extended.push_str(&format!("\n\n{COMMAND_HEADING}\n"));
        let folder = self
            .template
            .command
            .folder
            .as_deref()
            .map(|folder| std::path::absolute(folder).unwrap_or(folder.into()));
        if let Some(folder) = folder.as_deref().and_then(Path::to_str) {
            extended.push_str(&format!("folder = {}\n", toml::Value::String(folder.to_owned())));
        }
        extended.push_str(&format!("set = [{}]\n", set.collect::<Vec<_>>().join(", ")));
        let reparsed = Self::parse::<&str, &str>(&extended, path, &[])?;
        let is_same = (reparsed.repetitions, reparsed.halving) == (self.repetitions, self.halving)
            && reparsed.search == self.search
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

    /// The name of a cell by its values, with keys as short as they are unique: `batch_size=64 width=8`.
    #[must_use]
    pub fn cell_name(&self, cell: &Cell) -> String {
        let pairs = self.short_keys().into_iter().zip(&cell.values);
        pairs.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    }

    /// The shortest end of each key, in whole words, that no other key ends with.
    fn short_keys(&self) -> Vec<&str> {
        let ends = |key: &str, end: &str| key == end || key.ends_with(&format!(".{end}"));
        let shortest = |key| -> &str {
            let key: &String = key;
            let starts = key.rmatch_indices('.').map(|(at, _)| at + 1).chain([0]);
            let mut candidates = starts.map(|start| &key[start..]);
            let is_unique = |end: &&str| self.keys.iter().filter(|other| ends(other, end)).count() == 1;
            candidates.find(is_unique).unwrap_or(key)
        };
        self.keys.iter().map(shortest).collect()
    }
}

fn describe_values(keys: &[String], values: &[String]) -> String {
    let pairs: Vec<String> = keys.iter().zip(values).map(|(key, value)| format!("{key} = {value}")).collect();
    pairs.join(", ")
}

#[cfg(test)]
mod tests;
