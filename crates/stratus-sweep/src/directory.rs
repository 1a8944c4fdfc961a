//! A sweep's directory: `sweeps/<name>/`.
//!
//! ```text
//! sweep.toml       the sweep file, with what was overridden written into it
//! cells.csv        a row for every cell and repetition
//! runs/3/2/        the run of cell 3, repetition 2
//! report.html      written at the end
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use stratus_run::lock::Lock;
use stratus_run::{RunDir, atomic};

use crate::lost::{self, Lost};
use crate::{Definition, Error, Result};

/// The sweep file. Its presence makes a directory a sweep.
pub const DEFINITION: &str = "sweep.toml";
/// A row for every cell and repetition.
pub const CELLS: &str = "cells.csv";
/// The folder of the runs.
pub const RUNS: &str = "runs";
/// The comparison of the runs.
pub const REPORT: &str = "report.html";

/// What became of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Not begun.
    #[default]
    Waiting,
    /// Being trained, or its trainer was killed.
    Running,
    /// Trained to its end.
    Completed,
    /// Training failed.
    Failed,
    /// It needs more memory than there is.
    DoesNotFit,
    /// Others did better, see [`crate::Halving`].
    StoppedEarly,
    /// Stopped on request; it can be continued.
    Interrupted,
}

impl Status {
    /// Every status.
    pub const ALL: [Self; 7] = [
        Self::Waiting,
        Self::Running,
        Self::Completed,
        Self::Failed,
        Self::DoesNotFit,
        Self::StoppedEarly,
        Self::Interrupted,
    ];

    /// The name in files: `does_not_fit`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::DoesNotFit => "does_not_fit",
            Self::StoppedEarly => "stopped_early",
            Self::Interrupted => "interrupted",
        }
    }

    /// Whether nothing is left to do.
    #[must_use]
    pub fn is_settled(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::DoesNotFit | Self::StoppedEarly)
    }
}

/// A cell's repetition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The cell, from 1.
    pub cell: usize,
    /// The repetition, from 1.
    pub repetition: usize,
    /// What became of it.
    pub status: Status,
    /// Why, where it is not `completed`.
    pub reason: String,
    /// Its run, from the sweep's directory; empty where it has none.
    pub run: String,
}

/// A sweep in its directory, locked for this process.
#[derive(Debug)]
pub struct Sweep {
    path: PathBuf,
    /// What is swept.
    pub definition: Definition,
    rows: Vec<Row>,
    _lock: Lock,
}

impl Sweep {
    /// Makes `path`, which must not exist or be empty, a sweep. `text` is the sweep file, see
    /// [`Definition::with_command`].
    ///
    /// # Errors
    /// Where there is something already, or the directory cannot be written.
    pub fn create(path: &Path, definition: Definition, text: &str) -> Result<Self> {
        let io = |source: std::io::Error, doing| stratus_run::Error::io(doing, path)(source);
        fs::create_dir_all(path).map_err(|error| io(error, "create the folder"))?;
        let lock = Lock::acquire(path)?;
        for entry in fs::read_dir(path).map_err(|error| io(error, "read the folder"))? {
            let name = entry.map_err(|error| io(error, "read the folder"))?.file_name();
            if name != stratus_run::layout::LOCK && !atomic::is_temporary(&name) {
                let (problem, hint) = if Self::is_sweep(path) {
                    let continued = format!("continue it with `stratus sweep {}`", path.display());
                    ("there is a sweep already", format!("{continued}, or give another folder with --out"))
                } else {
                    ("the folder is not empty", "give another one with --out".to_owned())
                };
                return Err(Error::Directory { path: path.to_owned(), problem: problem.to_owned(), hint });
            }
        }
        let rows = (1..=definition.cells.len())
            .flat_map(|cell| (1..=definition.repetitions).map(move |repetition| (cell, repetition)))
            .map(|(cell, repetition)| Row {
                cell,
                repetition,
                status: Status::Waiting,
                reason: String::new(),
                run: String::new(),
            })
            .collect();
        let sweep = Self { path: path.to_owned(), definition, rows, _lock: lock };
        sweep.write()?;
        // Written last: it makes the directory a sweep.
        atomic::write(&path.join(DEFINITION), text.as_bytes())?;
        Ok(sweep)
    }

    /// A sweep that was begun.
    ///
    /// # Errors
    /// Where it is none, another process works on it, or its files are not those of its sweep.
    pub fn open(path: &Path) -> Result<Self> {
        if !Self::is_sweep(path) {
            return Err(Error::Directory {
                path: path.to_owned(),
                problem: format!("it is no sweep: {DEFINITION} is missing"),
                hint: "give a directory like sweeps/digits, or a sweep file".to_owned(),
            });
        }
        let lock = Lock::acquire(path)?;
        atomic::clean(path)?;
        let (definition, rows) = Self::read(path)?;
        Ok(Self { path: path.to_owned(), definition, rows, _lock: lock })
    }

    /// Returns the sweep in a directory, its rows, and those that have lost their run. Nothing is changed.
    ///
    /// # Errors
    /// Where the files are not those of its sweep, or something else is in the place of a run.
    pub fn look(path: &Path) -> Result<(Definition, Vec<Row>, Vec<Lost>)> {
        let (definition, rows) = Self::read(path)?;
        let lost = lost::find(path, &definition, &rows)?;
        Ok((definition, rows, lost))
    }

