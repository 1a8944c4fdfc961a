//! Files: errors about one, text of one in messages, durable renames.

use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The longest text of a file that a message shows, in characters.
const LONGEST: usize = 120;

/// An error about one file: which, what is wrong, what to do.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct FileError<P: Error + 'static> {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    #[source]
    pub problem: P,
}

impl<P: Error + 'static> FileError<P> {
    /// The error of the file at `path`.
    pub fn new(path: &Path, problem: P) -> Self {
        Self { path: path.to_owned(), problem }
    }
}

/// Text of a file, fit for a terminal: without control characters and not longer than a line.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut out: String = text.chars().flat_map(char::escape_debug).take(LONGEST).collect();
    if out.chars().count() == LONGEST {
        out.push('…');
    }
    out
}

/// Makes renames in a folder durable, as far as the system can: not every file system lets a folder be
/// synced.
pub fn sync_folder(folder: &Path) {
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn control_characters_are_escaped_and_long_text_is_cut() {
        assert_eq!(printable("conv1\u{1b}[31m\n"), "conv1\\u{1b}[31m\\n");
        assert_eq!(printable(&"a".repeat(119)), "a".repeat(119));
        assert_eq!(printable(&"a".repeat(200)), format!("{}…", "a".repeat(120)));
    }
}
