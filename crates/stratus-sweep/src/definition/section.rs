//! The `[sweep]` section of a sweep file.

use std::ops::Range;
use std::path::{Path, PathBuf};

use stratus_base::nearest;
use stratus_experiment::{EpochMetric, KEYS, ValueKind};
use toml::de::{DeTable, DeValue};

use super::{MAX_CELL_BYTES, MAX_ROWS, SECTION};
use crate::halving::Halving;
use crate::search::{Dimension, Domain, NumberRange, Search, SearchMethod, Space};
use crate::value::{parse_count, parse_key_groups, to_set_value};
use crate::{Error, Result};

/// The keys of the section.
const SECTION_KEYS: [&str; 8] =
    ["repetitions", "keys", "zip", "halving", "search", "trials", "seed", "objective"];

/// A sweep file and its path, for error messages.
#[derive(Clone, Copy)]
pub(super) struct SourceText<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

impl SourceText<'_> {
    pub(super) fn error(self, at: Option<Range<usize>>, problem: impl Into<String>, hint: &str) -> Error {
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

/// The `[sweep.command]` section.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SavedCommand {
    /// A folder besides the working directory in which files named by the experiment are searched.
    pub(super) folder: Option<PathBuf>,
    /// Overrides, in the syntax of `--set`.
    pub(super) set: Vec<(String, String)>,
}

