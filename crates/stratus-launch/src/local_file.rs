//! Local files that are sent to a target. Sending one streams it, so an error must tell the file from the
//! connection.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// A local file, open for reading, whose errors name it.
pub(crate) struct LocalFile<'a> {
    file: File,
    path: &'a Path,
}

impl<'a> LocalFile<'a> {
    /// Opens the file at `path`, to be read from `offset`.
    pub(crate) fn open(path: &'a Path, offset: u64) -> io::Result<Self> {
        let mut file = File::open(path).map_err(|error| named(path, &error))?;
        file.seek(SeekFrom::Start(offset)).map_err(|error| named(path, &error))?;
        Ok(Self { file, path })
    }
}

impl Read for LocalFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read(buffer).map_err(|error| named(self.path, &error))
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display()))
}
