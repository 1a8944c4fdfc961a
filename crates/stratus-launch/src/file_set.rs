//! Content-addressed files for a target: files that the target already has are not sent again.

use crate::{Error, Result};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use stratus_base::checksum::{sha256_hex, sha256_of_reader};

/// A file of a file set.
#[derive(Clone, Debug, PartialEq)]
pub struct FileEntry {
    /// The path within the folder, joined by `/`.
    pub path: String,
    /// The local path.
    pub source: PathBuf,
    /// The size in bytes.
    pub size: u64,
    /// The SHA-256 of the content.
    pub hash: String,
}

/// Files that form a folder on the target, named by the hash of their contents.
#[derive(Clone, Debug, PartialEq)]
pub struct FileSet {
    /// The parent folder on the target: `program` or `data`.
    pub kind: &'static str,
    /// The files.
    pub files: Vec<FileEntry>,
}

impl FileSet {
    /// Creates a file set from pairs of remote path and local path.
    ///
    /// # Errors
    /// If a file cannot be read, or its name has a control character.
    pub fn from_files(
        kind: &'static str,
        files: impl IntoIterator<Item = (String, PathBuf)>,
    ) -> Result<Self> {
        let mut items = Vec::new();
        for (path, source) in files {
            if path.chars().any(char::is_control) {
                let problem = format!("{}: file name contains a control character", source.display());
                return Err(Error::usage(problem, "rename the file"));
            }
            let file = File::open(&source).map_err(Error::file("read", &source))?;
            let (size, hash) = sha256_of_reader(file).map_err(Error::file("read", &source))?;
            items.push(FileEntry { path, source, size, hash });
        }
        Ok(Self { kind, files: items })
    }

    /// Creates a file set from a folder and everything in it, or from one file. Symbolic links are followed.
    ///
    /// # Errors
    /// See [`FileSet::from_files`].
    pub fn from_path(kind: &'static str, path: &Path) -> Result<Self> {
        let mut files = Vec::new();
        if path.is_dir() {
            collect_files(path, "", 32, &mut files)?;
        } else {
            files.push((name(path)?, path.to_owned()));
        }
        files.sort();
        Self::from_files(kind, files)
    }

    /// The folder within the target's, named by the hash of its content.
    #[must_use]
    pub fn remote_folder(&self) -> String {
        let lines: Vec<String> =
            self.files.iter().map(|item| format!("{} {}\n", item.hash, item.path)).collect();
        let hash = sha256_hex(lines.iter().map(String::as_bytes));
        format!("{}/{}", self.kind, &hash[..32])
    }

    /// The total size in bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().map(|item| item.size).sum()
    }
}

fn name(path: &Path) -> Result<String> {
    let name = path.file_name().and_then(|name| name.to_str());
    let wrong = || Error::usage(format!("{}: file name is not UTF-8", path.display()), "rename the file");
    name.map(str::to_owned).ok_or_else(wrong)
}

fn collect_files(folder: &Path, above: &str, depth: usize, files: &mut Vec<(String, PathBuf)>) -> Result<()> {
    if depth == 0 {
        let problem = format!("{}: folders are nested too deeply or form a cycle", folder.display());
        return Err(Error::usage(problem, "name a folder that contains only the data"));
    }
    for entry in fs::read_dir(folder).map_err(Error::file("read", folder))? {
        let path = entry.map_err(Error::file("read", folder))?.path();
        let named = format!("{above}{}", name(&path)?);
        if path.is_dir() {
            collect_files(&path, &format!("{named}/"), depth - 1, files)?;
        } else if path.is_file() {
            files.push((named, path));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::FileSet;
    use std::fs;

    #[test]
    fn remote_folder_is_named_by_content() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::write(folder.path().join("a/x y"), "1").unwrap();
        fs::write(folder.path().join("b"), "22").unwrap();
        let file_set = FileSet::from_path("data", folder.path()).unwrap();
        assert_eq!(file_set.files.iter().map(|item| item.path.as_str()).collect::<Vec<_>>(), ["a/x y", "b"]);
        assert_eq!(file_set.total_bytes(), 3);
        assert_eq!(
            FileSet::from_path("data", folder.path()).unwrap().remote_folder(),
            file_set.remote_folder()
        );
        fs::write(folder.path().join("b"), "23").unwrap();
        assert_ne!(
            FileSet::from_path("data", folder.path()).unwrap().remote_folder(),
            file_set.remote_folder()
        );
    }
}
