//! A bounded folder of verified copies of stores' files.
//!
//! Threads and processes may share one folder. Each file has three names, with a common `<key>`, the digest
//! of its address, path and checksum:
//!
//! - `<key>.about`: size and version of the file. Written before the other two.
//! - `<key>.part`: the download in progress. Whoever locks it downloads; others wait for the lock. An
//!   interrupted download is resumed.
//! - `<key>`: the complete file: the `.part`, verified, synced and renamed.
//!
//! A [`CachedFile`] holds a shared lock on the complete file. Unlocked files may be evicted, the least
//! recently used first. The operating system releases the locks of a process that dies.

mod room;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};
use stratus_base::checksum::{hex, sha256_of_reader};
use stratus_base::sync_folder;

use crate::backend::FileInfo;
use crate::error::disk;
use crate::{Store, StoreError};

/// File name extensions of downloads and of their descriptions.
const PART: &str = "part";
const INFO: &str = "about";

/// A bounded folder of copies of stores' files.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
    most_bytes: u64,
}

/// A file of a cache, or of a store on this machine. The cache keeps it at least as long as this lives.
#[derive(Debug)]
pub struct CachedFile {
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl CachedFile {
    /// The open file, for reading. Its position is shared by all who read it.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A file that was requested.
struct FileRequest<'a> {
    store: &'a Store,
    path: &'a str,
    bytes: Option<u64>,
    sha256: Option<String>,
}

impl Cache {
    /// The cache in `folder`, which is created if missing, of at most `most_bytes` bytes.
    ///
    /// # Errors
    ///
    /// [`StoreError::Disk`]: the folder cannot be made.
    pub fn new(folder: &Path, most_bytes: u64) -> Result<Self, StoreError> {
        fs::create_dir_all(folder).map_err(disk(folder, "cannot be created"))?;
        Ok(Self { folder: folder.to_owned(), most_bytes })
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file `path` of `store` as one of this machine: the copy that is there, or a new one. A file that
    /// must have `expected_bytes` bytes or the checksum `sha256` (64 hexadecimal digits) and has not is
    /// refused. A file of a store on this machine is not copied. A copy is not compared with the store again,
    /// but where its size is not the expected one.
    ///
    /// Where another thread or process is downloading the file, it is waited for; where files in use take up
    /// the room, until one is let go, but no longer than the store's patience.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: as [`Store::download`]; the content is another than the expected one; there is no
    /// room; the disk fails.
    pub fn fetch(
        &self,
        store: &Store,
        path: &str,
        expected_bytes: Option<u64>,
        sha256: Option<&str>,
    ) -> Result<CachedFile, StoreError> {
        let sha256 = sha256.map(str::to_ascii_lowercase);
        let request = FileRequest { store, path, bytes: expected_bytes, sha256 };
        if let Some(root) = store.is_local() {
            return in_place(root, &request);
        }
        let target = self.folder.join(key(&request));
        loop {
            if let Some(found) = find(&target, &request)? {
                return Ok(found);
            }
            if let Some(found) = self.download(&target, &request)? {
                return Ok(found);
            }
        }
    }

    /// Downloads the file, or waits for another that does. `None`: look again.
    fn download(&self, target: &Path, request: &FileRequest<'_>) -> Result<Option<CachedFile>, StoreError> {
        let part_path = target.with_extension(PART);
        let mut part = open_part(&part_path)?;
        part.lock().map_err(disk(&part_path, "cannot be locked; use a folder of a local disk"))?;
        // The file was completed meanwhile, or evicted.
        if !is_same(&part, &part_path)? || target.exists() {
            return Ok(None);
        }
        let info = request.store.expect(request.path)?;
        request.expect_bytes(info.bytes)?;
        let begun = read_info(target);
        if begun.as_ref() != Some(&info) || part.metadata().is_ok_and(|part| part.len() > info.bytes) {
            part.set_len(0).map_err(disk(&part_path, "cannot be written"))?;
        }
        self.make_room(target, request, &info)?;
        let resumed = part.seek(SeekFrom::End(0)).map_err(disk(&part_path, "cannot be written"))?;
        let file = request.store.file(request.path);
        request.store.copy(request.path, &info, resumed, &mut part, &mut |_| {}).map_err(
            |error| match error {
                StoreError::Stream { cause, .. } => disk(&part_path, "cannot be written")(cause),
                other => other,
            },
        )?;
        if let Some(expected) = &request.sha256 {
            let found = digest(&mut part).map_err(disk(&part_path, "cannot be read"))?;
            if found != *expected {
                part.set_len(0).map_err(disk(&part_path, "cannot be written"))?;
                // The resumed part may be to blame: start over.
                if resumed > 0 {
                    return Ok(None);
                }
                let _ = fs::remove_file(&part_path);
                return Err(wrong_checksum(file, &found, expected));
            }
        }
        part.sync_all().map_err(disk(&part_path, "cannot be written"))?;
        fs::rename(&part_path, target).map_err(disk(target, "cannot be put in place"))?;
        sync_folder(&self.folder);
        drop(part);
        find(target, request)
    }
}

impl FileRequest<'_> {
    fn expect_bytes(&self, found: u64) -> Result<(), StoreError> {
        match self.bytes {
            Some(expected) if expected != found => Err(StoreError::Wrong {
                file: self.store.file(self.path),
                problem: format!(
                    "it has {found} bytes, expected {expected}; it is a different file, or truncated"
                ),
            }),
            _ => Ok(()),
        }
    }
}

/// A file of a local store is not copied.
fn in_place(root: &Path, request: &FileRequest<'_>) -> Result<CachedFile, StoreError> {
    let info = request.store.expect(request.path)?;
    request.expect_bytes(info.bytes)?;
    let path = root.join(request.path);
    let mut file = File::open(&path).map_err(disk(&path, "cannot be read"))?;
    if let Some(expected) = &request.sha256 {
        let found = digest(&mut file).map_err(disk(&path, "cannot be read"))?;
        if found != *expected {
            return Err(wrong_checksum(request.store.file(request.path), &found, expected));
        }
    }
    Ok(CachedFile { file, path, bytes: info.bytes })
}

/// The complete file, locked, if it is there and has the recorded size.
fn find(target: &Path, request: &FileRequest<'_>) -> Result<Option<CachedFile>, StoreError> {
    let file = match File::open(target) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(disk(target, "cannot be read")(error)),
    };
    file.lock_shared().map_err(disk(target, "cannot be locked; use a folder of a local disk"))?;
    // It was deleted before it was locked.
    if !is_same(&file, target)? {
        return Ok(None);
    }
    let bytes = file.metadata().map_err(disk(target, "cannot be read"))?.len();
    if read_info(target).is_none_or(|info| info.bytes != bytes) || request.expect_bytes(bytes).is_err() {
        // It is damaged or outdated. Whoever has it open keeps the old content.
        fs::remove_file(target).map_err(disk(target, "cannot be removed"))?;
        return Ok(None);
    }
    // The time of the last use. Where it cannot be set, the file is only deleted a little early.
    let _ = file.set_modified(SystemTime::now());
    Ok(Some(CachedFile { file, path: target.to_owned(), bytes }))
}

