//! The partial file of a download.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek};
use std::path::Path;

use super::error::{FetchError, io_error};

/// Opens and locks the partial file.
pub(super) fn open_partial_file(path: &Path) -> Result<File, FetchError> {
    // A link could redirect the download out of the directory.
    if path.symlink_metadata().is_ok_and(|metadata| !metadata.is_file()) {
        let cause = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
        return Err(io_error(path, "cannot write")(cause));
    }
    let part = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(io_error(path, "cannot open for writing"))?;
    match part.try_lock() {
        // The process that had locked it has just completed it: the locked file is no longer the partial
        // file.
        Ok(()) if !path.exists() => Err(FetchError::Locked { path: path.to_owned() }),
        Ok(()) => Ok(part),
        Err(TryLockError::WouldBlock) => Err(FetchError::Locked { path: path.to_owned() }),
        // Some network file systems have no locks. If two processes write the file, its checksum fails.
        Err(TryLockError::Error(_)) => Ok(part),
    }
}

pub(super) fn truncate(part: &mut File) -> io::Result<u64> {
    part.set_len(0)?;
    part.rewind()?;
    Ok(0)
}
