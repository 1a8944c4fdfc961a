//! A folder in memory for parsers that read a path.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tempfile::TempDir;

static FOLDER: OnceLock<TempDir> = OnceLock::new();

/// The folder of this process, in `/dev/shm` if there is one.
pub fn folder() -> &'static Path {
    FOLDER
        .get_or_init(|| {
            let in_memory = Path::new("/dev/shm");
            let made = if in_memory.is_dir() { TempDir::new_in(in_memory) } else { TempDir::new() };
            made.expect("the scratch folder can be created")
        })
        .path()
}

/// Writes a file of the folder, whose parents are created.
pub fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder().join(name);
    let written = std::fs::write(&path, bytes).or_else(|_| {
        std::fs::create_dir_all(path.parent().unwrap_or(folder()))?;
        std::fs::write(&path, bytes)
    });
    written.expect("the scratch folder can be written");
    path
}
