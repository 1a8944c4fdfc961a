//! Atomic replacement of files: a reader, or a later process, sees either the old or the new content.
//!
//! The bytes are written to a temporary file in the same folder, which is synced and renamed; the folder is
//! synced last, so that the rename also survives a power cut. A killed writer leaves a temporary file, which
//! [`clean`] removes. Only the holder of the run's lock may call it, since the temporary file of a live
//! writer looks the same.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use stratus_base::read_at_most;

use crate::{Error, Result};

/// The maximum size of a JSON file. Its values take up to ten times its size in memory.
pub(crate) const MAX_JSON_BYTES: u64 = 16 << 20;
const TEMPORARY_SUFFIX: &str = ".tmp";

/// Replaces `path` by `bytes`.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    write_with(path, |out| out.write_all(bytes).map_err(Error::io("write", path)))
}

/// Replaces `path` by the output of `content`, which is streamed and need not fit in memory.
///
/// # Errors
/// If `content` fails or the file cannot be written.
pub fn write_with<E: From<Error>>(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(), E> {
    let temporary = temporary_path(path)?;
    let written = fill(&temporary, path, content)
        .and_then(|()| Ok(fs::rename(&temporary, path).map_err(Error::io("replace", path))?));
    if let Err(error) = written {
        // If the removal fails, the next holder of the lock removes the file.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    Ok(sync_folder(parent(path))?)
}

/// Replaces `path` by `value` as indented JSON with a final newline.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|e| Error::invalid(path, e.to_string()))?;
    text.push(b'\n');
    write(path, &text)
}

/// Reads a file written by [`write_json`], of at most 16 MiB.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes = read_at_most(path, MAX_JSON_BYTES).map_err(Error::io("read", path))?;
    serde_json::from_slice(&bytes).map_err(|error| {
        Error::damaged(path, unexpected_json(&error), "restore it from a copy, or remove it")
    })
}

/// Reads a JSON file; `None` if there is none.
///
/// # Errors
/// As [`read_json`].
pub fn read_json_if_exists<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    if path.exists() { read_json(path).map(Some) } else { Ok(None) }
}

/// The reason in [`Error::Damaged`] for a file with other JSON than expected.
pub(crate) fn unexpected_json(error: &serde_json::Error) -> String {
    format!("not the expected JSON ({})", json_problem(error))
}

/// The reason why a JSON document is damaged, with its place. The message of `serde_json` may name types of
/// the program, which mean nothing to its users.
#[must_use]
pub fn json_problem(error: &serde_json::Error) -> String {
    let place = format!("line {}, column {}", error.line(), error.column());
    let text = error.to_string();
    let missing = text.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
    match (error.classify(), missing) {
        (Category::Data, Some(key)) => format!("the key `{key}` is missing"),
        (Category::Data, None) => format!("another value was expected at {place}"),
        (Category::Eof, _) => format!("it ends at {place}"),
        (Category::Syntax, _) => format!("no JSON at {place}"),
        (Category::Io, _) => text,
    }
}

/// Makes creations, renames and removals in `folder` survive a power cut.
pub fn sync_folder(folder: &Path) -> Result<()> {
    // Only Unix can open and sync a folder; elsewhere, the rename must suffice.
    if cfg!(unix) {
        File::open(folder).and_then(|f| f.sync_all()).map_err(Error::io("sync the folder", folder))?;
    }
    Ok(())
}

/// Removes what killed writers and failed removals left in `folder`, and returns the paths.
///
/// Call it only while holding the run's lock. A folder that does not exist counts as clean.
pub fn clean(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::io("read the folder", folder)(e)),
    };
    let mut removed = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::io("read the folder", folder))?;
        if !is_temporary(&entry.file_name()) {
            continue;
        }
        let path = entry.path();
        let kind = entry.file_type().map_err(Error::io("inspect", &path))?;
        if kind.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }
            .map_err(Error::io("remove", &path))?;
        removed.push(path);
    }
    removed.sort();
    Ok(removed)
}

