//! Buffered appending to a file, with a position that is known to the byte, even after a failed write.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::atomic::{self, fault};
use crate::{Error, Result};

/// The buffer is written out when it holds this many bytes. Its capacity is twice that, so that no record
/// makes it reallocate.
const FLUSH_AT: usize = 32 * 1024;

#[derive(Debug)]
pub(crate) struct AppendFile {
    file: File,
    path: PathBuf,
    buffer: Vec<u8>,
    /// Bytes of the buffer that are in the file already: not zero only after a failed write.
    drained: usize,
    written: u64,
}

impl AppendFile {
    /// Opens `path`, creating it if absent, to append at its end.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(Error::io("open", path))?;
        let written = file.seek(SeekFrom::End(0)).map_err(Error::io("seek in", path))?;
        if written == 0 {
            // A new file's name must survive a power cut as its bytes do.
            atomic::sync_folder(atomic::parent(path))?;
        }
        let buffer = Vec::with_capacity(2 * FLUSH_AT);
        Ok(Self { file, path: path.to_path_buf(), buffer, drained: 0, written })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Where a record is to be put; [`AppendFile::appended`] must follow.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    pub(crate) fn appended(&mut self) -> Result<()> {
        if self.buffer.len() >= FLUSH_AT { self.flush() } else { Ok(()) }
    }

    /// Writes everything out to the operating system. After a failure it can be called again and continues.
    pub(crate) fn flush(&mut self) -> Result<()> {
        while self.drained < self.buffer.len() {
            let rest = &self.buffer[self.drained..];
            let n = fault::spend(rest.len())
                .and_then(|()| match self.file.write(rest) {
                    Ok(0) => Err(std::io::ErrorKind::WriteZero.into()),
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => Ok(0),
                    other => other,
                })
                .map_err(Error::io("write", &self.path))?;
            self.drained += n;
            self.written += n as u64;
        }
        self.buffer.clear();
        self.drained = 0;
        Ok(())
    }

    /// [`AppendFile::flush`], and onto the disk.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.flush()?;
        self.file.sync_data().map_err(Error::io("sync", &self.path))
    }

    /// The file's length once everything appended is written.
    pub(crate) fn length(&self) -> u64 {
        self.written + (self.buffer.len() - self.drained) as u64
    }

    /// Cuts the file to its first `position` bytes and appends from there.
    pub(crate) fn truncate_to(&mut self, position: u64) -> Result<()> {
        self.flush()?;
        if position > self.written {
            return Err(Error::damaged(
                &self.path,
                format!("it has {} bytes where a checkpoint counted {position}", self.written),
                "restore it from a copy, or continue from an earlier checkpoint",
            ));
        }
        self.file.set_len(position).map_err(Error::io("shorten", &self.path))?;
        self.file.seek(SeekFrom::Start(position)).map_err(Error::io("seek in", &self.path))?;
        self.written = position;
        Ok(())
    }
}

impl Drop for AppendFile {
    fn drop(&mut self) {
        // Nobody is left to tell; a caller who needs to know flushes before.
        let _ = self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_can_be_repeated_without_loss_or_repetition() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let mut file = AppendFile::open(&path).unwrap();
        file.buffer().extend_from_slice(b"hello");
        fault::with_space(3, || file.flush()).unwrap_err();
        assert_eq!(file.length(), 5);
        file.buffer().extend_from_slice(b" world");
        file.flush().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"hello world");
        assert_eq!(file.length(), 11);
    }

    #[test]
    fn cutting_beyond_the_end_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = AppendFile::open(&folder.path().join("f")).unwrap();
        file.buffer().extend_from_slice(b"hello");
        let error = file.truncate_to(6).unwrap_err().to_string();
        assert!(error.contains("5 bytes") && error.contains("counted 6"), "{error}");
        file.truncate_to(2).unwrap();
        file.buffer().extend_from_slice(b"y");
        file.sync().unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), b"hey");
    }
}
