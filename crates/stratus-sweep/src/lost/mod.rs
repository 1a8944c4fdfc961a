//! Rows whose run is missing, incomplete or damaged.
//!
//! The metrics of a row come from its run. If the run of a completed or early-stopped row was removed, moved
//! or damaged, the row is set to waiting, and its run is trained again. With asynchronous halving, it is
//! trained to where it was and is not ranked again. A row that failed or did not fit needs no run and keeps
//! its reason.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use stratus_base::read_text_at_most;
use stratus_experiment::MAX_FILE_BYTES;
use stratus_run::csv::{self, EpochRow};
use stratus_run::layout::{CHECKPOINTS, EPOCHS, EXPERIMENT, ITERATIONS, LOCK, SUMMARY};
use stratus_run::lock::Lock;
use stratus_run::summary::{Status as RunStatus, Summary};
use stratus_run::{RunDir, atomic};

use crate::schedule::reason_to_repeat;
use crate::{Definition, Error, Result, Row, Status, Sweep};

/// A row that has lost its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRun {
    /// The row in the table.
    pub row: Row,
    /// The expected directory of the run.
    pub run: PathBuf,
    /// The state of the run.
    pub loss: Loss,
    /// The folder to which the damaged run was moved.
    pub moved_to: Option<PathBuf>,
}

/// The state of a lost run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The run does not exist.
    Gone,
    /// The run is incomplete and can be resumed; the reason.
    Incomplete(String),
    /// The run is incomplete and cannot be resumed; the reason.
    Damaged(String),
}

impl fmt::Display for Loss {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => write!(formatter, "its run is missing"),
            Self::Incomplete(reason) => write!(formatter, "its run is incomplete: {reason}"),
            Self::Damaged(reason) => write!(formatter, "its run is damaged: {reason}"),
        }
    }
}

impl Sweep {
    /// Returns the sweep in a directory, its rows, and the rows that have lost their run. Nothing is changed.
    ///
    /// # Errors
    /// If the files do not match the sweep, or a file is in the place of a run.
    pub fn inspect(path: &Path) -> Result<(Definition, Vec<Row>, Vec<LostRun>)> {
        let (definition, rows) = Self::read(path)?;
        let lost = find_lost_runs(path, &definition, &rows)?;
        Ok((definition, rows, lost))
    }

    /// Sets rows that have lost their run to waiting. Damaged runs are moved aside, so that nothing is
    /// overwritten.
    ///
    /// # Errors
    /// If a file is in the place of a run, a damaged run is being trained, or the sweep's directory cannot be
    /// written. Rows before the damaged run may have been changed.
    pub fn reopen_lost_rows(&mut self) -> Result<Vec<LostRun>> {
        let mut all = find_lost_runs(self.path(), &self.definition, self.rows())?;
        for lost in &mut all {
            if let Loss::Damaged(_) = lost.loss {
                lost.moved_to = Some(move_aside(&lost.run)?);
            }
            let at = self.rows().iter().position(|row| *row == lost.row);
            let Some(at) = at else { continue };
            let (status, reason) = match lost.row.status {
                Status::Failed | Status::DoesNotFit => (lost.row.status, lost.row.reason.clone()),
                _ => (Status::Waiting, reason_to_repeat(&self.definition, &lost.row)),
            };
            self.set_status(at, status, reason)?;
        }
        Ok(all)
    }
}

/// Returns the rows of a sweep that have lost their run.
///
/// # Errors
/// If a file is in the place of a run.
pub(crate) fn find_lost_runs(sweep: &Path, definition: &Definition, rows: &[Row]) -> Result<Vec<LostRun>> {
    let ranked_from = definition.halving.map_or(0, |halving| halving.epochs);
    let mut all = Vec::new();
    for row in rows {
        let run = sweep.join(crate::directory::relative_run_path(row));
        if !row.run.is_empty() || !row.status.is_settled() {
            check_place(sweep, &run)?;
        }
        let loss = match row.status {
            Status::Completed => check_completed(&run).err(),
            Status::StoppedEarly => check_stopped_early(&run, ranked_from).err(),
            _ => (!row.run.is_empty() && !RunDir::is_run(&run)).then_some(Loss::Gone),
        };
        all.extend(loss.map(|loss| LostRun { row: row.clone(), run, loss, moved_to: None }));
    }
    Ok(all)
}

