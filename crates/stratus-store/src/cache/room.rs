//! Eviction: keeping a cache within its limit.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::{Cache, FileRequest, INFO_EXTENSION, PARTIAL_EXTENSION, read_info, write_info};
use crate::StoreError;
use crate::backend::FileInfo;
use crate::error::local_io;

/// The interval between two checks for room.
const ROOM_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A complete file or a download in progress.
struct CacheEntry {
    /// The path of the complete file.
    target: PathBuf,
    path: PathBuf,
    /// The size of the file, or the announced size of a download.
    bytes: u64,
    used: SystemTime,
}

impl Cache {
    /// Evicts the least recently used files until `info` fits, and reserves room for it. Waits for locked
    /// files.
    pub(super) fn make_room(
        &self,
        target: &Path,
        request: &FileRequest<'_>,
        info: &FileInfo,
    ) -> Result<(), StoreError> {
        let (bytes, max) = (info.bytes, self.max_bytes);
        let folder = self.folder.clone();
        let file = || request.store.file(request.path);
        if bytes > max {
            return Err(StoreError::CacheTooSmall { file: file(), bytes, max, folder });
        }
        let began = Instant::now();
        loop {
            let in_use = self.try_make_room(target, info)?;
            if in_use <= max - bytes {
                return Ok(());
            }
            if began.elapsed() >= request.store.retry_policy().give_up_after {
                return Err(StoreError::CacheInUse { file: file(), bytes, max, in_use, folder });
            }
            thread::sleep(ROOM_POLL_INTERVAL);
        }
    }

    /// Evicts other files until there is room. Returns the total size of the remaining files.
    fn try_make_room(&self, target: &Path, info: &FileInfo) -> Result<u64, StoreError> {
        let max = self.max_bytes.saturating_sub(info.bytes);
        // Without the lock, two concurrent checks could reserve the same room.
        let _lock = self.lock()?;
        let mut entries = self.entries(target)?;
        let mut sum = entries.iter().fold(0_u64, |sum, entry| sum.saturating_add(entry.bytes));
        entries.sort_by_key(|entry| entry.used);
        for entry in entries {
            if sum <= max {
                break;
            }
            if evict_unless_locked(&entry)? {
                sum = sum.saturating_sub(entry.bytes);
            }
        }
        if sum <= max {
            write_info(target, info)?;
        }
        Ok(sum)
    }

    /// Renames a verified download. A listing that a rename interrupts may contain neither name, and a check
    /// for room would then overlook the file; so the folder is locked.
    pub(super) fn complete(&self, part: &Path, target: &Path) -> Result<(), StoreError> {
        let _lock = self.lock()?;
        fs::rename(part, target).map_err(local_io(target, "cannot be replaced"))
    }

    /// Locks the names of the folder, until the returned file is dropped.
    fn lock(&self) -> Result<File, StoreError> {
        let path = self.folder.join("lock");
        let lock = File::create(&path).map_err(local_io(&path, "cannot be created"))?;
        lock.lock().map_err(local_io(&path, "cannot be locked; use a folder of a local disk"))?;
        Ok(lock)
    }

    /// All complete files and downloads in progress, except `target`. The caller holds the lock of the
    /// folder.
    fn entries(&self, target: &Path) -> Result<Vec<CacheEntry>, StoreError> {
        let mut entries = Vec::new();
        for item in fs::read_dir(&self.folder).map_err(local_io(&self.folder, "cannot be listed"))? {
            let path = item.map_err(local_io(&self.folder, "cannot be listed"))?.path();
            let is_key = |name: &str| name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
            let Some(name) = path.file_stem().and_then(|name| name.to_str()).filter(|name| is_key(name))
            else {
                continue;
            };
            let complete = self.folder.join(name);
            let is_partial = path.extension().is_some_and(|extension| extension == PARTIAL_EXTENSION);
            if complete == target || path.extension().is_some() && !is_partial {
                continue;
            }
            let info = match fs::symlink_metadata(&path) {
                Ok(info) => info,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(local_io(&path, "cannot be read")(error)),
            };
            let announced = if is_partial { read_info(&complete).map_or(0, |info| info.bytes) } else { 0 };
            let used = info.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            entries.push(CacheEntry { target: complete, path, bytes: info.len().max(announced), used });
        }
        Ok(entries)
    }
}

/// Deletes a file unless it is locked. Returns whether the file no longer exists.
fn evict_unless_locked(entry: &CacheEntry) -> Result<bool, StoreError> {
    let file = match File::open(&entry.path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(local_io(&entry.path, "cannot be read")(error)),
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => {
            return Err(local_io(&entry.path, "cannot be locked; use a folder of a local disk")(error));
        }
    }
    // The record is deleted first: once the file is gone, another process may write a new record.
    let _ = fs::remove_file(entry.target.with_extension(INFO_EXTENSION));
    fs::remove_file(&entry.path).map_err(local_io(&entry.path, "cannot be removed"))?;
    Ok(true)
}
