//! Errors about files, text of files in messages, and durable renames.

use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};

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

/// Makes renames in a folder durable. Errors are ignored, since not every file system supports syncing
/// folders.
pub fn sync_folder(folder: &Path) {
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn escapes_control_characters_and_shortens_text() {
        assert_eq!(printable("conv1\u{1b}[31m\n"), "conv1\\u{1b}[31m\\n");
        assert_eq!(printable(&"a".repeat(119)), "a".repeat(119));
        assert_eq!(printable(&"a".repeat(200)), format!("{}…", "a".repeat(120)));
    }
}
