//! What every kind of store must be able to do. An implementation tries each thing once; trying again is
//! [`Store`](crate::Store)'s.

use std::io::{self, Read};

use crate::{Entry, StoreError};

/// A folder of files somewhere. Paths were checked: they are relative, and every part is a plain name.
pub(crate) trait StoreBackend: Send + Sync {
    /// Hands over every file whose path begins with `prefix`, in any order.
    fn list(&self, prefix: &str, found: &mut dyn FnMut(Entry)) -> Result<(), Failure>;

    /// What is known of a file before it is read; `None` where there is none.
    fn info(&self, path: &str) -> Result<Option<FileInfo>, Failure>;

    /// The file's `length` bytes from `offset` on, of which reading ends early where the file does.
    fn open(&self, path: &str, offset: u64, length: u64) -> Result<Box<dyn Read + '_>, Failure>;

    /// Puts a file of `bytes` bytes in place, whole or not at all; one that is there is replaced.
    fn write(&self, path: &str, from: &mut dyn Read, bytes: u64) -> Result<(), Failure>;
}

/// What is known of a file before it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileInfo {
    /// Its size.
    pub(crate) bytes: u64,
    /// Differs when the content does, where the store has such a thing (an ETag, the time of the last
    /// change).
    pub(crate) version: Option<String>,
}

/// Why a try failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It may work in a while.
    Transient(String),
    /// It never will.
    Permanent(StoreError),
}

impl Failure {
    /// As the error of a reader, from which [`of_io`](Self::of_io) takes it back.
    pub(crate) fn into_io(self) -> io::Error {
        match self {
            Self::Transient(cause) => io::Error::other(cause),
            Self::Permanent(error) => io::Error::other(error),
        }
    }

    /// Why reading stopped: a connection may be better the next time.
    pub(crate) fn of_io(error: io::Error) -> Self {
        error.downcast().map_or_else(|error| Self::Transient(error.to_string()), Self::Permanent)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Permanent(error)
    }
}
