//! A bounded folder of verified copies of remote files.
//!
//! Threads and processes may share one folder. Each file has three names, with a common `<key>`, the digest
//! of its address, path and checksum:
//!
//! - `<key>.about`: size and version of the file, written before the other two.
//! - `<key>.part`: the download in progress. The thread that locks it downloads; others wait for the lock. An
//!   interrupted download is resumed.
//! - `<key>`: the complete file, which is the `.part` file after verification, sync and rename.
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
use crate::error::local_io;
use crate::{Store, StoreError};

/// The extension of a download in progress.
const PARTIAL_EXTENSION: &str = "part";
/// The extension of the recorded size and version.
const INFO_EXTENSION: &str = "about";

/// A bounded folder of copies of remote files.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
    max_bytes: u64,
}

/// A locked file of a cache, or a file of a local store. The cache does not evict it while this value exists.
#[derive(Debug)]
pub struct CachedFile {
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl CachedFile {
    /// The open file, for reading. All readers share its position.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A requested file.
struct FileRequest<'a> {
    store: &'a Store,
    path: &'a str,
    bytes: Option<u64>,
    sha256: Option<String>,
}

impl Cache {
    /// Opens the cache in `folder`, which is created if missing, with a limit of `max_bytes` bytes.
    ///
    /// # Errors
    ///
    /// If the folder cannot be created.
    pub fn new(folder: &Path, max_bytes: u64) -> Result<Self, StoreError> {
        fs::create_dir_all(folder).map_err(local_io(folder, "cannot be created"))?;
        Ok(Self { folder: folder.to_owned(), max_bytes })
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns a local copy of the file `path` of `store`, downloading it if necessary. Size and SHA-256 (64
    /// hexadecimal digits) are verified if given. Files of local stores are not copied. A cached copy is
    /// fetched again only if its size differs from `expected_bytes`.
    ///
    /// Waits for another thread or process that downloads the same file. If locked files leave no room, waits
    /// up to the time limit of the store's retry policy.
    ///
    /// # Errors
    ///
    /// If the download fails, like [`Store::download`]; if the content differs from the expected one; if
    /// there is no room; if the disk fails.
    pub fn fetch(
        &self,
        store: &Store,
        path: &str,
        expected_bytes: Option<u64>,
        sha256: Option<&str>,
    ) -> Result<CachedFile, StoreError> {
        let sha256 = sha256.map(str::to_ascii_lowercase);
        let request = FileRequest { store, path, bytes: expected_bytes, sha256 };
        if let Some(root) = store.local_root() {
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

    /// Downloads the file, or waits for another download. `None` means that the caller must search again.
    fn download(&self, target: &Path, request: &FileRequest<'_>) -> Result<Option<CachedFile>, StoreError> {
        let part_path = target.with_extension(PARTIAL_EXTENSION);
        let mut part = open_part(&part_path)?;
        part.lock().map_err(local_io(&part_path, "cannot be locked; use a folder of a local disk"))?;
        // The file was completed or evicted meanwhile.
        if !is_same_inode(&part, &part_path)? || target.exists() {
            return Ok(None);
        }
        let info = request.store.require_info(request.path)?;
        request.expect_bytes(info.bytes)?;
        let recorded = read_info(target);
        if recorded.as_ref() != Some(&info) || part.metadata().is_ok_and(|part| part.len() > info.bytes) {
            part.set_len(0).map_err(local_io(&part_path, "cannot be written"))?;
        }
        self.make_room(target, request, &info)?;
        let resumed = part.seek(SeekFrom::End(0)).map_err(local_io(&part_path, "cannot be written"))?;
        let file = request.store.file(request.path);
        request.store.copy(request.path, &info, resumed, &mut part, &mut |_| {}).map_err(
            |error| match error {
                StoreError::StreamIo { cause, .. } => local_io(&part_path, "cannot be written")(cause),
                other => other,
            },
        )?;
        if let Some(expected) = &request.sha256 {
            let found = digest(&mut part).map_err(local_io(&part_path, "cannot be read"))?;
            if found != *expected {
                part.set_len(0).map_err(local_io(&part_path, "cannot be written"))?;
                // The resumed part may be wrong: start over.
                if resumed > 0 {
                    return Ok(None);
                }
                let _ = fs::remove_file(&part_path);
                return Err(wrong_checksum(file, &found, expected));
            }
        }
        part.sync_all().map_err(local_io(&part_path, "cannot be written"))?;
        self.complete(&part_path, target)?;
        sync_folder(&self.folder);
        drop(part);
        find(target, request)
    }
}

impl FileRequest<'_> {
    fn expect_bytes(&self, found: u64) -> Result<(), StoreError> {
        match self.bytes {
            Some(expected) if expected != found => Err(StoreError::Unexpected {
                file: self.store.file(self.path),
                problem: format!(
                    "expected {expected} bytes, found {found}; the file is truncated or a different one"
                ),
            }),
            _ => Ok(()),
        }
    }
}

/// Opens a file of a local store without copying it.
fn in_place(root: &Path, request: &FileRequest<'_>) -> Result<CachedFile, StoreError> {
    let info = request.store.require_info(request.path)?;
    request.expect_bytes(info.bytes)?;
    let path = root.join(request.path);
    let mut file = File::open(&path).map_err(local_io(&path, "cannot be read"))?;
    if let Some(expected) = &request.sha256 {
        let found = digest(&mut file).map_err(local_io(&path, "cannot be read"))?;
        if found != *expected {
            return Err(wrong_checksum(request.store.file(request.path), &found, expected));
        }
    }
    Ok(CachedFile { file, path, bytes: info.bytes })
}

/// Locks and returns the complete file, if it exists and has the recorded size.
fn find(target: &Path, request: &FileRequest<'_>) -> Result<Option<CachedFile>, StoreError> {
    let file = match File::open(target) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(local_io(target, "cannot be read")(error)),
    };
    file.lock_shared().map_err(local_io(target, "cannot be locked; use a folder of a local disk"))?;
    // The file was deleted before it was locked.
    if !is_same_inode(&file, target)? {
        return Ok(None);
    }
    let bytes = file.metadata().map_err(local_io(target, "cannot be read"))?.len();
    if read_info(target).is_none_or(|info| info.bytes != bytes) || request.expect_bytes(bytes).is_err() {
        // The file is damaged or outdated. Processes that have it open keep the old content.
        fs::remove_file(target).map_err(local_io(target, "cannot be removed"))?;
        return Ok(None);
    }
    // Best effort: without the time of the last use, the file is only evicted earlier.
    let _ = file.set_modified(SystemTime::now());
    Ok(Some(CachedFile { file, path: target.to_owned(), bytes }))
}

fn open_part(path: &Path) -> Result<File, StoreError> {
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    open.map_err(local_io(path, "cannot be created"))
}

/// Returns whether `path` still refers to the open file.
fn is_same_inode(file: &File, path: &Path) -> Result<bool, StoreError> {
    let at_path = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(local_io(path, "cannot be read")(error)),
    };
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let opened = file.metadata().map_err(local_io(path, "cannot be read"))?;
        Ok((opened.dev(), opened.ino()) == (at_path.dev(), at_path.ino()))
    }
    // Elsewhere an open file can be neither deleted nor renamed over.
    #[cfg(not(unix))]
    {
        let _ = (file, at_path);
        Ok(true)
    }
}

/// Reads the recorded size and version of a download. `None` if there is no valid record.
fn read_info(target: &Path) -> Option<FileInfo> {
    let mut text = String::new();
    File::open(target.with_extension(INFO_EXTENSION)).ok()?.take(1 << 16).read_to_string(&mut text).ok()?;
    let (bytes, version) = text.strip_suffix('\n')?.split_once(' ')?;
    let version = version.strip_prefix("version ").map(str::to_owned);
    Some(FileInfo { bytes: bytes.parse().ok()?, version })
}

/// Records the size and version of a download on one line, atomically.
fn write_info(target: &Path, info: &FileInfo) -> Result<(), StoreError> {
    let path = target.with_extension(INFO_EXTENSION);
    let temp_path = target.with_extension("about.new");
    let version =
        info.version.as_ref().map_or("unversioned".to_owned(), |version| format!("version {version}"));
    fs::write(&temp_path, format!("{} {version}\n", info.bytes))
        .map_err(local_io(&temp_path, "cannot be written"))?;
    fs::rename(&temp_path, &path).map_err(local_io(&path, "cannot be replaced"))
}

/// The name of a file in the cache, 32 hexadecimal digits.
fn key(request: &FileRequest<'_>) -> String {
    let mut hasher = Sha256::new();
    for part in [request.store.address(), request.path, request.sha256.as_deref().unwrap_or("")] {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hex(&hasher.finalize()[..16])
}

/// The SHA-256 of a whole file, 64 lower-case hexadecimal digits.
fn digest(file: &mut File) -> io::Result<String> {
    file.rewind()?;
    let (_, sha256) = sha256_of_reader(&mut *file)?;
    file.rewind()?;
    Ok(sha256)
}

fn wrong_checksum(file: String, found: &str, expected: &str) -> StoreError {
    let problem =
        format!("its SHA-256 is {found}, expected {expected}; the file is damaged or a different one");
    StoreError::Unexpected { file, problem }
}
