//! Errors of fetching files.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::error::DataError;

/// An error of fetching files.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The data set is unknown.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The data set has no public mirror.
    #[error("cannot fetch `{dataset}`: no public mirror; download its files yourself")]
    NotPublished {
        /// The data set's name.
        dataset: String,
    },
    /// A name that is not a single path component.
    #[error("invalid file name `{name}`: must be one path component without separators")]
    InvalidName {
        /// The name.
        name: String,
    },
    /// The directory or a file in it cannot be read or written.
    #[error("{}: {action}: {cause}", .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The failed action.
        action: &'static str,
        /// The cause.
        cause: io::Error,
    },
    /// Another process has locked the partial file.
    #[error("{}: another process is fetching this file; wait until it is finished", .path.display())]
    Locked {
        /// The partial file.
        path: PathBuf,
    },
    /// An archive is damaged or lacks members.
    #[error("{}: {problem}; remove it and fetch again", .path.display())]
    Unpack {
        /// The archive.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// Every mirror failed.
    #[error(
        "{file}: every mirror failed{}\ncheck the network, or download the file to {} yourself",
        .attempts.iter().map(|attempt| format!("\n  {}: {}", attempt.url, attempt.cause)).collect::<String>(),
        .directory.display()
    )]
    AllMirrorsFailed {
        /// The file's name.
        file: String,
        /// The destination.
        directory: PathBuf,
        /// The failed attempt at each mirror.
        attempts: Vec<Attempt>,
    },
}

/// A failed attempt at a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The address.
    pub url: String,
    /// The cause of the failure.
    pub cause: String,
}

/// Adds the path and the failed action to an error.
pub(super) fn io_error(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> FetchError {
    let path = path.to_owned();
    move |cause| FetchError::Io { path, action, cause }
}
