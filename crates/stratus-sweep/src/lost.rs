//! Rows whose run is missing, incomplete or damaged.
//!
//! The measures in a row's line of the table follow from its run. Where the run of a row that is completed or
//! was stopped early has been removed, moved away or damaged, the row waits again, and its run is trained as
//! it was before. A row that failed or did not fit needs no run, and keeps its reason.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use stratus_run::csv::{self, EpochRow};
use stratus_run::layout::{CHECKPOINTS, EPOCHS, EXPERIMENT, ITERATIONS, LOCK, SUMMARY};
use stratus_run::lock::Lock;
use stratus_run::summary::{Status as RunStatus, Summary};
use stratus_run::{RunDir, atomic};

use crate::{Definition, Error, Result, Row, Status, Sweep};

/// A row that has lost its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The row as the table had it.
    pub row: Row,
    /// Where its run is to be.
    pub run: PathBuf,
    /// The state of the run.
    pub loss: Loss,
    /// Where what was left of it has been moved to.
    pub moved_to: Option<PathBuf>,
}

/// The state of a run that is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// There is none.
    Gone,
    /// It is not complete, but can be continued; why.
    Incomplete(String),
    /// It is not complete and cannot be continued; why.
    Damaged(String),
}

impl fmt::Display for Loss {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => write!(formatter, "its run is gone"),
            Self::Incomplete(why) => write!(formatter, "its run is not complete: {why}"),
            Self::Damaged(why) => write!(formatter, "its run is damaged: {why}"),
        }
    }
}

impl Sweep {
    /// Makes rows wait again that have lost their run. A damaged run is moved aside, so that nothing of it is
    /// overwritten.
    ///
    /// # Errors
    /// Where something else is in the place of a run, a damaged run is being trained, or the sweep's
    /// directory cannot be written. No row has been changed then, but for those before a damaged run.
    pub fn reopen_lost(&mut self) -> Result<Vec<Lost>> {
        let mut all = find(self.path(), &self.definition, self.rows())?;
        for lost in &mut all {
            if let Loss::Damaged(_) = lost.loss {
                lost.moved_to = Some(move_aside(&lost.run)?);
            }
            let at = self.rows().iter().position(|row| *row == lost.row);
            let Some(at) = at else { continue };
            let (status, reason) = match lost.row.status {
                Status::Failed | Status::DoesNotFit => (lost.row.status, lost.row.reason.clone()),
                _ => (Status::Waiting, String::new()),
            };
            self.set(at, status, reason)?;
        }
        Ok(all)
    }
}

/// Returns the rows of a sweep that have lost their run.
///
/// # Errors
/// Where something else is in the place of a run.
pub(crate) fn find(sweep: &Path, definition: &Definition, rows: &[Row]) -> Result<Vec<Lost>> {
    let judged_from = definition.halving.map_or(0, |halving| halving.epochs);
    let mut all = Vec::new();
    for row in rows {
        let run = sweep.join(crate::directory::run_name(row));
        if !row.run.is_empty() || !row.status.is_settled() {
            check_place(sweep, &run)?;
        }
        let loss = match row.status {
            Status::Completed => completed(&run).err(),
            Status::StoppedEarly => stopped_early(&run, judged_from).err(),
            _ => (!row.run.is_empty() && !RunDir::is_run(&run)).then_some(Loss::Gone),
        };
        all.extend(loss.map(|loss| Lost { row: row.clone(), run, loss, moved_to: None }));
    }
    Ok(all)
}

