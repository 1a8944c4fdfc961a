//! What can go wrong in a report.

use std::io;
use std::path::{Path, PathBuf};

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a report cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of the run directory cannot be read.
    #[error(transparent)]
    Run(#[from] stratus_run::Error),
    /// The report cannot be written, or a file not be read.
    #[error(
        "cannot {action} {}: {source}; check that it exists, that this user may use it, and the disk's space",
        path.display()
    )]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A table of published figures cannot be used.
    #[error("{}: {reason}", path.display())]
    Reference {
        /// The file.
        path: PathBuf,
        /// The line, and what is wrong with it.
        reason: String,
    },
    /// The run's configuration is not the TOML it should be.
    #[error("{} is damaged: {reason}; restore it from a copy", path.display())]
    Configuration {
        /// The file.
        path: PathBuf,
        /// Where and what.
        reason: String,
    },
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }
}
