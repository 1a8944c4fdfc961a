//! What every kind of store implements. Each method makes a single attempt; [`Store`](crate::Store) retries.

use std::io::{self, Read};

use crate::{Entry, StoreError};

/// A folder of files, somewhere. [`Store`](crate::Store) has checked all paths: they are relative and consist
/// of plain names.
pub(crate) trait StoreBackend: Send + Sync {
    /// Calls `found` for every file whose path begins with `prefix`, in any order.
    fn list(&self, prefix: &str, found: &mut dyn FnMut(Entry)) -> Result<(), Failure>;

    /// Size and version of a file; `None` where there is none.
    fn info(&self, path: &str) -> Result<Option<FileInfo>, Failure>;

    /// Opens the `length` bytes of a file from `offset` on. Reading ends early where the file does.
    fn open(&self, path: &str, offset: u64, length: u64) -> Result<Box<dyn Read + '_>, Failure>;

    /// Writes a file of `bytes` bytes, atomically: readers see the old file or the whole new one.
    fn write(&self, path: &str, from: &mut dyn Read, bytes: u64) -> Result<(), Failure>;
}

/// Size and version of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileInfo {
    /// In bytes.
    pub(crate) bytes: u64,
    /// Changes with the content, where the store has such a value (an ETag, the modification time).
    pub(crate) version: Option<String>,
}

/// Why an attempt failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Another attempt may succeed.
    Transient(String),
    /// Another attempt would fail in the same way.
    Permanent(StoreError),
}

impl Failure {
    /// As the error of an [`io::Read`]; [`of_io`](Self::of_io) is the inverse.
    pub(crate) fn into_io(self) -> io::Error {
        match self {
            Self::Transient(cause) => io::Error::other(cause),
            Self::Permanent(error) => io::Error::other(error),
        }
    }

    /// The failure of a read: transient, unless it was made by [`into_io`](Self::into_io) from a permanent
    /// one.
    pub(crate) fn of_io(error: io::Error) -> Self {
        error.downcast().map_or_else(|error| Self::Transient(error.to_string()), Self::Permanent)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Permanent(error)
    }
}
