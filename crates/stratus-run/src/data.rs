//! `data.json`: the state of the training data set at the start of the run.
//!
//! On resume it is compared with the current data set ([`DataRecord::differences`]). Paths are relative to
//! the root of the data set, so that a copy elsewhere is the same data set.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Result, atomic};

/// The version of the format. Files with a different version are not compared.
const VERSION: u32 = 1;
/// Maximum number of classes that a message lists.
const MAX_LISTED_CLASSES: usize = 8;

/// The version of a `data.json`, whose other content may be of another version.
#[derive(Deserialize)]
struct Header {
    version: Option<u64>,
}

/// The content of `data.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataRecord {
    version: u32,
    /// The data set's name.
    pub name: String,
    /// The classes, in order.
    pub classes: Vec<String>,
    /// Iterations per epoch.
    pub epoch_iterations: u64,
    /// The training split.
    pub training: SplitRecord,
    /// The validation split, evaluated after each epoch.
    pub validation: SplitRecord,
}

/// A split of a data set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitRecord {
    /// The number of images.
    pub images: u64,
    /// SHA-256 of the labels of all images, in order.
    pub labels_sha256: String,
    /// SHA-256 of the pixels, outlines or positions that the data set keeps in memory.
    pub memory_sha256: String,
    /// The folders with files of the split, by path.
    pub folders: Vec<FolderRecord>,
    /// Its files, by path: all files, or only those whose content was hashed if the data set is large.
    pub files: Vec<FileRecord>,
}

/// The files of one folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderRecord {
    /// The path below the data set's root.
    pub path: String,
    /// The number of files.
    pub files: u64,
    /// Total length of the files.
    pub bytes: u64,
    /// SHA-256 of their names and lengths, in order.
    pub sha256: String,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// The path below the data set's root.
    pub path: String,
    /// The length; `None` if the file was missing.
    pub bytes: Option<u64>,
    /// SHA-256 of the content, if it was hashed.
    pub sha256: Option<String>,
}

impl DataRecord {
    /// The record of a data set.
    #[must_use]
    pub fn new(
        name: &str,
        classes: Vec<String>,
        epoch_iterations: u64,
        [training, validation]: [SplitRecord; 2],
    ) -> Self {
        Self { version: VERSION, name: name.to_owned(), classes, epoch_iterations, training, validation }
    }

    /// Reads `data.json`; `None` if it is missing or has a different version.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        if !path.exists() {
            return Ok(None);
        }
        if atomic::read_json::<Header>(path)?.version != Some(u64::from(VERSION)) {
            return Ok(None);
        }
        atomic::read_json(path).map(Some)
    }

    /// Replaces `data.json`.
    pub fn write(&self, path: &Path) -> Result<()> {
        atomic::write_json(path, self)
    }

    /// The differences to the current data set, most important first.
    #[must_use]
    pub fn differences(&self, now: &Self) -> Vec<String> {
        let mut found = Vec::new();
        if self.name != now.name {
            found.push(format!("data set: {} → {}", self.name, now.name));
        }
        found.extend(class_difference(&self.classes, &now.classes));
        let parts = [("training", &self.training, &now.training)];
        let parts = parts.into_iter().chain([("validation", &self.validation, &now.validation)]);
        for (name, before, now) in parts.clone().filter(|(_, before, now)| before.images != now.images) {
            found.push(format!("{name} images: {} → {}", before.images, now.images));
        }
        found.extend(iterations_difference(self.epoch_iterations, now.epoch_iterations));
        for (name, before, now) in parts {
            before.add_differences(now, name, &mut found);
        }
        found
    }
}

/// The difference between two lists of classes; `None` if they are equal.
#[must_use]
pub fn class_difference(before: &[String], now: &[String]) -> Option<String> {
    if before == now {
        return None;
    }
    if before.len().max(now.len()) <= MAX_LISTED_CLASSES {
        return Some(format!("classes: {} → {}", before.join(", "), now.join(", ")));
    }
    let at = before.iter().zip(now).position(|(before, now)| before != now);
    let at = at.unwrap_or(before.len().min(now.len()));
    let name = |classes: &[String]| classes.get(at).cloned().unwrap_or_else(|| "none".to_owned());
    Some(format!(
        "classes: {} → {}; the first difference is class {at}: {} → {}",
        before.len(),
        now.len(),
        name(before),
        name(now)
    ))
}

