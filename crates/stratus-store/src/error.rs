//! What can be wrong with a store. Every message names the file by its address, says what happened and what
//! to do; none holds a secret.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

/// A store cannot be opened, or a file of it cannot be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The address is none.
    #[error("{address}: {problem}")]
    Address {
        /// The address, without secrets.
        address: String,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// A path that would leave the store, or that no file can have everywhere.
    #[error(
        "{address}: `{path}` is not a file's path in it: {problem}; a path has plain names with `/` between \
         them"
    )]
    Path {
        /// The store.
        address: String,
        /// The path.
        path: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// There is no such file.
    #[error("{file}: there is no such file")]
    NotFound {
        /// The file's address.
        file: String,
    },
    /// The other side does not let us, and will not if asked again.
    #[error("{file}: {cause}; {advice}")]
    Refused {
        /// The file's address.
        file: String,
        /// What was answered.
        cause: String,
        /// What to do.
        advice: String,
    },
    /// This kind of store cannot do it.
    #[error("{address}: {problem}")]
    Unsupported {
        /// The store.
        address: String,
        /// What it cannot and what to do.
        problem: &'static str,
    },
    /// It failed again and again.
    #[error(
        "{file}: {cause} (tried {tries} times in {:.0} s without progress); check the network and the \
         server, then start again",
        .waited.as_secs_f64()
    )]
    GaveUp {
        /// The file's address.
        file: String,
        /// The last cause.
        cause: String,
        /// How often it was tried.
        tries: u32,
        /// How long nothing went forward.
        waited: Duration,
    },
    /// A file is larger than whoever reads it can use.
    #[error(
        "{file}: it has {bytes} bytes, more than the {most} that are read of such a file; is it the right \
         one?"
    )]
    TooLarge {
        /// The file's address.
        file: String,
        /// Its size in bytes.
        bytes: u64,
        /// The most that would be read.
        most: u64,
    },
    /// Bytes were asked for that the file does not have.
    #[error(
        "{file}: bytes {offset} to {end} were asked for, but it has {bytes}; it is truncated: fetch or write \
         it again"
    )]
    TooShort {
        /// The file's address.
        file: String,
        /// The first byte asked for.
        offset: u64,
        /// The byte after the last one asked for.
        end: u64,
        /// Its size in bytes.
        bytes: u64,
    },
    /// What came is not what was announced.
    #[error("{file}: {problem}")]
    Wrong {
        /// The file's address.
        file: String,
        /// What was found and expected, and what to do.
        problem: String,
    },
    /// A file or folder of this machine cannot be used.
    #[error("{}: {action}: {cause}", .path.display())]
    Disk {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        cause: io::Error,
    },
    /// What a download was to be written to, or an upload to be read from, failed.
    #[error("{file}: {action}: {cause}")]
    Stream {
        /// The file's address.
        file: String,
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        cause: io::Error,
    },
    /// A file alone is larger than the whole cache may be.
    #[error(
        "{file}: it has {bytes} bytes, but the cache in {} may hold {most} in all; raise the limit, or make \
         smaller files",
        .folder.display()
    )]
    CacheTooSmall {
        /// The file's address.
        file: String,
        /// Its size in bytes.
        bytes: u64,
        /// The cache's bound in bytes.
        most: u64,
        /// The cache's folder.
        folder: PathBuf,
    },
    /// Every file in the cache is in use, and there is no room for another.
    #[error(
        "{file}: no room for its {bytes} bytes: the cache in {} may hold {most}, and {held} are in use; \
         raise the limit, or use fewer files at a time", .folder.display()
    )]
    CacheInUse {
        /// The file's address.
        file: String,
        /// Its size in bytes.
        bytes: u64,
        /// The cache's bound in bytes.
        most: u64,
        /// Bytes of the files that somebody holds.
        held: u64,
        /// The cache's folder.
        folder: PathBuf,
    },
}

/// The error of a file or folder of this machine.
pub(crate) fn disk(path: &std::path::Path, action: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |cause| StoreError::Disk { path, action, cause }
}

impl StoreError {
    /// A source that has fewer or more bytes than were announced for it.
    pub(crate) fn wrong_source(file: String, found: u64, expected: u64) -> Self {
        let found = if found > expected { "more".to_owned() } else { format!("only {found}") };
        Self::Wrong {
            file,
            problem: format!(
                "the source has {found} bytes instead of the announced {expected}; nothing was stored; did \
                 the source change meanwhile?"
            ),
        }
    }
}
