//! Errors of stores. Every message contains the address of the file, the cause and a remedy, but no secret.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

/// The error of a store that cannot be opened, or of a file that cannot be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The address is invalid.
    #[error("{address}: {problem}")]
    Address {
        /// The address, without secrets.
        address: String,
        /// The problem and the remedy.
        problem: String,
    },
    /// A path leaves the store, or is not portable.
    #[error("{address}: invalid path `{path}`: {problem}")]
    Path {
        /// The store.
        address: String,
        /// The path.
        path: String,
        /// The problem.
        problem: &'static str,
    },
    /// The file does not exist.
    #[error("{file}: not found")]
    NotFound {
        /// The address of the file.
        file: String,
    },
    /// The server or service refused the request permanently.
    #[error("{file}: {cause}; {advice}")]
    Refused {
        /// The address of the file.
        file: String,
        /// The response.
        cause: String,
        /// The remedy.
        advice: String,
    },
    /// This kind of store does not support the operation.
    #[error("{address}: {problem}")]
    Unsupported {
        /// The store.
        address: String,
        /// The unsupported operation and the remedy.
        problem: &'static str,
    },
    /// Every attempt failed.
    #[error(
        "{file}: {cause} ({attempts} attempts in {:.0} s without progress); check the network and the \
         server, then try again",
        .waited.as_secs_f64()
    )]
    RetriesExhausted {
        /// The address of the file.
        file: String,
        /// The cause of the last failure.
        cause: String,
        /// The number of attempts.
        attempts: u32,
        /// The time without progress.
        waited: Duration,
    },
    /// A file exceeds the limit of its reader.
    #[error("{file}: {bytes} bytes exceed the limit of {max} for this file")]
    TooLarge {
        /// The address of the file.
        file: String,
        /// The size of the file in bytes.
        bytes: u64,
        /// The limit in bytes.
        max: u64,
    },
    /// A requested range ends after the end of the file.
    #[error(
        "{file}: truncated: bytes {offset} to {end} requested, but the file has {bytes} bytes; fetch or \
         write it again"
    )]
    TooShort {
        /// The address of the file.
        file: String,
        /// The first requested byte.
        offset: u64,
        /// The byte after the last requested one.
        end: u64,
        /// The size of the file in bytes.
        bytes: u64,
    },
    /// The received data differs from the announced data.
    #[error("{file}: {problem}")]
    Unexpected {
        /// The address of the file.
        file: String,
        /// The found and expected value, and the remedy.
        problem: String,
    },
    /// A local file or folder cannot be used.
    #[error("{}: {action}: {cause}", .path.display())]
    LocalIo {
        /// The file or folder.
        path: PathBuf,
        /// The failed action.
        action: &'static str,
        /// The cause.
        cause: io::Error,
    },
    /// The destination of a download or the source of an upload failed.
    #[error("{file}: {action}: {cause}")]
    StreamIo {
        /// The address of the file.
        file: String,
        /// The failed action.
        action: &'static str,
        /// The cause.
        cause: io::Error,
    },
    /// A file is larger than the limit of the cache.
    #[error(
        "{file}: {bytes} bytes exceed the limit of {max} for the cache in {}; raise the limit or use smaller \
         files",
        .folder.display()
    )]
    CacheTooSmall {
        /// The address of the file.
        file: String,
        /// The size of the file in bytes.
        bytes: u64,
        /// The limit of the cache in bytes.
        max: u64,
        /// The cache folder.
        folder: PathBuf,
    },
    /// The locked files leave no room for another file.
    #[error(
        "{file}: no room for {bytes} bytes in the cache in {}: the limit is {max}, {in_use} are in use; \
         raise the limit or use fewer files at a time", .folder.display()
    )]
    CacheInUse {
        /// The address of the file.
        file: String,
        /// The size of the file in bytes.
        bytes: u64,
        /// The limit of the cache in bytes.
        max: u64,
        /// The bytes of the locked files.
        in_use: u64,
        /// The cache folder.
        folder: PathBuf,
    },
}

/// Returns a function that creates the error of a local file or folder.
pub(crate) fn local_io(path: &std::path::Path, action: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |cause| StoreError::LocalIo { path, action, cause }
}

impl StoreError {
    /// The error of a source that has fewer or more bytes than announced.
    pub(crate) fn wrong_source(file: String, found: u64, expected: u64) -> Self {
        let found = if found > expected { "more".to_owned() } else { found.to_string() };
        Self::Unexpected {
            file,
            problem: format!(
                "expected {expected} bytes from the source, found {found}; nothing was stored; did the \
                 source change?"
            ),
        }
    }
}