/// Checks that a run and its parent folders are folders if they exist.
fn check_place(sweep: &Path, run: &Path) -> Result<()> {
    let is_inside = |path: &&Path| path.starts_with(sweep) && *path != sweep;
    let mut folders: Vec<&Path> = run.ancestors().take_while(is_inside).collect();
    folders.reverse();
    for path in folders {
        let unusable = |problem: String| {
            let (path, hint) = (path.to_owned(), "move it away; the run is then trained again".to_owned());
            Err(Error::Directory { path, problem, hint })
        };
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return unusable("is a file; a folder of runs is expected".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if fs::symlink_metadata(path).is_ok() {
                    return unusable("is a symbolic link to a missing folder".to_owned());
                }
                break;
            }
            Err(error) => return Err(stratus_run::Error::io("read the folder", path)(error).into()),
        }
    }
    Ok(())
}

/// Checks the files that every started run has.
fn check_started(run: &Path) -> Result<Vec<EpochRow>, Loss> {
    if !RunDir::is_run(run) {
        let is_ignored = |name: &std::ffi::OsStr| name == LOCK || atomic::is_temporary(name);
        let entries = fs::read_dir(run).into_iter().flatten().flatten();
        let is_empty = entries.map(|entry| entry.file_name()).all(|name| is_ignored(&name));
        let missing = || Loss::Damaged(format!("{EXPERIMENT} is missing"));
        return Err(if is_empty { Loss::Gone } else { missing() });
    }
    let path = run.join(EXPERIMENT);
    let text = read_text_at_most(&path, MAX_FILE_BYTES)
        .map_err(|error| Loss::Damaged(format!("{EXPERIMENT}: {error}")))?;
    if text.parse::<toml::Table>().is_err() {
        return Err(Loss::Damaged(format!("{EXPERIMENT} is not valid TOML")));
    }
    csv::read(&run.join(EPOCHS)).map_err(|error| Loss::Damaged(error.to_string()))
}

/// Checks that a run is complete. Its checkpoints may have been removed.
pub(crate) fn check_completed(run: &Path) -> Result<(), Loss> {
    let epochs = check_started(run)?;
    if !run.join(ITERATIONS).is_file() {
        return Err(Loss::Damaged(format!("{ITERATIONS} is missing")));
    }
    let last = epochs.last().map_or(0, |row| row.epoch);
    let problem = match Summary::read(&run.join(SUMMARY)) {
        Ok(summary) if summary.status == RunStatus::Completed => {
            if last == summary.epochs {
                return Ok(());
            }
            let problem = format!("{EPOCHS} ends after epoch {last}, {SUMMARY} after {}", summary.epochs);
            return Err(Loss::Damaged(problem));
        }
        Ok(summary) => format!("{SUMMARY} has the status {}", summary.status.name()),
        Err(error) => error.to_string(),
    };
    let has_checkpoint =
        fs::read_dir(run.join(CHECKPOINTS)).is_ok_and(|mut entries| entries.next().is_some());
    let can_resume = has_checkpoint && last > 0;
    Err(if can_resume { Loss::Incomplete(problem) } else { Loss::Damaged(problem) })
}

/// Checks that a run reached the epoch after which cells were first ranked.
fn check_stopped_early(run: &Path, ranked_from: u64) -> Result<(), Loss> {
    let last = check_started(run)?.last().map_or(0, |row| row.epoch);
    if u64::from(last) >= ranked_from {
        return Ok(());
    }
    Err(Loss::Damaged(format!(
        "{EPOCHS} ends after epoch {last}, but its cell was ranked after epoch {ranked_from}"
    )))
}

/// Renames a damaged run to a hidden folder next to it. Commands do not search hidden folders.
fn move_aside(run: &Path) -> Result<PathBuf> {
    // The lock is held during the move, so that no other process resumes the run.
    let lock = Lock::acquire(run)?;
    let name = run.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let names = (1..).map(|number: u32| match number {
        1 => format!(".{name}.damaged"),
        number => format!(".{name}.damaged-{number}"),
    });
    let unused = names.map(|name| run.with_file_name(name)).find(|path| fs::symlink_metadata(path).is_err());
    let to = unused.unwrap_or_else(|| run.to_owned());
    fs::rename(run, &to).map_err(stratus_run::Error::io("move", run))?;
    drop(lock);
    Ok(to)
}

#[cfg(test)]
mod tests;
