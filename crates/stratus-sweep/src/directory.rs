//! A sweep's directory: `sweeps/<name>/`.
//!
//! ```text
//! sweep.toml       the sweep file, with its overrides
//! cells.csv        one row per cell and repetition
//! runs/3/2/        the run of cell 3, repetition 2
//! report.html      written at the end
//! ```

use std::fs;
use std::iter::once;
use std::path::{Path, PathBuf};

use serde::Serialize;
use stratus_base::read_text_at_most;
use stratus_base::text::shell_path;
use stratus_run::layout::{CELLS, LOCK, RUNS, SWEEP};
use stratus_run::lock::Lock;
use stratus_run::{RunDir, atomic, csv};

use crate::search::Observation;
use crate::{Definition, Error, Result, read_definition};

/// The maximum size of the table of rows.
const MAX_TABLE_BYTES: u64 = 64 << 20;

/// The columns of the table before those of the swept keys.
const COLUMNS: [&str; 5] = ["cell", "repetition", "status", "reason", "run"];

/// The status of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Not started.
    #[default]
    Waiting,
    /// Being trained, or the training process was killed.
    Running,
    /// Trained to its end.
    Completed,
    /// Training failed.
    Failed,
    /// Not enough memory.
    DoesNotFit,
    /// Stopped because other cells performed better, see [`crate::Halving`].
    StoppedEarly,
    /// Stopped on request; can be resumed.
    Interrupted,
}

impl Status {
    /// All statuses.
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

    /// Returns whether the row needs no more training.
    #[must_use]
    pub fn is_settled(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::DoesNotFit | Self::StoppedEarly)
    }
}

/// A row of the table: one repetition of a cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The cell, from 1.
    pub cell: usize,
    /// The repetition, from 1.
    pub repetition: usize,
    /// The status.
    pub status: Status,
    /// The reason for a status other than `completed`.
    pub reason: String,
    /// The run, relative to the sweep's directory; empty if there is none.
    pub run: String,
}

/// A sweep in its directory, locked for this process.
#[derive(Debug)]
pub struct Sweep {
    path: PathBuf,
    /// The parsed sweep file.
    pub definition: Definition,
    rows: Vec<Row>,
    _lock: Lock,
}

impl Sweep {
    /// Creates a sweep at `path`, which must be absent, empty, or contain only the files of a start that was
    /// killed before it wrote [`SWEEP`]. `text` is the sweep file, see [`Definition::with_command`].
    ///
    /// # Errors
    /// If the directory is not empty or cannot be written.
    pub fn create(path: &Path, definition: Definition, text: &str) -> Result<Self> {
        let io = |source: std::io::Error, doing| stratus_run::Error::io(doing, path)(source);
        fs::create_dir_all(path).map_err(|error| io(error, "create the folder"))?;
        let refused = |problem: &str, hint| Error::Directory {
            path: path.to_owned(),
            problem: problem.to_owned(),
            hint,
        };
        if !Self::is_sweep(path) {
            // Before the lock, whose file would be left in a folder of the user.
            for entry in fs::read_dir(path).map_err(|error| io(error, "read the folder"))? {
                let name = entry.map_err(|error| io(error, "read the folder"))?.file_name();
                let is_from_killed_start = name == LOCK
                    || atomic::is_temporary(&name)
                    || (name == CELLS && is_table_of_a_start(path));
                if !is_from_killed_start {
                    return Err(refused(
                        "the folder is not empty",
                        "choose another one with --out".to_owned(),
                    ));
                }
            }
        }
        let lock = Lock::acquire(path)?;
        if Self::is_sweep(path) {
            let resume = format!("resume it with `stratus sweep {}`", shell_path(path));
            let hint = format!("{resume}, or choose another folder with --out");
            return Err(refused("already contains a sweep", hint));
        }
        let rows =
            (1..=definition.cells.len()).flat_map(|cell| new_rows(cell, definition.repetitions)).collect();
        atomic::clean(path)?;
        let sweep = Self { path: path.to_owned(), definition, rows, _lock: lock };
        sweep.write()?;
        // This file is written last, since its presence makes the directory a sweep.
        atomic::write(&path.join(SWEEP), text.as_bytes())?;
        Ok(sweep)
    }

