//! Errors of reports.

use std::io;
use std::path::{Path, PathBuf};

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of the run directory cannot be read.
    #[error(transparent)]
    Run(#[from] stratus_run::Error),
    /// A file cannot be read or written.
    #[error(
        "cannot {action} {}: {source}; check that it exists, its permissions, and the free disk space",
        path.display()
    )]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A table of published figures is invalid.
    #[error("{}: {reason}", path.display())]
    PublishedTable {
        /// The file.
        path: PathBuf,
        /// The line and its problem.
        reason: String,
    },
    /// The configuration of a run is not valid TOML.
    #[error("{} is damaged: {reason}; restore it from a copy", path.display())]
    Configuration {
        /// The file.
        path: PathBuf,
        /// The position and the problem.
        reason: String,
    },
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }
}
