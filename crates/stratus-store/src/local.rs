//! A folder of this machine.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use stratus_base::sync_folder;

use crate::backend::{Failure, FileInfo, StoreBackend};
use crate::error::disk;
use crate::{Entry, StoreError};

/// How files that are not whole yet begin and end. They are in no list.
pub(crate) const UNFINISHED: (&str, &str) = (".stratus-", ".part");

/// Folders in folders: more are a link that leads back.
pub(crate) const MOST_DEEP: usize = 64;

pub(crate) struct Local {
    root: PathBuf,
}

impl Local {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn walk(
        &self,
        folder: &Path,
        relative: &str,
        prefix: &str,
        deep: usize,
        found: &mut dyn FnMut(Entry),
    ) -> Result<(), StoreError> {
        if deep > MOST_DEEP {
            let cause =
                io::Error::other(format!("folders are more than {MOST_DEEP} deep; does a link lead back?"));
            return Err(disk(folder, "cannot be listed")(cause));
        }
        let list = match fs::read_dir(folder) {
            Ok(list) => list,
            // The folder of a prefix that nothing begins with.
            Err(error) if error.kind() == io::ErrorKind::NotFound && folder != self.root => return Ok(()),
            Err(error) => return Err(disk(folder, "cannot be listed")(error)),
        };
        for item in list {
            let item = item.map_err(disk(folder, "cannot be listed"))?;
            let name = item.file_name();
            let Some(name) = name.to_str() else {
                let cause = io::Error::new(io::ErrorKind::InvalidData, "its name is not UTF-8; rename it");
                return Err(disk(&item.path(), "cannot be listed")(cause));
            };
            if is_unfinished(name) {
                continue;
            }
            let path = format!("{relative}{name}");
            // Links are followed: what the user put there is meant.
            let info = match fs::metadata(item.path()) {
                Ok(info) => info,
                // Deleted since, or a link to nothing.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(disk(&item.path(), "cannot be listed")(error)),
            };
            if info.is_dir() {
                let within = format!("{path}/");
                if within.starts_with(prefix) || prefix.starts_with(&within) {
                    self.walk(&item.path(), &within, prefix, deep + 1, found)?;
                }
            } else if info.is_file() && path.starts_with(prefix) {
                found(Entry { path, bytes: info.len() });
            }
        }
        Ok(())
    }
}

impl StoreBackend for Local {
    fn list(&self, prefix: &str, found: &mut dyn FnMut(Entry)) -> Result<(), Failure> {
        let (folder, relative) = match prefix.rsplit_once('/') {
            Some((folder, _)) => (self.root.join(folder), format!("{folder}/")),
            None => (self.root.clone(), String::new()),
        };
        Ok(self.walk(&folder, &relative, prefix, 0, found)?)
    }

    fn info(&self, path: &str) -> Result<Option<FileInfo>, Failure> {
        let path = self.root.join(path);
        match fs::metadata(&path) {
            Ok(info) if info.is_file() => {
                let changed = info.modified().ok();
                let changed = changed.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
                Ok(Some(FileInfo {
                    bytes: info.len(),
                    version: changed.map(|since| since.as_nanos().to_string()),
                }))
            }
            Ok(_) => Ok(None),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(None)
            }
            Err(error) => Err(disk(&path, "cannot be read")(error).into()),
        }
    }

    fn open(&self, path: &str, offset: u64, length: u64) -> Result<Box<dyn Read + '_>, Failure> {
        let path = self.root.join(path);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::NotFound { file: path.display().to_string() }.into());
            }
            Err(error) => return Err(disk(&path, "cannot be read")(error).into()),
        };
        file.seek(SeekFrom::Start(offset)).map_err(disk(&path, "cannot be read"))?;
        Ok(Box::new(file.take(length)))
    }

    fn write(&self, path: &str, from: &mut dyn Read, bytes: u64) -> Result<(), Failure> {
        let path = self.root.join(path);
        let folder = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(folder).map_err(disk(folder, "cannot be created"))?;
        let (unfinished, mut file) = unfinished_in(folder)?;
        let placed = fill(&mut file, from, bytes, &unfinished, &path)
            .and_then(|()| fs::rename(&unfinished, &path).map_err(disk(&path, "cannot be put in place")));
        if let Err(error) = placed {
            // It is only in the way now, and the first error is the one that says why.
            let _ = fs::remove_file(&unfinished);
            return Err(error.into());
        }
        sync_folder(folder);
        Ok(())
    }
}

pub(crate) fn is_unfinished(name: &str) -> bool {
    name.starts_with(UNFINISHED.0) && name.ends_with(UNFINISHED.1)
}

/// A file of a name of its own that is not whole yet.
fn unfinished_in(folder: &Path) -> Result<(PathBuf, File), StoreError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{}{}-{number}{}", UNFINISHED.0, process::id(), UNFINISHED.1));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((path, file)),
            // Left by a process of the same number that was killed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(disk(&path, "cannot be created")(error)),
        }
    }
}

/// Writes exactly `bytes` bytes and sees to it that they are on disk.
fn fill(
    file: &mut File,
    from: &mut dyn Read,
    bytes: u64,
    unfinished: &Path,
    place: &Path,
) -> Result<(), StoreError> {
    let mut from = from.take(bytes.saturating_add(1));
    let mut written = 0;
    let mut block = vec![0; 1 << 16];
    loop {
        let count = match from.read(&mut block) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(cause) => {
                let file = place.display().to_string();
                return Err(StoreError::Stream { file, action: "the source cannot be read", cause });
            }
        };
        io::Write::write_all(file, &block[..count]).map_err(disk(unfinished, "cannot be written"))?;
        written += count as u64;
    }
    if written != bytes {
        return Err(StoreError::wrong_source(place.display().to_string(), written, bytes));
    }
    file.sync_all().map_err(disk(unfinished, "cannot be written"))
}