    /// Opens an existing sweep and locks it.
    ///
    /// # Errors
    /// If the directory is not a sweep, another process uses it, or its files do not match.
    pub fn open(path: &Path) -> Result<Self> {
        if !Self::is_sweep(path) {
            return Err(Error::Directory {
                path: path.to_owned(),
                problem: format!("not a sweep: {SWEEP} is missing"),
                hint: "name a sweep directory like sweeps/digits, or a sweep file".to_owned(),
            });
        }
        let lock = Lock::acquire(path)?;
        atomic::clean(path)?;
        let (definition, rows) = Self::read(path)?;
        Ok(Self { path: path.to_owned(), definition, rows, _lock: lock })
    }

    pub(crate) fn read(path: &Path) -> Result<(Definition, Vec<Row>)> {
        let file = path.join(SWEEP);
        let text = read_definition(&file).map_err(stratus_run::Error::io("read", &file))?;
        let mut definition = Definition::parse::<&str, &str>(&text, &file, &[])?;
        let file = path.join(CELLS);
        let text =
            read_text_at_most(&file, MAX_TABLE_BYTES).map_err(stratus_run::Error::io("read", &file))?;
        let rows = read_rows(&text, &mut definition).map_err(|problem| Error::Directory {
            path: file,
            problem,
            hint: format!("restore a copy, or start again with `stratus sweep {SWEEP} --out DIR`"),
        })?;
        Ok((definition, rows))
    }

    /// Returns whether `path` is a sweep's directory.
    #[must_use]
    pub fn is_sweep(path: &Path) -> bool {
        path.join(SWEEP).is_file()
    }

    /// The sweep's directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The rows: one per cell and repetition.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The rows that have a run, with its directory.
    pub fn runs(&self) -> impl Iterator<Item = (&Row, PathBuf)> {
        let with_run = |row: &&Row| !row.run.is_empty();
        self.rows.iter().filter(with_run).map(|row| (row, self.run_path(row)))
    }

    /// The directory of a row's run, whether it exists or not.
    #[must_use]
    pub fn run_path(&self, row: &Row) -> PathBuf {
        self.path.join(relative_run_path(row))
    }

    /// The directory of a row's run, relative to the sweep's directory.
    #[must_use]
    pub fn relative_run_path(row: &Row) -> String {
        relative_run_path(row)
    }

    /// Sets the status of a row and writes the table.
    pub(crate) fn set_status(&mut self, at: usize, status: Status, reason: String) -> Result<()> {
        let has_run = RunDir::is_run(&self.run_path(&self.rows[at]));
        let row = &mut self.rows[at];
        row.run = if has_run { relative_run_path(row) } else { String::new() };
        (row.status, row.reason) = (status, reason);
        self.write()
    }

    /// Adds the rows of the next cell of a search and writes the table, so that the cell never changes.
    /// Returns the cell; `None` if the search has no further one.
    ///
    /// # Errors
    /// If no cell can be drawn, or the table cannot be written.
    pub(crate) fn draw_cell(&mut self, observations: &[Observation]) -> Result<Option<usize>> {
        if !self.definition.draw_cell(observations)? {
            return Ok(None);
        }
        let cell = self.definition.cells.len();
        self.rows.extend(new_rows(cell, self.definition.repetitions));
        self.write()?;
        Ok(Some(cell))
    }

    fn write(&self) -> Result<()> {
        let row = |row: &Row| {
            let numbers = [row.cell.to_string(), row.repetition.to_string(), row.status.name().to_owned()];
            let values = &self.definition.cells[row.cell - 1].values;
            let fields = numbers.iter().chain([&row.reason, &row.run]).chain(values);
            fields.map(|field| on_one_line(field)).collect()
        };
        let text = csv::to_text(once(header(&self.definition)).chain(self.rows.iter().map(row)));
        Ok(atomic::write(&self.path.join(CELLS), text.as_bytes())?)
    }
}

