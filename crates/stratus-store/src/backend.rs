//! The trait that every kind of store implements. Each method makes a single attempt;
//! [`Store`](crate::Store) retries.

use std::io::{self, Read};

use crate::StoreError;

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

/// A file of a store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The path relative to the store, separated by `/`.
    pub path: String,
    /// The size in bytes.
    pub bytes: u64,
}

/// Size and version of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileInfo {
    /// The size in bytes.
    pub(crate) bytes: u64,
    /// A value that changes with the content (an ETag, the modification time), if the store has one.
    pub(crate) version: Option<String>,
}

/// The address of a file of the store at `address`, without secrets.
pub(crate) fn file_address(address: &str, path: &str) -> String {
    format!("{}/{path}", address.trim_end_matches('/'))
}

/// Reads the next block of a source of `bytes` bytes, of which `done` were read: at most `max` bytes. Returns
/// it, and whether it is the last.
///
/// # Errors
/// If the source cannot be read, or has fewer or more bytes.
pub(crate) fn read_block(
    from: &mut dyn Read,
    bytes: u64,
    done: u64,
    max: usize,
    file: impl Fn() -> String,
) -> Result<(Vec<u8>, bool), StoreError> {
    let left = (bytes - done).min(max as u64);
    let is_last = done + left == bytes;
    // Reading one byte more than announced detects a source that is too long.
    let read_bytes = left + u64::from(is_last);
    let mut block = Vec::with_capacity(read_bytes as usize);
    from.take(read_bytes).read_to_end(&mut block).map_err(|cause| StoreError::StreamIo {
        file: file(),
        action: "cannot read the source",
        cause,
    })?;
    if block.len() as u64 != left {
        return Err(StoreError::wrong_source(file(), done + block.len() as u64, bytes));
    }
    Ok((block, is_last))
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
