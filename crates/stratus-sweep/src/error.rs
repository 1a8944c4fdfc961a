//! Errors of sweeps. Each message names the file and the key; `hint` says what to do.

use std::path::PathBuf;
use stratus_train::ExperimentError;

/// The result of working on a sweep.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is wrong with a sweep.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read the sweep {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file's `[sweep]` section.
    #[error("{}{}: {problem}", path.display(), line.map_or(String::new(), |line| format!(":{line}")))]
    Definition {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1, where it is known.
        line: Option<usize>,
        /// What is wrong.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// A combination of values that is no experiment.
    #[error("cell {cell} ({values}) is no experiment")]
    Cell {
        /// Which, counted from 1.
        cell: usize,
        /// Its values: `train.batch_size = 64`.
        values: String,
        /// Why.
        source: Box<ExperimentError>,
    },
    /// The experiment that is swept.
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    /// The sweep's directory cannot become one, or is none.
    #[error("{}: {problem}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// A file of the directory, or its lock.
    #[error(transparent)]
    Run(#[from] stratus_run::Error),
}

impl Error {
    /// What to do about it, if the message does not say so.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Definition { hint, .. } | Self::Directory { hint, .. } => Some(hint.clone()),
            Self::Experiment(error) => error.hint(),
            Self::Cell { source, .. } => source.hint(),
            Self::Read { .. } | Self::Run(_) => None,
        }
    }

    /// Whether it is an error of usage or configuration: nothing was started.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        !matches!(self, Self::Run(_))
    }
}