    fn read(path: &Path) -> Result<(Definition, Vec<Row>)> {
        let file = path.join(DEFINITION);
        let text = fs::read_to_string(&file).map_err(stratus_run::Error::io("read", &file))?;
        let definition = Definition::parse::<&str, &str>(&text, &file, &[])?;
        let file = path.join(CELLS);
        let text = fs::read_to_string(&file).map_err(stratus_run::Error::io("read", &file))?;
        let rows = read_rows(&text, &definition).map_err(|problem| Error::Directory {
            path: file,
            problem,
            hint: format!("restore it from a copy, or begin anew with `stratus sweep {DEFINITION} --out`"),
        })?;
        Ok((definition, rows))
    }

    /// Whether `path` is a sweep's directory.
    #[must_use]
    pub fn is_sweep(path: &Path) -> bool {
        path.join(DEFINITION).is_file()
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A row for every cell and repetition.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Rows that have a run, with its directory.
    pub fn runs(&self) -> impl Iterator<Item = (&Row, PathBuf)> {
        let with_run = |row: &&Row| !row.run.is_empty();
        self.rows.iter().filter(with_run).map(|row| (row, self.run_of(row)))
    }

    /// Where the run of a row is or will be.
    #[must_use]
    pub fn run_of(&self, row: &Row) -> PathBuf {
        self.path.join(run_name(row))
    }

    /// Notes what became of a row.
    pub(crate) fn set(&mut self, at: usize, status: Status, reason: String) -> Result<()> {
        let has_run = RunDir::is_run(&self.run_of(&self.rows[at]));
        let row = &mut self.rows[at];
        row.run = if has_run { run_name(row) } else { String::new() };
        (row.status, row.reason) = (status, reason);
        self.write()
    }

    fn write(&self) -> Result<()> {
        let mut text = header(&self.definition);
        for row in &self.rows {
            let numbers = [row.cell.to_string(), row.repetition.to_string(), row.status.name().to_owned()];
            let values = &self.definition.cells[row.cell - 1].values;
            let fields = numbers.iter().chain([&row.reason, &row.run]).chain(values);
            text.push_str(&fields.map(|field| quoted(field)).collect::<Vec<_>>().join(","));
            text.push('\n');
        }
        Ok(atomic::write(&self.path.join(CELLS), text.as_bytes())?)
    }
}

pub(crate) fn run_name(row: &Row) -> String {
    format!("{RUNS}/{}/{}", row.cell, row.repetition)
}

fn header(definition: &Definition) -> String {
    let columns = ["cell", "repetition", "status", "reason", "run"].into_iter();
    let keys = definition.keys.iter().map(String::as_str);
    columns.chain(keys).map(quoted).collect::<Vec<_>>().join(",") + "\n"
}

/// A field as RFC 4180 has it. Line breaks become spaces: a row is a line.
fn quoted(field: &str) -> String {
    let line = field.replace(['\r', '\n'], " ");
    if line.contains([',', '"']) { format!("\"{}\"", line.replace('"', "\"\"")) } else { line }
}

/// The fields of a line; `None` where a quote is not closed.
fn fields(line: &str) -> Option<Vec<String>> {
    let (mut fields, mut field, mut inside) = (Vec::new(), String::new(), false);
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if inside && letters.peek() == Some(&'"') => {
                letters.next();
                field.push('"');
            }
            '"' => inside = !inside,
            ',' if !inside => fields.push(std::mem::take(&mut field)),
            other => field.push(other),
        }
    }
    fields.push(field);
    (!inside).then_some(fields)
}

/// The rows of `cells.csv`, which must be those of the definition.
fn read_rows(text: &str, definition: &Definition) -> Result<Vec<Row>, String> {
    let mut lines = text.lines();
    if lines.next() != Some(header(definition).trim_end()) {
        return Err(format!("its columns are not those of {DEFINITION}"));
    }
    let rows: Vec<Row> = lines
        .enumerate()
        .map(|(at, line)| {
            let (cell, repetition) = (at / definition.repetitions + 1, at % definition.repetitions + 1);
            let wrong = || {
                format!("line {}: `{line}` is not the row of cell {cell}, repetition {repetition}", at + 2)
            };
            let fields = fields(line).ok_or_else(wrong)?;
            let [cell_field, repetition_field, status, reason, run, values @ ..] = &fields[..] else {
                return Err(wrong());
            };
            let status = Status::ALL.into_iter().find(|known| known.name() == status).ok_or_else(wrong)?;
            let row = Row { cell, repetition, status, reason: reason.clone(), run: run.clone() };
            let is_cell = definition.cells.get(cell - 1).is_some_and(|cell| {
                let kept = cell.values.iter().map(|value| value.replace(['\r', '\n'], " "));
                kept.eq(values.iter().cloned())
            });
            let is_row = *cell_field == cell.to_string() && *repetition_field == repetition.to_string();
            // A path in this file is never followed elsewhere.
            let is_run = run.is_empty() || *run == run_name(&row);
            if is_cell && is_row && is_run { Ok(row) } else { Err(wrong()) }
        })
        .collect::<Result<_, String>>()?;
    let expected = definition.cells.len() * definition.repetitions;
    if rows.len() != expected {
        return Err(format!("it has {} rows, the sweep has {expected}", rows.len()));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fields_come_back(texts in prop::collection::vec("[^\r\n]*", 1..6)) {
            let line = texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(",");
            prop_assert_eq!(fields(&line), Some(texts));
        }
    }
}