/// The difference between two numbers of iterations per epoch; `None` if they are equal.
#[must_use]
pub fn iterations_difference(before: u64, now: u64) -> Option<String> {
    (before != now).then(|| format!("iterations per epoch: {before} → {now}"))
}

impl SplitRecord {
    /// Returns whether all files are listed.
    fn lists_all(&self) -> bool {
        self.folders.iter().map(|folder| folder.files).sum::<u64>() == self.files.len() as u64
    }

    fn add_differences(&self, now: &Self, name: &str, found: &mut Vec<String>) {
        let before = found.len();
        self.add_file_differences(now, name, found);
        if found.len() == before || !self.lists_all() || !now.lists_all() {
            self.add_folder_differences(now, found);
        }
        if found.len() > before || self.images != now.images {
            return;
        }
        if self.labels_sha256 != now.labels_sha256 {
            found.push(format!("labels of the {name} images have changed"));
        }
        if self.memory_sha256 != now.memory_sha256 {
            found.push(format!("pixels or annotations of the {name} images have changed"));
        }
    }

    fn add_file_differences(&self, now: &Self, name: &str, found: &mut Vec<String>) {
        let by_path =
            |part: &'_ Self| part.files.iter().cloned().map(|file| (file.path.clone(), file)).collect();
        let (before, after): (BTreeMap<_, _>, BTreeMap<_, _>) = (by_path(self), by_path(now));
        let is_whole = self.lists_all() && now.lists_all();
        let removed = self.folders_missing_from(now);
        found.extend(removed.values().map(|(path, files)| format!("{path}/ was removed ({files})")));
        for (path, FileRecord { bytes, sha256, .. }) in &before {
            let length = |bytes: u64| format!("{bytes} bytes");
            match after.get(path) {
                None if removed.contains_key(folder_of(path)) => {}
                None if is_whole => found.push(format!("{path} is no longer a {name} file")),
                // Not all files of a large data set are listed.
                None => {}
                Some(file) if file.bytes != *bytes => found.push(format!(
                    "{path} was {}, now {}",
                    bytes.map_or("missing".to_owned(), length),
                    file.bytes.map_or("missing".to_owned(), |bytes| bytes.to_string())
                )),
                Some(file) if sha256.is_some() && file.sha256.is_some() && file.sha256 != *sha256 => {
                    found.push(format!("{path} has the same length, but different content"));
                }
                Some(_) => {}
            }
        }
        let added = now.folders_missing_from(self);
        found.extend(added.values().map(|(path, files)| format!("{path}/ is new ({files})")));
        if is_whole {
            let is_new = |path: &&String| !before.contains_key(*path) && !added.contains_key(folder_of(path));
            found.extend(after.keys().filter(is_new).map(|path| format!("{path} is a new {name} file")));
        }
    }

    /// The folders that are missing from `other`, by path, with the displayed path and number of files.
    fn folders_missing_from(&self, other: &Self) -> BTreeMap<&str, (&str, String)> {
        let is_in_other = |path: &str| other.folders.iter().any(|folder| folder.path == path);
        let shown = |files: u64| format!("{files} file{}", if files == 1 { "" } else { "s" });
        let missing =
            self.folders.iter().filter(|folder| !folder.path.is_empty() && !is_in_other(&folder.path));
        missing.map(|folder| (folder.path.as_str(), (folder.path.as_str(), shown(folder.files)))).collect()
    }

    /// Adds the differences between folders, for data sets whose files are not all listed.
    fn add_folder_differences(&self, now: &Self, found: &mut Vec<String>) {
        let after: BTreeMap<&str, &FolderRecord> =
            now.folders.iter().map(|folder| (folder.path.as_str(), folder)).collect();
        let both = self.folders.iter().filter_map(|folder| Some((folder, *after.get(folder.path.as_str())?)));
        for (folder, now) in both.filter(|(folder, now)| folder.sha256 != now.sha256) {
            let path = if folder.path.is_empty() { "the data set's folder" } else { &folder.path };
            if (now.files, now.bytes) == (folder.files, folder.bytes) {
                found.push(format!("{path}: names, lengths or order of its files have changed"));
            } else {
                found.push(format!(
                    "{path}: {} files of {} bytes → {} of {}",
                    folder.files, folder.bytes, now.files, now.bytes
                ));
            }
        }
    }
}

