//! Keeping a cache within its bound.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::{Cache, FileRequest, INFO, PART, read_info, write_info};
use crate::StoreError;
use crate::backend::FileInfo;
use crate::error::disk;

/// The interval between two checks for room.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A complete file or a download in progress.
struct CacheEntry {
    /// Its final path.
    target: PathBuf,
    path: PathBuf,
    /// Its size, or the announced size of a download.
    bytes: u64,
    used: SystemTime,
}

impl Cache {
    /// Evicts the least recently used files until `info` fits, and reserves its room. Waits for files in use.
    pub(super) fn make_room(
        &self,
        target: &Path,
        request: &FileRequest<'_>,
        info: &FileInfo,
    ) -> Result<(), StoreError> {
        let (bytes, most) = (info.bytes, self.most_bytes);
        let folder = self.folder.clone();
        let file = || request.store.file(request.path);
        if bytes > most {
            return Err(StoreError::CacheTooSmall { file: file(), bytes, most, folder });
        }
        let began = Instant::now();
        loop {
            let held = self.try_make_room(target, info)?;
            if held <= most - bytes {
                return Ok(());
            }
            if began.elapsed() >= request.store.retry_policy().give_up_after {
                return Err(StoreError::CacheInUse { file: file(), bytes, most, held, folder });
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// Evicts other files until there is room, and returns the bytes of the remaining ones.
    fn try_make_room(&self, target: &Path, info: &FileInfo) -> Result<u64, StoreError> {
        let most = self.most_bytes.saturating_sub(info.bytes);
        // Under a lock: two that check at once would both take the same room.
        let path = self.folder.join("lock");
        let lock = File::create(&path).map_err(disk(&path, "cannot be created"))?;
        lock.lock().map_err(disk(&path, "cannot be locked; use a folder of a local disk"))?;
        let mut entries = self.entries(target)?;
        let mut sum = entries.iter().fold(0_u64, |sum, entries| sum.saturating_add(entries.bytes));
        entries.sort_by_key(|entries| entries.used);
        for entries in entries {
            if sum <= most {
                break;
            }
            if delete_unless_held(&entries)? {
                sum = sum.saturating_sub(entries.bytes);
            }
        }
        if sum <= most {
            write_info(target, info)?;
        }
        Ok(sum)
    }

    /// All complete files and downloads in progress, except `target`.
    fn entries(&self, target: &Path) -> Result<Vec<CacheEntry>, StoreError> {
        let mut entries = Vec::new();
        for item in fs::read_dir(&self.folder).map_err(disk(&self.folder, "cannot be listed"))? {
            let path = item.map_err(disk(&self.folder, "cannot be listed"))?.path();
            let is_key = |name: &str| name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
            let Some(name) = path.file_stem().and_then(|name| name.to_str()).filter(|name| is_key(name))
            else {
                continue;
            };
            let whole = self.folder.join(name);
            let growing = path.extension().is_some_and(|extension| extension == PART);
            if whole == target || path.extension().is_some() && !growing {
                continue;
            }
            let info = match fs::symlink_metadata(&path) {
                Ok(info) => info,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(disk(&path, "cannot be read")(error)),
            };
            let announced = if growing { read_info(&whole).map_or(0, |info| info.bytes) } else { 0 };
            let used = info.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            entries.push(CacheEntry { target: whole, path, bytes: info.len().max(announced), used });
        }
        Ok(entries)
    }
}

/// Deletes a file unless it is locked. Returns whether it is gone.
fn delete_unless_held(entries: &CacheEntry) -> Result<bool, StoreError> {
    let file = match File::open(&entries.path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(disk(&entries.path, "cannot be read")(error)),
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => {
            return Err(disk(&entries.path, "cannot be locked; use a folder of a local disk")(error));
        }
    }
    // The description first: once the file is gone, another process may write a new one.
    let _ = fs::remove_file(entries.target.with_extension(INFO));
    fs::remove_file(&entries.path).map_err(disk(&entries.path, "cannot be removed"))?;
    Ok(true)
}
