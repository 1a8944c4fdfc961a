//! The trait that every kind of store implements. Each method makes a single attempt;
//! [`Store`](crate::Store) retries.

use std::io::{self, Read};

use crate::{Entry, StoreError};

/// A local or remote folder of files. [`Store`](crate::Store) has validated all paths.
pub(crate) trait StoreBackend: Send + Sync {
    /// Calls `found` for every file whose path begins with `prefix`, in any order.
    fn list(&self, prefix: &str, found: &mut dyn FnMut(Entry)) -> Result<(), Failure>;

    /// Size and version of a file, or `None` if it does not exist.
    fn info(&self, path: &str) -> Result<Option<FileInfo>, Failure>;

    /// Opens the `length` bytes of a file from `offset`. Reading ends early if the file does.
    fn open(&self, path: &str, offset: u64, length: u64) -> Result<Box<dyn Read + '_>, Failure>;

    /// Writes a file of `bytes` bytes, atomically: readers see the old file or the whole new one.
    fn write(&self, path: &str, from: &mut dyn Read, bytes: u64) -> Result<(), Failure>;
}

/// Size and version of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileInfo {
    /// The size in bytes.
    pub(crate) bytes: u64,
    /// A value that changes with the content (an ETag, the modification time), if the store has one.
    pub(crate) version: Option<String>,
}

/// A failed attempt.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Another attempt may succeed.
    Transient(String),
    /// Another attempt would fail in the same way.
    Permanent(StoreError),
}

impl Failure {
    /// Converts to the error of an [`io::Read`]; [`from_io`](Self::from_io) is the inverse.
    pub(crate) fn into_io(self) -> io::Error {
        match self {
            Self::Transient(cause) => io::Error::other(cause),
            Self::Permanent(error) => io::Error::other(error),
        }
    }

    /// Converts a read error: transient, unless [`into_io`](Self::into_io) created it from a permanent
    /// failure.
    pub(crate) fn from_io(error: io::Error) -> Self {
        error.downcast().map_or_else(|error| Self::Transient(error.to_string()), Self::Permanent)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Permanent(error)
    }
}