impl SavedCommand {
    pub(super) fn read(table: &DeTable<'_>) -> Option<Self> {
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

/// The values of a key.
enum Values {
    /// A list.
    Listed(Vec<String>),
    /// A range, which only a search draws from.
    Range(NumberRange),
}

/// A swept key and its values.
pub(super) struct Axis {
    pub(super) key: String,
    values: Values,
    line: usize,
}

impl Axis {
    /// The number of listed values; `None` of a range.
    fn count(&self) -> Option<usize> {
        match &self.values {
            Values::Listed(values) => Some(values.len()),
            Values::Range(_) => None,
        }
    }

    /// The listed value at an index; empty if there is none.
    fn listed(&self, at: usize) -> String {
        match &self.values {
            Values::Listed(values) => values.get(at).cloned().unwrap_or_default(),
            Values::Range(_) => String::new(),
        }
    }
}

/// The keys of `[sweep]` for a search, as they are written.
#[derive(Default)]
struct SearchKeys {
    method: Option<SearchMethod>,
    trials: Option<usize>,
    seed: Option<u64>,
    objective: Option<EpochMetric>,
}

/// The `[sweep]` section.
pub(super) struct SweepSection<'a> {
    pub(super) source: SourceText<'a>,
    pub(super) repetitions: usize,
    pub(super) axes: Vec<Axis>,
    /// Groups of keys that change together.
    zip: Vec<Vec<String>>,
    pub(super) halving: Option<Halving>,
    search: SearchKeys,
    pub(super) command: SavedCommand,
}

impl<'a> SweepSection<'a> {
    pub(super) fn read(text: &'a str, path: &'a Path) -> Result<Self> {
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
            search: SearchKeys::default(),
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
                        file.error(Some(at), problem, "the keys are factor, epochs, metric and asynchronous")
                    })?);
                }
                ("command", DeValue::Table(table)) => {
                    found.command = SavedCommand::read(table).ok_or_else(|| {
                        let hint = "remove it: stratus writes this section";
                        file.error(at, "`sweep.command` is invalid", hint)
                    })?;
                }
                (name @ ("search" | "trials" | "seed" | "objective"), value) => {
                    let read = found.search.read(name, value);
                    read.map_err(|expected| {
                        file.error(at, format!("`sweep.{name}` must be {expected}"), "see docs/sweeps.md")
                    })?;
                }
                (other, _) => {
                    let hint = match nearest(other, SECTION_KEYS) {
                        Some(name) => format!("did you mean `sweep.{name}`?"),
                        None => format!("the keys are sweep.{}", SECTION_KEYS.join(", sweep.")),
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
            let hint = "list its values, like [64, 128], or write a range, like { uniform = [0.1, 0.9] }";
            let values = match value.get_ref() {
                DeValue::Table(inner) => match search_form(inner) {
                    Some(SearchForm::Choice(choices)) => choices,
                    Some(SearchForm::Range) => {
                        let is_integer =
                            KEYS.iter().any(|known| known.name == key && known.kind == ValueKind::Integer);
                        let range = NumberRange::read(inner, is_integer)
                            .map_err(|problem| file.error(at, format!("`{key}` {problem}"), hint))?;
                        self.axes.push(Axis { key, values: Values::Range(range), line: name.span().start });
                        continue;
                    }
                    None => {
                        self.read_keys(inner, &key)?;
                        continue;
                    }
                },
                other => other,
            };
            match values {
                DeValue::Array(values) if !values.is_empty() => {
                    let values = values.iter().map(|value| to_set_value(value.get_ref())).collect();
                    self.axes.push(Axis { key, values: Values::Listed(values), line: name.span().start });
                }
                DeValue::Array(_) => return Err(file.error(at, format!("`{key}` is empty"), hint)),
                _ => return Err(file.error(at, format!("`{key}` must be a list of values"), hint)),
            }
        }
        Ok(())
    }

    /// Checks the memory of all cells, each of which has a copy of the file's values and of its own.
    fn check_memory(&self, cells: usize, value_bytes: usize) -> Result<()> {
        let longest = |axis: &Axis| match &axis.values {
            Values::Listed(values) => values.iter().map(String::len).max().unwrap_or(0),
            Values::Range(_) => size_of::<u64>(),
        };
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

    /// Returns the indices of the keys of each zip group and of each other key, in the order of the file.
    fn groups(&self) -> Result<Vec<Vec<usize>>> {
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
                let Some(count) = axis.count() else {
                    return invalid(format!("`sweep.zip` names `{key}`, which has a range"));
                };
                lengths.push(count);
            }
            if lengths.windows(2).any(|pair| pair[0] != pair[1]) {
                let lengths: Vec<String> = lengths.iter().map(ToString::to_string).collect();
                let (keys, lengths) = (group.join(", "), lengths.join(", "));
                return invalid(format!("zipped keys {keys} have different numbers of values: {lengths}"));
            }
        }
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (at, axis) in self.axes.iter().enumerate() {
            let group = group_of(&axis.key).and_then(|group| {
                groups.iter_mut().find(|axes| group_of(&self.axes[axes[0]].key) == Some(group))
            });
            match group {
                Some(axes) => axes.push(at),
                None => groups.push(vec![at]),
            }
        }
        Ok(groups)
    }

    /// Checks the number of cells and their memory. An experiment of the file has `value_bytes` bytes.
    fn check_size(&self, cells: Option<usize>, value_bytes: usize) -> Result<usize> {
        let rows = cells.and_then(|cells| cells.checked_mul(self.repetitions));
        let Some(cells) = cells.filter(|_| rows.is_some_and(|rows| rows <= MAX_ROWS)) else {
            return Err(self.source.error(
                None,
                format!("the sweep has more than {MAX_ROWS} runs"),
                "sweep fewer keys, fewer values or fewer repetitions",
            ));
        };
        self.check_memory(cells, value_bytes)?;
        Ok(cells)
    }

    /// Returns the values of every cell of a grid, in order. An experiment of the file has `value_bytes`
    /// bytes.
    pub(super) fn combinations(&self, value_bytes: usize) -> Result<Vec<Vec<String>>> {
        if let Some(axis) = self.axes.iter().find(|axis| axis.count().is_none()) {
            return Err(self.source.error(
                None,
                format!("`{}` has a range, which a grid cannot enumerate", axis.key),
                "set sweep.search = \"random\" or \"tpe\", and sweep.trials",
            ));
        }
        let counters: Vec<(Vec<usize>, usize)> = self
            .groups()?
            .into_iter()
            .map(|axes| {
                let count = self.axes[axes[0]].count().unwrap_or(0);
                (axes, count)
            })
            .collect();
        let cells = counters.iter().try_fold(1_usize, |cells, (_, values)| cells.checked_mul(*values));
        let cells = self.check_size(cells, value_bytes)?;
        Ok((0..cells)
            .map(|mut number| {
                let mut values = vec![String::new(); self.axes.len()];
                for (axes, count) in counters.iter().rev() {
                    for &axis in axes {
                        values[axis] = self.axes[axis].listed(number % count);
                    }
                    number /= count;
                }
                values
            })
            .collect())
    }

    /// Returns the search; `None` for a grid. An experiment of the file has `value_bytes` bytes.
    pub(super) fn search(&self, value_bytes: usize) -> Result<Option<Search>> {
        let invalid = |problem: &str, hint: &str| Err(self.source.error(None, problem, hint));
        let keys = &self.search;
        let Some(method) = keys.method else {
            let given = [
                ("trials", keys.trials.is_some()),
                ("seed", keys.seed.is_some()),
                ("objective", keys.objective.is_some()),
            ];
            return match given.iter().find(|(_, is_given)| *is_given) {
                Some((name, _)) => invalid(
                    &format!("`sweep.{name}` has no effect on a grid"),
                    "remove it, or set sweep.search = \"random\" or \"tpe\"",
                ),
                None => Ok(None),
            };
        };
        let Some(trials) = keys.trials else {
            return invalid("`sweep.trials` is not set", "set the number of cells, like sweep.trials = 30");
        };
        let objective = keys.objective.or(self.halving.map(|halving| halving.metric));
        if method == SearchMethod::Tpe {
            if objective.is_none() {
                return invalid(
                    "`sweep.objective` is not set",
                    "set it to a column of epochs.csv, like sweep.objective = \"val_top1\"",
                );
            }
            if self.halving.is_some_and(|halving| !halving.is_asynchronous) {
                return invalid(
                    "halving compares all cells at once, but TPE proposes them one after the other",
                    "set sweep.halving.asynchronous = true",
                );
            }
        }
        let dimensions = self.groups()?.into_iter().map(|axes| {
            let first = &self.axes[axes[0]];
            let domain = match &first.values {
                Values::Range(range) => Domain::Range(*range),
                Values::Listed(values) => {
                    let choice = |at| axes.iter().map(|&axis| self.axes[axis].listed(at)).collect();
                    Domain::Choices((0..values.len()).map(choice).collect())
                }
            };
            Dimension { axes, domain }
        });
        let space = Space { dimensions: dimensions.collect() };
        if let Some(count) = space.count().filter(|count| *count < trials) {
            return invalid(
                &format!("`sweep.trials` is {trials}, but the keys have only {count} combinations"),
                &format!("set sweep.trials to at most {count}, or remove sweep.search for a grid"),
            );
        }
        self.check_size(Some(trials), value_bytes)?;
        Ok(Some(Search { method, trials, seed: keys.seed.unwrap_or(0), objective, space }))
    }
}

