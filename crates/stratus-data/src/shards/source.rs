//! Where shards are read from.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::archive::{BLOCK, path_at};
use super::index::{Place, Shard};
use super::scan::digest;
use crate::decode::LARGEST_FILE;
use crate::error::DataError;

/// Shards that are kept open at most: those of a few windows of the loader's order.
const MOST_OPEN: usize = 64;

/// A place with shards.
#[derive(Debug)]
pub(crate) struct Source {
    folder: PathBuf,
    /// The shards that were read last, the last one at the end.
    open: Mutex<Vec<(usize, Arc<Mutex<File>>)>>,
}

impl Source {
    /// Shards in a folder.
    pub(crate) fn folder(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), open: Mutex::new(Vec::new()) }
    }

    /// What a person calls a shard: its path.
    pub(crate) fn name(&self, shard: &Shard) -> String {
        self.path(shard).display().to_string()
    }

    fn path(&self, shard: &Shard) -> PathBuf {
        self.folder.join(&shard.name)
    }

    /// The length of a shard's file.
    pub(crate) fn length(&self, shard: &Shard) -> Result<u64, DataError> {
        let path = self.path(shard);
        fs::metadata(&path).map(|about| about.len()).map_err(|cause| DataError::Unreadable { path, cause })
    }

    /// Length and SHA-256 of a shard's file.
    pub(crate) fn digest(&self, shard: &Shard) -> Result<(u64, String), DataError> {
        digest(&self.path(shard))
    }

    /// Reads a file of a shard, whose number among the split's shards is `number`, into `out`.
    pub(crate) fn read(
        &self,
        number: usize,
        shard: &Shard,
        place: Place,
        out: &mut Vec<u8>,
    ) -> Result<(), DataError> {
        if u64::from(place.1) > LARGEST_FILE {
            let problem = format!("a file in it has {} bytes, more than {LARGEST_FILE}", place.1);
            return Err(DataError::Damaged { path: self.path(shard), problem });
        }
        out.resize(place.1 as usize, 0);
        self.read_at(number, shard, place.offset(), out)
            .map_err(|cause| DataError::Unreadable { path: self.path(shard), cause })
    }

    /// What a file of a shard is called in it, where that can be read.
    pub(crate) fn member(&self, number: usize, shard: &Shard, place: Place) -> Option<String> {
        let header = place.offset().checked_sub(BLOCK)?;
        path_at(&mut |offset, out| self.read_at(number, shard, offset, out), header)
    }

    /// Fills `out` with what stands at an offset of a shard.
    fn read_at(&self, number: usize, shard: &Shard, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let file = self.file(number, shard)?;
        let mut file = lock(&file);
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(out)
    }

    fn file(&self, number: usize, shard: &Shard) -> io::Result<Arc<Mutex<File>>> {
        let mut open = lock(&self.open);
        let known = open.iter().position(|(other, _)| *other == number);
        let entry = match known {
            Some(at) => open.remove(at),
            None => {
                if open.len() == MOST_OPEN {
                    open.remove(0);
                }
                (number, Arc::new(Mutex::new(File::open(self.path(shard))?)))
            }
        };
        let file = Arc::clone(&entry.1);
        open.push(entry);
        Ok(file)
    }
}

/// A poisoned lock is taken all the same: files are sought before every read.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