/// The folder of a file; empty for the root.
fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn part(files: &[(&str, u64, &str)]) -> SplitRecord {
        let file = |&(path, bytes, sha256): &(&str, u64, &str)| FileRecord {
            path: path.to_owned(),
            bytes: Some(bytes),
            sha256: Some(sha256.to_owned()),
        };
        let folder = FolderRecord {
            path: "train/cat".to_owned(),
            files: files.len() as u64,
            bytes: files.iter().map(|(_, bytes, _)| bytes).sum(),
            sha256: format!("{files:?}"),
        };
        SplitRecord {
            images: files.len() as u64,
            folders: vec![folder],
            files: files.iter().map(file).collect(),
            ..SplitRecord::default()
        }
    }

    fn record(training: SplitRecord) -> DataRecord {
        DataRecord::new("folder", names(&["cat", "dog"]), 6, [training, SplitRecord::default()])
    }

    #[test]
    fn lists_every_difference() {
        let files = [("train/cat/0.png", 10, "a"), ("train/cat/1.png", 20, "b")];
        let before = record(part(&files));
        assert!(before.differences(&before).is_empty());
        let differences = |files: &[(&str, u64, &str)]| before.differences(&record(part(files)));
        assert_eq!(
            differences(&[files[0]]),
            ["training images: 2 → 1", "train/cat/1.png is no longer a training file"]
        );
        assert_eq!(
            differences(&[files[0], ("train/cat/2.png", 20, "b")]),
            ["train/cat/1.png is no longer a training file", "train/cat/2.png is a new training file"]
        );
        assert_eq!(
            differences(&[("train/cat/0.png", 11, "a"), files[1]]),
            ["train/cat/0.png was 10 bytes, now 11"]
        );
        assert_eq!(
            differences(&[files[0], ("train/cat/1.png", 20, "c")]),
            ["train/cat/1.png has the same length, but different content"]
        );
        assert_eq!(
            differences(&[files[1], files[0]]),
            ["train/cat: names, lengths or order of its files have changed"]
        );
        let mut now = before.clone();
        now.classes = names(&["dog", "zebra"]);
        now.epoch_iterations = 9;
        now.training.labels_sha256 = "other".to_owned();
        now.validation.memory_sha256 = "other".to_owned();
        assert_eq!(
            before.differences(&now),
            [
                "classes: cat, dog → dog, zebra",
                "iterations per epoch: 6 → 9",
                "labels of the training images have changed",
                "pixels or annotations of the validation images have changed"
            ]
        );
    }

    #[test]
    fn compares_folders_if_files_are_not_listed() {
        let large = |files, bytes, sha256: &str| {
            let mut part = part(&[("train/cat/7.png", 20, "b")]);
            let folder = &mut part.folders[0];
            (folder.files, folder.bytes, folder.sha256) = (files, bytes, sha256.to_owned());
            record(part)
        };
        let before = large(1300, 1000, "a");
        assert_eq!(
            before.differences(&large(1299, 990, "b")),
            ["train/cat: 1300 files of 1000 bytes → 1299 of 990"]
        );
        assert_eq!(
            before.differences(&large(1300, 1000, "b")),
            ["train/cat: names, lengths or order of its files have changed"]
        );
        let mut now = large(1300, 1000, "a");
        now.training.files[0].sha256 = Some("c".to_owned());
        assert_eq!(before.differences(&now), ["train/cat/7.png has the same length, but different content"]);
    }

    #[test]
    fn names_only_the_first_difference_of_many_classes() {
        let many = |count: u32| (0..count).map(|class| format!("n{class}")).collect::<Vec<_>>();
        let mut now = many(20);
        now[17] = "other".to_owned();
        assert_eq!(
            class_difference(&many(20), &now).unwrap(),
            "classes: 20 → 20; the first difference is class 17: n17 → other"
        );
        assert_eq!(
            class_difference(&many(20), &many(19)).unwrap(),
            "classes: 20 → 19; the first difference is class 19: n19 → none"
        );
    }

    #[test]
    fn survives_a_round_trip_and_ignores_other_versions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.json");
        assert_eq!(DataRecord::read(&path).unwrap(), None);
        let record = record(part(&[("train/cat/0.png", 10, "a")]));
        record.write(&path).unwrap();
        assert_eq!(DataRecord::read(&path).unwrap(), Some(record));
        std::fs::write(&path, "{\"version\": 2}").unwrap();
        assert_eq!(DataRecord::read(&path).unwrap(), None);
        std::fs::write(&path, "{\"version\": 1}").unwrap();
        assert!(DataRecord::read(&path).unwrap_err().to_string().contains("data.json is damaged"));
    }
}