/// A path in the folder of `path` that no other writer uses: `.<name>.<pid>.<count>.tmp`.
pub(crate) fn temporary_path(path: &Path) -> Result<PathBuf> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().ok_or_else(|| Error::invalid(path, "the path has no file name"))?;
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!(".{}.{}.{count}{TEMPORARY_SUFFIX}", name.to_string_lossy(), std::process::id());
    Ok(parent(path).join(name))
}

/// Returns whether this is the name of a temporary file.
#[must_use]
pub fn is_temporary(name: &std::ffi::OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with('.') && name.ends_with(TEMPORARY_SUFFIX)
}

/// The folder that contains `path`.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Writes a new file and syncs it.
pub(crate) fn write_synced<E: From<Error>>(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(), E> {
    fill(path, path, content)
}

/// Writes a new file and syncs it; `final_path` is its path in messages.
fn fill<E: From<Error>>(
    path: &Path,
    final_path: &Path,
    content: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(), E> {
    let mut file = BufWriter::new(FaultableFile::create(path).map_err(Error::io("create", final_path))?);
    content(&mut file)?;
    file.flush().map_err(Error::io("write", final_path))?;
    Ok(file.get_ref().sync().map_err(Error::io("sync", final_path))?)
}

/// A new file. Tests can make its writes fail like those on a full disk.
pub(crate) struct FaultableFile(File);

impl FaultableFile {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        fault::consume(0)?;
        File::create_new(path).map(Self)
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        fault::consume(0)?;
        self.0.sync_all()
    }
}

impl Write for FaultableFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        fault::consume(bytes.len())?;
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(not(test))]
pub(crate) mod fault {
    #[inline]
    pub(crate) fn consume(_bytes: usize) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod fault {
    //! Simulates a disk that is full after a number of bytes, for this thread's writes.

    use std::cell::Cell;
    use std::io;

    thread_local! { static FREE: Cell<Option<usize>> = const { Cell::new(None) }; }

    pub(crate) fn consume(bytes: usize) -> io::Result<()> {
        FREE.with(|free| match free.get() {
            None => Ok(()),
            Some(n) if n > bytes => {
                free.set(Some(n - bytes));
                Ok(())
            }
            Some(_) => {
                free.set(Some(0));
                Err(io::Error::from(io::ErrorKind::StorageFull))
            }
        })
    }

    pub(crate) fn with_free_bytes<T>(bytes: usize, f: impl FnOnce() -> T) -> T {
        FREE.with(|free| free.set(Some(bytes)));
        let result = f();
        FREE.with(|free| free.set(None));
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_the_file_and_leaves_no_temporary() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn json_file_beyond_the_limit_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("summary.json");
        File::create(&path).unwrap().set_len(MAX_JSON_BYTES + 1).unwrap();
        let error = read_json::<serde_json::Value>(&path).unwrap_err().to_string();
        assert_eq!(error, format!("cannot read {}: it is larger than 16 MiB", path.display()));
    }

    #[test]
    fn streamed_content_is_written_completely_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.onnx");
        let fill = |out: &mut dyn Write| {
            out.write_all(b"one").map_err(|e| Error::invalid(Path::new("a"), e.to_string()))
        };
        write_with(&path, fill).unwrap();
        let fail = |out: &mut dyn Write| {
            fill(out)?;
            Err(Error::invalid(Path::new("a"), "no"))
        };
        assert!(write_with(&path, fail).is_err());
        assert!(fault::with_free_bytes(2, || write_with(&path, fill)).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn full_disk_keeps_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        write(&path, b"one").unwrap();
        let error = fault::with_free_bytes(2, || write(&path, b"longer")).unwrap_err().to_string();
        assert!(error.contains("a.json") && error.contains("free space"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn clean_removes_only_temporary_files() {
        let folder = tempfile::tempdir().unwrap();
        let keep = folder.path().join("a.json");
        write(&keep, b"one").unwrap();
        fs::write(temporary_path(&keep).unwrap(), b"half").unwrap();
        let half = temporary_path(&folder.path().join("0000000001")).unwrap();
        fs::create_dir(&half).unwrap();
        fs::write(half.join("weights"), b"w").unwrap();
        assert_eq!(clean(folder.path()).unwrap().len(), 2);
        assert!(keep.exists() && !half.exists());
        assert!(clean(&folder.path().join("absent")).unwrap().is_empty());
    }
}
