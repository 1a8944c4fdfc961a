//! Errors of sweeps. Each message names the file and the key; [`Error::hint`] suggests a fix.

use std::path::PathBuf;
use stratus_experiment::ExperimentError;

/// The result of an operation on a sweep.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a sweep.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read the sweep {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The `[sweep]` section of the file is invalid.
    #[error("{}{}: {problem}", path.display(), line.map_or(String::new(), |line| format!(":{line}")))]
    Definition {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1; `None` if unknown.
        line: Option<usize>,
        /// The problem.
        problem: String,
        /// A suggested fix.
        hint: String,
    },
    /// A combination of values is not a valid experiment.
    #[error("cell {cell} ({values}) is not a valid experiment")]
    Cell {
        /// The cell, counted from 1.
        cell: usize,
        /// Its values: `train.batch_size = 64`.
        values: String,
        /// The cause.
        source: Box<ExperimentError>,
    },
    /// An end of a range, or a choice, is not a valid value.
    #[error("{values} is not a valid experiment")]
    Corner {
        /// The values: `train.batch_size = 64`.
        values: String,
        /// The cause.
        source: Box<ExperimentError>,
    },
    /// The swept experiment is invalid.
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    /// The folder is not a sweep, or cannot become one.
    #[error("{}: {problem}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The problem.
        problem: String,
        /// A suggested fix.
        hint: String,
    },
    /// A file of the directory, or its lock, cannot be used.
    #[error(transparent)]
    Run(#[from] stratus_run::Error),
}

impl Error {
    /// The suggested fix; `None` if the message already contains one.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Definition { hint, .. } | Self::Directory { hint, .. } => Some(hint.clone()),
            Self::Experiment(error) => error.hint(),
            Self::Cell { source, .. } | Self::Corner { source, .. } => source.hint(),
            Self::Read { .. } | Self::Run(_) => None,
        }
    }

    /// Returns whether this is a usage or configuration error: nothing was started.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        !matches!(self, Self::Run(_))
    }
}
