//! Errors of launches. Text from a target is shortened and escaped before it becomes part of an error.

use std::io;
use std::path::{Path, PathBuf};

/// The result of an operation on a launch.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a launch.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A usage or configuration error: nothing was started.
    #[error("{problem}")]
    Usage {
        /// The problem and its place.
        problem: String,
        /// A suggested fix.
        hint: String,
    },
    /// The target, or the connection to it, failed.
    #[error("{problem}")]
    Target {
        /// The problem and its place.
        problem: String,
        /// A suggested fix.
        hint: String,
    },
    /// A program of this machine that reaches the target cannot be started.
    #[error("{problem}")]
    Client {
        /// The problem and its place.
        problem: String,
        /// A suggested fix.
        hint: String,
    },
    /// The sweep to launch.
    #[error(transparent)]
    Sweep(#[from] stratus_sweep::Error),
    /// The directory of a run.
    #[error(transparent)]
    Run(#[from] stratus_run::Error),
    /// A local file cannot be used.
    #[error("cannot {what} {}", path.display())]
    File {
        /// The operation: `read`, `write`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn usage(problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage { problem: problem.into(), hint: hint.into() }
    }

    pub(crate) fn target(problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Target { problem: problem.into(), hint: hint.into() }
    }

    pub(crate) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { what, path: path.to_owned(), source }
    }

    /// The suggested fix, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { hint, .. } | Self::Target { hint, .. } | Self::Client { hint, .. } => {
                (!hint.is_empty()).then(|| hint.clone())
            }
            Self::Sweep(error) => error.hint(),
            Self::Run(_) | Self::File { .. } => None,
        }
    }

    /// Returns whether the target failed, or the connection to it, rather than something on this machine.
    #[must_use]
    pub fn is_of_target(&self) -> bool {
        matches!(self, Self::Target { .. })
    }

    /// Returns whether this is a usage or configuration error.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Usage { .. } => true,
            Self::Sweep(error) => error.is_usage(),
            Self::Target { .. } | Self::Client { .. } | Self::Run(_) | Self::File { .. } => false,
        }
    }
}
