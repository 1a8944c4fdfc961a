//! Files that are brought to a target: each by its SHA-256, so that what is there is not sent again.

use crate::{Error, Result};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use stratus_base::checksum::{sha256_hex, sha256_of_reader};

/// A file of a parcel.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// Its path in the parcel's folder, parts joined by `/`.
    pub path: String,
    /// Where it lies here.
    pub source: PathBuf,
    /// Bytes.
    pub size: u64,
    /// The SHA-256 of its bytes.
    pub hash: String,
}

/// Files that make a folder there, which is named by what is in them.
#[derive(Clone, Debug, PartialEq)]
pub struct Parcel {
    /// What it is: `program`, `data`.
    pub kind: &'static str,
    /// Its files.
    pub items: Vec<Item>,
}

impl Parcel {
    /// Of files with the paths that they have there.
    ///
    /// # Errors
    /// Where one cannot be read, or has a name that a line cannot hold.
    pub fn of_files(kind: &'static str, files: impl IntoIterator<Item = (String, PathBuf)>) -> Result<Self> {
        let mut items = Vec::new();
        for (path, source) in files {
            if path.chars().any(char::is_control) {
                let problem = format!("{}: the name has a control character", source.display());
                return Err(Error::usage(problem, "rename the file"));
            }
            let file = File::open(&source).map_err(Error::file("read", &source))?;
            let (size, hash) = sha256_of_reader(file).map_err(Error::file("read", &source))?;
            items.push(Item { path, source, size, hash });
        }
        Ok(Self { kind, items })
    }

    /// Of a folder with all that is in it, or of one file. Links are followed.
    ///
    /// # Errors
    /// As [`Parcel::of_files`].
    pub fn of_path(kind: &'static str, path: &Path) -> Result<Self> {
        let mut files = Vec::new();
        if path.is_dir() {
            search(path, "", 32, &mut files)?;
        } else {
            files.push((name(path)?, path.to_owned()));
        }
        files.sort();
        Self::of_files(kind, files)
    }

    /// The folder below the target's, which what is in it names.
    #[must_use]
    pub fn folder(&self) -> String {
        let lines: Vec<String> =
            self.items.iter().map(|item| format!("{} {}\n", item.hash, item.path)).collect();
        let hash = sha256_hex(lines.iter().map(String::as_bytes));
        format!("{}/{}", self.kind, &hash[..32])
    }

    /// Bytes in all.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.items.iter().map(|item| item.size).sum()
    }
}

fn name(path: &Path) -> Result<String> {
    let name = path.file_name().and_then(|name| name.to_str());
    let wrong = || Error::usage(format!("{}: the name is no text", path.display()), "rename the file");
    name.map(str::to_owned).ok_or_else(wrong)
}

fn search(folder: &Path, above: &str, depth: usize, files: &mut Vec<(String, PathBuf)>) -> Result<()> {
    if depth == 0 {
        let problem = format!("{}: folders are too deep, or in a circle", folder.display());
        return Err(Error::usage(problem, "name a folder that holds the data alone"));
    }
    for entry in fs::read_dir(folder).map_err(Error::file("read", folder))? {
        let path = entry.map_err(Error::file("read", folder))?.path();
        let named = format!("{above}{}", name(&path)?);
        if path.is_dir() {
            search(&path, &format!("{named}/"), depth - 1, files)?;
        } else if path.is_file() {
            files.push((named, path));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Parcel;
    use std::fs;

    #[test]
    fn the_folder_is_named_by_what_is_in_it() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::write(folder.path().join("a/x y"), "1").unwrap();
        fs::write(folder.path().join("b"), "22").unwrap();
        let parcel = Parcel::of_path("data", folder.path()).unwrap();
        assert_eq!(parcel.items.iter().map(|item| item.path.as_str()).collect::<Vec<_>>(), ["a/x y", "b"]);
        assert_eq!(parcel.bytes(), 3);
        assert_eq!(Parcel::of_path("data", folder.path()).unwrap().folder(), parcel.folder());
        fs::write(folder.path().join("b"), "23").unwrap();
        assert_ne!(Parcel::of_path("data", folder.path()).unwrap().folder(), parcel.folder());
    }
}
