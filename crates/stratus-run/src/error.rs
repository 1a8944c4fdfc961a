//! Errors of run directories: what is wrong, where, and what to do.

use std::io;
use std::path::{Path, PathBuf};

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error about a file of a run directory. The message names the file and ends with what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}{}", path.display(), hint(source))]
    Io {
        /// What was attempted: "write", "open", ….
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Another process writes this run directory.
    #[error(
        "{} is in use by another process{}; wait for it to end or stop it, or start a new run",
        path.display(),
        pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    Locked {
        /// The run directory.
        path: PathBuf,
        /// The process that holds it, if the lock file has its id.
        pid: Option<u32>,
    },
    /// The path is not a run directory.
    #[error(
        "{} is not a run directory: {missing} is missing; name a directory such as runs/digits/1",
        path.display()
    )]
    NotARun {
        /// The path that was given.
        path: PathBuf,
        /// The file that makes a directory a run directory.
        missing: &'static str,
    },
    /// The directory that a new run should use holds something already.
    #[error(
        "{} exists and is not empty; name another directory, or continue the run in it with its path alone",
        path.display()
    )]
    NotEmpty {
        /// The path that was given.
        path: PathBuf,
    },
    /// A file does not hold what it should.
    #[error("{} is damaged: {reason}; {remedy}", path.display())]
    Damaged {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The caller asked for something that cannot be written.
    #[error("cannot write {}: {reason}", path.display())]
    Invalid {
        /// The file or folder.
        path: PathBuf,
        /// Why it cannot be written.
        reason: String,
    },
}

impl Error {
    /// What the file system said when an action, like "write", was tried on a path.
    ///
    /// The path is copied only on an error, since writers call this in the hot loop.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_path_buf(), source }
    }

    pub(crate) fn damaged(path: &Path, reason: impl Into<String>, remedy: &'static str) -> Self {
        Self::Damaged { path: path.to_path_buf(), reason: reason.into(), remedy }
    }

    pub(crate) fn invalid(path: &Path, reason: impl Into<String>) -> Self {
        Self::Invalid { path: path.to_path_buf(), reason: reason.into() }
    }

    /// Whether the error is the operating system's "no such file".
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// What to do about an error that a user can resolve.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => {
            "; free space on this file system, then continue the run: what was saved before is intact"
        }
        io::ErrorKind::QuotaExceeded => {
            "; your disk quota is used up: free space, then continue the run: what was saved before is intact"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "; the file system is read-only: choose another place with --out DIR"
        }
        io::ErrorKind::PermissionDenied => {
            "; make it accessible to this user, or choose another place with --out DIR"
        }
        io::ErrorKind::NotFound => "; check the path",
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            "; a file is where a folder should be: move it away, or choose another place with --out DIR"
        }
        io::ErrorKind::FileTooLarge => {
            "; the file-size limit was reached: raise it (ulimit -f), then continue the run"
        }
        io::ErrorKind::Unsupported => "; this file system cannot do it: choose a local disk with --out DIR",
        _ => "",
    }
}