impl SearchKeys {
    /// Reads a key; an error is the phrase for accepted values.
    fn read(&mut self, name: &str, value: &DeValue<'_>) -> Result<(), String> {
        let text = match value {
            DeValue::String(text) => Some(text.as_ref()),
            _ => None,
        };
        match name {
            "search" => {
                self.method = match text {
                    Some("grid") => None,
                    Some("random") => Some(SearchMethod::Random),
                    Some("tpe") => Some(SearchMethod::Tpe),
                    _ => return Err("grid, random or tpe".to_owned()),
                };
            }
            "objective" => {
                let metric = text.and_then(EpochMetric::from_name);
                let expected = || format!("one of {}", EpochMetric::NAMES.join(", "));
                self.objective = Some(metric.ok_or_else(expected)?);
            }
            "trials" => {
                let count = parse_count(value).filter(|&count| count >= 1);
                self.trials = Some(count.ok_or("a positive integer")?);
            }
            _ => self.seed = Some(parse_count(value).ok_or("a non-negative integer")? as u64),
        }
        Ok(())
    }
}

/// A table that gives the values of a key.
enum SearchForm<'a, 'i> {
    /// `{ choice = [...] }`: as the list alone.
    Choice(&'a DeValue<'i>),
    /// `{ uniform = [a, b] }` or `{ log_uniform = [a, b] }`.
    Range,
}

/// Returns the form of a table; `None` if it has keys of the experiment.
fn search_form<'a, 'i>(table: &'a DeTable<'i>) -> Option<SearchForm<'a, 'i>> {
    let is_form = |name: &str| matches!(name, "uniform" | "log_uniform" | "choice");
    let known = table.iter().find(|(name, _)| is_form(name.get_ref().as_ref()));
    known.map(|(name, value)| match name.get_ref().as_ref() {
        "choice" if table.len() == 1 => SearchForm::Choice(value.get_ref()),
        _ => SearchForm::Range,
    })
}