/// The rows of a cell that was not started.
fn new_rows(cell: usize, repetitions: usize) -> impl Iterator<Item = Row> {
    (1..=repetitions).map(move |repetition| Row {
        cell,
        repetition,
        status: Status::Waiting,
        reason: String::new(),
        run: String::new(),
    })
}

/// Returns whether the table in the folder `path` is that of a sweep of which nothing was trained.
fn is_table_of_a_start(path: &Path) -> bool {
    let Ok(text) = read_text_at_most(&path.join(CELLS), MAX_TABLE_BYTES) else { return false };
    let mut lines = text.lines().map(fields);
    let is_header = lines.next().is_some_and(|header| header.starts_with(&COLUMNS.map(str::to_owned)));
    is_header && lines.all(|row| row.get(2).is_some_and(|status| status == Status::Waiting.name()))
}

pub(crate) fn relative_run_path(row: &Row) -> String {
    format!("{RUNS}/{}/{}", row.cell, row.repetition)
}

fn header(definition: &Definition) -> Vec<String> {
    COLUMNS.into_iter().map(str::to_owned).chain(definition.keys.iter().map(|key| on_one_line(key))).collect()
}

/// Replaces line breaks by spaces, so that every row of the table is one line.
fn on_one_line(field: &str) -> String {
    field.replace(['\r', '\n'], " ")
}

/// The fields of a line of the table.
fn fields(line: &str) -> Vec<String> {
    // The reader removes a byte order mark at the start of its input, so the line follows an empty field.
    let text = format!(",{line}");
    let reader = ::csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
    let record = reader.into_records().flatten().next().unwrap_or_default();
    record.iter().skip(1).map(str::to_owned).collect()
}

/// Parses the rows of `cells.csv`, which must match the definition. Cells that a search has drawn later than
/// at the start are added to it.
fn read_rows(text: &str, definition: &mut Definition) -> Result<Vec<Row>, String> {
    let mut lines = text.lines();
    if fields(lines.next().unwrap_or_default()) != header(definition) {
        return Err(format!("the columns do not match {SWEEP}"));
    }
    let rows: Vec<Row> = lines
        .enumerate()
        .map(|(at, line)| {
            let (cell, repetition) = (at / definition.repetitions + 1, at % definition.repetitions + 1);
            let mismatch = || {
                format!("line {}: `{line}` is not the row of cell {cell}, repetition {repetition}", at + 2)
            };
            let fields = fields(line);
            let [cell_field, repetition_field, status, reason, run, values @ ..] = &fields[..] else {
                return Err(mismatch());
            };
            let status = Status::ALL.into_iter().find(|known| known.name() == status).ok_or_else(mismatch)?;
            let row = Row { cell, repetition, status, reason: reason.clone(), run: run.clone() };
            if cell == definition.cells.len() + 1 && repetition == 1 {
                definition.add_recorded_cell(values.to_vec());
            }
            let is_cell = definition.cells.get(cell - 1).is_some_and(|cell| {
                cell.values.iter().map(|value| on_one_line(value)).eq(values.iter().cloned())
            });
            let is_row = *cell_field == cell.to_string() && *repetition_field == repetition.to_string();
            // The table cannot name a path outside the sweep's directory.
            let is_run = run.is_empty() || *run == relative_run_path(&row);
            if is_cell && is_row && is_run { Ok(row) } else { Err(mismatch()) }
        })
        .collect::<Result<_, String>>()?;
    let expected = definition.cells.len() * definition.repetitions;
    if rows.len() != expected {
        return Err(format!("the table has {} rows, the sweep has {expected}", rows.len()));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn csv_fields_round_trip(texts in prop::collection::vec("\u{feff}?[^\r\n]*", 1..6)) {
            prop_assert_eq!(fields(&csv::to_text([&texts])), texts);
        }
    }
}
