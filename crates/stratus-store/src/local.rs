//! A local folder.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use stratus_base::sync_folder;

use crate::backend::{Failure, FileInfo, StoreBackend, read_block};
use crate::error::local_io;
use crate::{Entry, StoreError};

/// The prefix and suffix of temporary files, which are excluded from listings.
pub(crate) const TEMP_PREFIX_SUFFIX: (&str, &str) = (".stratus-", ".part");

/// The bytes that are written at a time.
const WRITE_BLOCK_BYTES: usize = 1 << 18;

/// The maximum folder depth. Deeper folders mean a loop of symbolic links.
pub(crate) const MAX_FOLDER_DEPTH: usize = 64;

pub(crate) struct LocalStore {
    root: PathBuf,
}

impl LocalStore {
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
        depth: usize,
        found: &mut dyn FnMut(Entry),
    ) -> Result<(), StoreError> {
        if depth > MAX_FOLDER_DEPTH {
            let cause = io::Error::other(format!(
                "folders nest deeper than {MAX_FOLDER_DEPTH}; is there a symbolic-link loop?"
            ));
            return Err(local_io(folder, "cannot be listed")(cause));
        }
        let list = match fs::read_dir(folder) {
            Ok(list) => list,
            // No path begins with the prefix.
            Err(error) if error.kind() == io::ErrorKind::NotFound && folder != self.root => return Ok(()),
            Err(error) => return Err(local_io(folder, "cannot be listed")(error)),
        };
        for item in list {
            let item = item.map_err(local_io(folder, "cannot be listed"))?;
            let name = item.file_name();
            let Some(name) = name.to_str() else {
                let cause = io::Error::new(io::ErrorKind::InvalidData, "the name is not UTF-8; rename it");
                return Err(local_io(&item.path(), "cannot be listed")(cause));
            };
            if is_temporary(name) {
                continue;
            }
            let path = format!("{relative}{name}");
            // Symbolic links are followed, since the user placed them there.
            let info = match fs::metadata(item.path()) {
                Ok(info) => info,
                // The file was deleted meanwhile, or it is a broken link.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(local_io(&item.path(), "cannot be listed")(error)),
            };
            if info.is_dir() {
                let folder_path = format!("{path}/");
                if folder_path.starts_with(prefix) || prefix.starts_with(&folder_path) {
                    self.walk(&item.path(), &folder_path, prefix, depth + 1, found)?;
                }
            } else if info.is_file() && path.starts_with(prefix) {
                found(Entry { path, bytes: info.len() });
            }
        }
        Ok(())
    }
}

impl StoreBackend for LocalStore {
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
            Err(error) => Err(local_io(&path, "cannot be read")(error).into()),
        }
    }

    fn open(&self, path: &str, offset: u64, length: u64) -> Result<Box<dyn Read + '_>, Failure> {
        let path = self.root.join(path);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::NotFound { file: path.display().to_string() }.into());
            }
            Err(error) => return Err(local_io(&path, "cannot be read")(error).into()),
        };
        file.seek(SeekFrom::Start(offset)).map_err(local_io(&path, "cannot be read"))?;
        Ok(Box::new(file.take(length)))
    }

    fn write(&self, path: &str, from: &mut dyn Read, bytes: u64) -> Result<(), Failure> {
        let path = self.root.join(path);
        let folder = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(folder).map_err(local_io(folder, "cannot be created"))?;
        let (temp_path, mut file) = create_temporary(folder)?;
        let result = fill(&mut file, from, bytes, &temp_path, &path)
            .and_then(|()| fs::rename(&temp_path, &path).map_err(local_io(&path, "cannot be replaced")));
        if let Err(error) = result {
            // Best effort: the first error is the one to report.
            let _ = fs::remove_file(&temp_path);
            return Err(error.into());
        }
        sync_folder(folder);
        Ok(())
    }
}

pub(crate) fn is_temporary(name: &str) -> bool {
    name.starts_with(TEMP_PREFIX_SUFFIX.0) && name.ends_with(TEMP_PREFIX_SUFFIX.1)
}

/// Creates a temporary file with a unique name.
fn create_temporary(folder: &Path) -> Result<(PathBuf, File), StoreError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(
            "{}{}-{number}{}",
            TEMP_PREFIX_SUFFIX.0,
            process::id(),
            TEMP_PREFIX_SUFFIX.1
        ));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((path, file)),
            // A killed process with the same ID left this file.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(local_io(&path, "cannot be created")(error)),
        }
    }
}

/// Writes exactly `bytes` bytes and syncs them to disk.
fn fill(
    file: &mut File,
    from: &mut dyn Read,
    bytes: u64,
    temp_path: &Path,
    target: &Path,
) -> Result<(), StoreError> {
    let mut written = 0;
    loop {
        let (block, is_last) =
            read_block(from, bytes, written, WRITE_BLOCK_BYTES, || target.display().to_string())?;
        file.write_all(&block).map_err(local_io(temp_path, "cannot be written"))?;
        written += block.len() as u64;
        if is_last {
            break;
        }
    }
    file.sync_all().map_err(local_io(temp_path, "cannot be written"))
}
