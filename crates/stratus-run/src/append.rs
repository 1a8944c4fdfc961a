//! Buffered appending to a file. The position is exact to the byte, even after a failed write.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::atomic::{self, fault};
use crate::{Error, Result};

/// The length from which the buffer is written to the file. Its capacity is twice this, so that no record
/// reallocates it.
const FLUSH_BYTES: usize = 32 * 1024;

#[derive(Debug)]
pub(crate) struct AppendFile {
    file: File,
    path: PathBuf,
    buffer: Vec<u8>,
    /// Bytes of the buffer that are already in the file; nonzero only after a failed write.
    written_from_buffer: usize,
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
            // The name of a new file must survive a power cut too.
            atomic::sync_folder(atomic::parent(path))?;
        }
        let buffer = Vec::with_capacity(2 * FLUSH_BYTES);
        Ok(Self { file, path: path.to_path_buf(), buffer, written_from_buffer: 0, written })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// The buffer to append a record to; call [`AppendFile::finish_record`] afterwards.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    pub(crate) fn finish_record(&mut self) -> Result<()> {
        if self.buffer.len() >= FLUSH_BYTES { self.flush() } else { Ok(()) }
    }

    /// Writes the buffer to the operating system. After a failure, the next call writes the rest.
    pub(crate) fn flush(&mut self) -> Result<()> {
        while self.written_from_buffer < self.buffer.len() {
            let rest = &self.buffer[self.written_from_buffer..];
            let n = fault::consume(rest.len())
                .and_then(|()| match self.file.write(rest) {
                    Ok(0) => {
                        Err(std::io::Error::new(std::io::ErrorKind::WriteZero, "the system wrote nothing"))
                    }
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => Ok(0),
                    other => other,
                })
                .map_err(Error::io("write", &self.path))?;
            self.written_from_buffer += n;
            self.written += n as u64;
        }
        self.buffer.clear();
        self.written_from_buffer = 0;
        Ok(())
    }

    /// Writes everything to the disk.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.flush()?;
        self.file.sync_data().map_err(Error::io("sync", &self.path))
    }

    /// The length of the file once everything appended is written.
    pub(crate) fn length(&self) -> u64 {
        self.written + (self.buffer.len() - self.written_from_buffer) as u64
    }

    /// Truncates the file to its first `position` bytes and appends from there.
    pub(crate) fn truncate_to(&mut self, position: u64) -> Result<()> {
        self.flush()?;
        if position > self.written {
            return Err(Error::damaged(
                &self.path,
                format!("it has {} bytes, but the checkpoint recorded {position}", self.written),
                "restore it from a copy, or resume from an earlier checkpoint",
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
        // Drop cannot report an error; callers that need it call `flush` first.
        let _ = self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_write_is_retried_without_loss_or_duplication() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let mut file = AppendFile::open(&path).unwrap();
        file.buffer().extend_from_slice(b"hello");
        fault::with_free_bytes(3, || file.flush()).unwrap_err();
        assert_eq!(file.length(), 5);
        file.buffer().extend_from_slice(b" world");
        file.flush().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"hello world");
        assert_eq!(file.length(), 11);
    }

    #[test]
    fn refuses_to_truncate_beyond_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = AppendFile::open(&folder.path().join("f")).unwrap();
        file.buffer().extend_from_slice(b"hello");
        let error = file.truncate_to(6).unwrap_err().to_string();
        assert!(error.contains("5 bytes") && error.contains("recorded 6"), "{error}");
        file.truncate_to(2).unwrap();
        file.buffer().extend_from_slice(b"y");
        file.sync().unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), b"hey");
    }
}
