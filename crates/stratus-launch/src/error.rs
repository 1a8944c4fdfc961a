//! Errors of launches: what, where, what to do. Text from a target is cut and escaped before it gets here.

use std::io;
use std::path::{Path, PathBuf};

/// The result of working on a launch.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is wrong with a launch.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Wrong usage or configuration: nothing was started.
    #[error("{problem}")]
    Usage {
        /// What is wrong, where.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// The target, or the way there.
    #[error("{problem}")]
    Target {
        /// What is wrong, where.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// A file here.
    #[error("cannot {what} {}", path.display())]
    File {
        /// `read`, `write`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
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

    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { hint, .. } | Self::Target { hint, .. } => (!hint.is_empty()).then(|| hint.clone()),
            Self::File { .. } => None,
        }
    }

    /// Whether it is an error of usage or configuration.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Usage { .. })
    }
}