fn open_part(path: &Path) -> Result<File, StoreError> {
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    open.map_err(disk(path, "cannot be created"))
}

/// Whether `path` still names the open file.
fn is_same(file: &File, path: &Path) -> Result<bool, StoreError> {
    let there = match fs::metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(disk(path, "cannot be read")(error)),
    };
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let here = file.metadata().map_err(disk(path, "cannot be read"))?;
        Ok((here.dev(), here.ino()) == (there.dev(), there.ino()))
    }
    // Elsewhere an open file can be neither deleted nor renamed over.
    #[cfg(not(unix))]
    {
        let _ = (file, there);
        Ok(true)
    }
}

/// The recorded size and version of a download; `None` where there is no valid record.
fn read_info(target: &Path) -> Option<FileInfo> {
    let mut text = String::new();
    File::open(target.with_extension(INFO)).ok()?.take(1 << 16).read_to_string(&mut text).ok()?;
    let (bytes, version) = text.strip_suffix('\n')?.split_once(' ')?;
    let version = version.strip_prefix("version ").map(str::to_owned);
    Some(FileInfo { bytes: bytes.parse().ok()?, version })
}

/// One line: the size, and the version where there is one. Written beside and renamed, so that it is never
/// half there.
fn write_info(target: &Path, info: &FileInfo) -> Result<(), StoreError> {
    let path = target.with_extension(INFO);
    let beside = target.with_extension("about.new");
    let version =
        info.version.as_ref().map_or("unversioned".to_owned(), |version| format!("version {version}"));
    fs::write(&beside, format!("{} {version}\n", info.bytes)).map_err(disk(&beside, "cannot be written"))?;
    fs::rename(&beside, &path).map_err(disk(&path, "cannot be put in place"))
}

/// The name of a file in the cache: 32 hexadecimal digits.
fn key(request: &FileRequest<'_>) -> String {
    let mut hasher = Sha256::new();
    for part in [request.store.address(), request.path, request.sha256.as_deref().unwrap_or("")] {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hex(&hasher.finalize()[..16])
}

/// SHA-256 of a file, from its beginning: 64 lower-case hexadecimal digits.
fn digest(file: &mut File) -> io::Result<String> {
    file.rewind()?;
    let (_, sha256) = sha256_of_reader(&mut *file)?;
    file.rewind()?;
    Ok(sha256)
}

fn wrong_checksum(file: String, found: &str, expected: &str) -> StoreError {
    let problem = format!("its SHA-256 is {found}, expected {expected}; it is a different file, or damaged");
    StoreError::Wrong { file, problem }
}