/// Checks that the folders above a run, and the run, are folders where there is something.
fn check_place(sweep: &Path, run: &Path) -> Result<()> {
    let below = |path: &&Path| path.starts_with(sweep) && *path != sweep;
    let mut folders: Vec<&Path> = run.ancestors().take_while(below).collect();
    folders.reverse();
    for path in folders {
        let wrong = |problem: String| {
            let (path, hint) = (path.to_owned(), "move it away, and the run is trained again".to_owned());
            Err(Error::Directory { path, problem, hint })
        };
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return wrong("it is a file, where a sweep has a folder of runs".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if fs::symlink_metadata(path).is_ok() {
                    return wrong("it is a link to a folder that is not there".to_owned());
                }
                break;
            }
            Err(error) => return Err(stratus_run::Error::io("read the folder", path)(error).into()),
        }
    }
    Ok(())
}

/// Checks what every run has that was begun.
fn begun(run: &Path) -> Result<Vec<EpochRow>, Loss> {
    if !RunDir::is_run(run) {
        let is_nothing = |name: &std::ffi::OsStr| name == LOCK || atomic::is_temporary(name);
        let entries = fs::read_dir(run).into_iter().flatten().flatten();
        let is_empty = entries.map(|entry| entry.file_name()).all(|name| is_nothing(&name));
        let missing = || Loss::Damaged(format!("{EXPERIMENT} is missing"));
        return Err(if is_empty { Loss::Gone } else { missing() });
    }
    let path = run.join(EXPERIMENT);
    let text = fs::read_to_string(&path).map_err(|error| Loss::Damaged(format!("{EXPERIMENT}: {error}")))?;
    if text.parse::<toml::Table>().is_err() {
        return Err(Loss::Damaged(format!("{EXPERIMENT} is not valid TOML")));
    }
    csv::read(&run.join(EPOCHS)).map_err(|error| Loss::Damaged(error.to_string()))
}

/// Checks that a run is there and complete. Checkpoints may have been removed: its results are there.
pub(crate) fn completed(run: &Path) -> Result<(), Loss> {
    let epochs = begun(run)?;
    if !run.join(ITERATIONS).is_file() {
        return Err(Loss::Damaged(format!("{ITERATIONS} is missing")));
    }
    let last = epochs.last().map_or(0, |row| row.epoch);
    let problem = match Summary::read(&run.join(SUMMARY)) {
        Ok(summary) if summary.status == RunStatus::Completed => {
            if last == summary.epochs {
                return Ok(());
            }
            let says = format!("{EPOCHS} ends after epoch {last}, {SUMMARY} after {}", summary.epochs);
            return Err(Loss::Damaged(says));
        }
        Ok(summary) => format!("{SUMMARY} says {}", summary.status.name()),
        Err(error) => error.to_string(),
    };
    let has_checkpoint =
        fs::read_dir(run.join(CHECKPOINTS)).is_ok_and(|mut entries| entries.next().is_some());
    let can_continue = has_checkpoint && last > 0;
    Err(if can_continue { Loss::Incomplete(problem) } else { Loss::Damaged(problem) })
}

/// Checks that a run is there and came as far as it was judged first.
fn stopped_early(run: &Path, judged_from: u64) -> Result<(), Loss> {
    let last = begun(run)?.last().map_or(0, |row| row.epoch);
    if u64::from(last) >= judged_from {
        return Ok(());
    }
    Err(Loss::Damaged(format!(
        "{EPOCHS} ends after epoch {last}, but it was judged after epoch {judged_from}"
    )))
}

/// Moves what is left of a run beside its place, under a name that no command searches.
fn move_aside(run: &Path) -> Result<PathBuf> {
    // Held until it is moved: nobody begins to continue it meanwhile.
    let lock = Lock::acquire(run)?;
    let name = run.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let places = (1..).map(|number: u32| match number {
        1 => format!(".{name}.damaged"),
        number => format!(".{name}.damaged-{number}"),
    });
    let free = places.map(|name| run.with_file_name(name)).find(|path| fs::symlink_metadata(path).is_err());
    let to = free.unwrap_or_else(|| run.to_owned());
    fs::rename(run, &to).map_err(stratus_run::Error::io("move", run))?;
    drop(lock);
    Ok(to)
}

#[cfg(test)]
mod tests;
