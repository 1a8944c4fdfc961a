//! Keeping a cache within its bound.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::{ABOUT, Cache, PART, Wanted, read_about, write_about};
use crate::StoreError;
use crate::error::disk;
use crate::place::About;

/// The time between two looks whether there is room now.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A whole or growing file of a cache.
struct Kept {
    /// Its place once it is whole.
    place: PathBuf,
    path: PathBuf,
    /// What it takes up, or will once it is whole.
    bytes: u64,
    used: SystemTime,
}

impl Cache {
    /// Deletes what was not used for the longest time until the file `about` fits, and notes that it takes
    /// its room from now on. What is in use is waited for.
    pub(super) fn make_room(
        &self,
        place: &Path,
        wanted: &Wanted<'_>,
        about: &About,
    ) -> Result<(), StoreError> {
        let (bytes, most) = (about.bytes, self.most_bytes);
        let folder = self.folder.clone();
        let file = || wanted.store.file(wanted.path);
        if bytes > most {
            return Err(StoreError::CacheTooSmall { file: file(), bytes, most, folder });
        }
        let began = Instant::now();
        loop {
            let held = self.try_make_room(place, about)?;
            if held <= most - bytes {
                return Ok(());
            }
            if began.elapsed() >= wanted.store.patience().total {
                return Err(StoreError::CacheInUse { file: file(), bytes, most, held, folder });
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// Deletes other files until there is room, and returns how many bytes the remaining ones have.
    fn try_make_room(&self, place: &Path, about: &About) -> Result<u64, StoreError> {
        let most = self.most_bytes.saturating_sub(about.bytes);
        // One at a time: two that look at once would both take the same room.
        let path = self.folder.join("lock");
        let lock = File::create(&path).map_err(disk(&path, "cannot be created"))?;
        lock.lock().map_err(disk(&path, "cannot be locked; use a folder of a local disk"))?;
        let mut kept = self.kept(place)?;
        let mut sum = kept.iter().fold(0_u64, |sum, kept| sum.saturating_add(kept.bytes));
        kept.sort_by_key(|kept| kept.used);
        for kept in kept {
            if sum <= most {
                break;
            }
            if delete_unless_held(&kept)? {
                sum = sum.saturating_sub(kept.bytes);
            }
        }
        if sum <= most {
            write_about(place, about)?;
        }
        Ok(sum)
    }

    /// Every whole and growing file but that of `place`.
    fn kept(&self, place: &Path) -> Result<Vec<Kept>, StoreError> {
        let mut kept = Vec::new();
        for item in fs::read_dir(&self.folder).map_err(disk(&self.folder, "cannot be listed"))? {
            let path = item.map_err(disk(&self.folder, "cannot be listed"))?.path();
            let is_key = |name: &str| name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
            let Some(name) = path.file_stem().and_then(|name| name.to_str()).filter(|name| is_key(name))
            else {
                continue;
            };
            let whole = self.folder.join(name);
            let growing = path.extension().is_some_and(|extension| extension == PART);
            if whole == place || path.extension().is_some() && !growing {
                continue;
            }
            let about = match fs::symlink_metadata(&path) {
                Ok(about) => about,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(disk(&path, "cannot be read")(error)),
            };
            let announced = if growing { read_about(&whole).map_or(0, |about| about.bytes) } else { 0 };
            let used = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            kept.push(Kept { place: whole, path, bytes: about.len().max(announced), used });
        }
        Ok(kept)
    }
}

/// Whether the file is gone now.
fn delete_unless_held(kept: &Kept) -> Result<bool, StoreError> {
    let file = match File::open(&kept.path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(disk(&kept.path, "cannot be read")(error)),
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => {
            return Err(disk(&kept.path, "cannot be locked; use a folder of a local disk")(error));
        }
    }
    // First what says that it is whole: once the file is gone, another may write that anew.
    let _ = fs::remove_file(kept.place.with_extension(ABOUT));
    fs::remove_file(&kept.path).map_err(disk(&kept.path, "cannot be removed"))?;
    Ok(true)
}
