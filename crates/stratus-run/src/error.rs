//! Errors of run directories.

use std::io;
use std::path::{Path, PathBuf};

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error about a file of a run directory. The message names the file and ends with a remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation of the file system failed.
    #[error("cannot {action} {}: {source}{}", path.display(), hint(source))]
    Io {
        /// The operation: "write", "open", ….
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Another process holds the lock of this run directory.
    #[error(
        "{} is in use by another process{}; wait for it or stop it, or start a new run",
        path.display(),
        pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    Locked {
        /// The run directory.
        path: PathBuf,
        /// The process that holds the lock, if the lock file has its id.
        pid: Option<u32>,
    },
    /// The path is not a run directory.
    #[error(
        "{} is not a run directory: {missing} is missing; name a directory such as runs/digits/1",
        path.display()
    )]
    NotARun {
        /// The given path.
        path: PathBuf,
        /// The file that every run directory has.
        missing: &'static str,
    },
    /// The directory for a new run is not empty.
    #[error(
        "{} exists and is not empty; choose another directory, or pass only its path to resume the run in it",
        path.display()
    )]
    NotEmpty {
        /// The given path.
        path: PathBuf,
    },
    /// The content of a file is invalid.
    #[error("{} is damaged: {reason}; {remedy}", path.display())]
    Damaged {
        /// The file or folder.
        path: PathBuf,
        /// The problem.
        reason: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// The file cannot be written as requested.
    #[error("cannot write {}: {reason}", path.display())]
    Invalid {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
}

impl Error {
    /// Returns a function that converts an I/O error of an action, such as "write", on a path.
    ///
    /// The path is copied only if there is an error, since writers call this in the hot loop.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_path_buf(), source }
    }

    pub(crate) fn damaged(path: &Path, reason: impl Into<String>, remedy: &'static str) -> Self {
        Self::Damaged { path: path.to_path_buf(), reason: reason.into(), remedy }
    }

    pub(crate) fn invalid(path: &Path, reason: impl Into<String>) -> Self {
        Self::Invalid { path: path.to_path_buf(), reason: reason.into() }
    }

    /// Returns whether a file was not found.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// The remedy for an error that a user can resolve.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => {
            "; free space on this file system and try again: a run resumes from its last checkpoint"
        }
        io::ErrorKind::QuotaExceeded => {
            "; your disk quota is exhausted: free space and try again: a run resumes from its last checkpoint"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "; the file system is read-only: choose another location with --out DIR"
        }
        io::ErrorKind::PermissionDenied => {
            "; make it accessible to this user, or choose another location with --out DIR"
        }
        io::ErrorKind::NotFound => "; check the path",
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            "; a file is in place of a folder: move it away, or choose another location with --out DIR"
        }
        io::ErrorKind::FileTooLarge => {
            "; the file-size limit was reached: raise it (ulimit -f) and try again"
        }
        io::ErrorKind::Unsupported => {
            "; this file system does not support it: choose a local disk with --out DIR"
        }
        _ => "",
    }
}
