//! Errors about files, text of files in messages, reading of bounded files, and durable renames.

use std::error::Error;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::text;

/// The maximum length of [`printable`] text, in characters.
const MAX_PRINTABLE_CHARS: usize = 120;

/// An error about a file, with its path.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct FileError<P: Error + 'static> {
    /// The path of the file.
    pub path: PathBuf,
    /// The problem.
    #[source]
    pub problem: P,
}

impl<P: Error + 'static> FileError<P> {
    /// Creates the error of the file at `path`.
    pub fn new(path: &Path, problem: P) -> Self {
        Self { path: path.to_owned(), problem }
    }
}

/// Escapes control characters of a text from a file, and shortens it to about a line.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut out: String = text.chars().flat_map(char::escape_debug).take(MAX_PRINTABLE_CHARS).collect();
    if out.chars().count() == MAX_PRINTABLE_CHARS {
        out.push('…');
    }
    out
}

/// Reads a file of at most `max_bytes` bytes.
///
/// # Errors
/// If it cannot be read, or is larger: [`io::ErrorKind::InvalidData`]. An endless file is read only up to the
/// limit.
pub fn read_at_most(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut bytes = Vec::new();
    if length <= max_bytes {
        // The length may be wrong for special files. If memory is short, this is an error, not an abort.
        bytes.try_reserve_exact(usize::try_from(length.saturating_add(1)).unwrap_or(usize::MAX))?;
        file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    }
    if length.max(bytes.len() as u64) > max_bytes {
        let problem = format!("it is larger than {}", text::bytes(max_bytes));
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(bytes)
}

/// Reads a text of at most `max_bytes` bytes.
///
/// # Errors
/// As [`read_at_most`], and if it is not UTF-8.
pub fn read_text_at_most(path: &Path, max_bytes: u64) -> io::Result<String> {
    String::from_utf8(read_at_most(path, max_bytes)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not a text file (not UTF-8)"))
}

/// Makes renames in a folder durable. Errors are ignored, since not every file system supports syncing
/// folders.
pub fn sync_folder(folder: &Path) {
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
}

#[cfg(test)]
mod tests {
    use super::{printable, read_at_most, read_text_at_most};
    use std::io::ErrorKind;
    use std::path::Path;

    #[test]
    fn a_file_over_the_limit_is_refused_before_it_is_read() {
        // The file of this test, and a file without end.
        let this = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/file.rs");
        let bytes = read_at_most(&this, 1 << 20).unwrap();
        let length = bytes.len() as u64;
        assert_eq!(read_text_at_most(&this, length).unwrap().into_bytes(), bytes);
        assert_eq!(read_at_most(&this, length - 1).unwrap_err().kind(), ErrorKind::InvalidData);
        if cfg!(unix) {
            let endless = read_at_most(Path::new("/dev/zero"), 1 << 16).unwrap_err();
            assert_eq!(endless.to_string(), "it is larger than 64 KiB");
        }
    }

    #[test]
    fn escapes_control_characters_and_shortens_text() {
        assert_eq!(printable("conv1\u{1b}[31m\n"), "conv1\\u{1b}[31m\\n");
        assert_eq!(printable(&"a".repeat(119)), "a".repeat(119));
        assert_eq!(printable(&"a".repeat(200)), format!("{}…", "a".repeat(120)));
    }
}
