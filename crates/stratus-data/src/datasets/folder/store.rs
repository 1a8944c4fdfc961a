//! Storage of a data set folder: on disk, or in a tar or zip archive.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::index::{IndexFull, SampleIndex};
use super::packed::Packed;
use super::split_folders::{MAX_LISTED_CLASSES, find_split_folder, folder_names, is_split_folder};
use crate::archive::Found;
use crate::dataset::{FileDetail, Scratch, StoredFile};
use crate::datasets::files::{self, FileCallback, is_hidden};
use crate::datasets::split::Split;
use crate::decode::{FORMAT_BYTES, looks_like_image};
use crate::error::DataError;
use crate::ignored_files::IgnoredFiles;
use crate::images::{has_image_extension, is_image};

/// A folder with the files of a data set. Paths are relative to it and separated by `/`; the empty path is
/// the folder itself.
#[derive(Debug)]
pub(super) struct FolderStorage {
    root: PathBuf,
    location: Location,
    /// The folder of the indexed split.
    indexed: String,
    /// Files in the folders of its classes that are no images.
    ignored_files: IgnoredFiles,
}

/// The location of the files.
#[derive(Debug)]
enum Location {
    Disk,
    Archive(Box<Packed>),
}

fn unreadable(path: &Path) -> impl Fn(io::Error) -> DataError + '_ {
    |cause| DataError::Unreadable { path: path.to_owned(), cause }
}

fn invalid(path: &Path, problem: impl Into<String>) -> DataError {
    DataError::Invalid { path: path.to_owned(), problem: problem.into() }
}

fn too_large(path: &Path) -> impl Fn(IndexFull) -> DataError + '_ {
    |_| invalid(path, "more than 4,294,967,295 images, or bytes of file names")
}

impl FolderStorage {
    /// Opens a folder, or an archive, whose headers are read.
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let location = match fs::metadata(path).map_err(unreadable(path))? {
            metadata if metadata.is_dir() => Location::Disk,
            metadata if metadata.is_file() => Location::Archive(Box::new(Packed::open(path)?)),
            _ => return Err(invalid(path, "neither a folder nor a file")),
        };
        Ok(Self {
            root: path.to_owned(),
            location,
            indexed: String::new(),
            ignored_files: IgnoredFiles::default(),
        })
    }

    /// The path of a file or folder for messages, including the path in the archive.
    pub(super) fn display_path(&self, path: &str) -> PathBuf {
        let prefix = match &self.location {
            Location::Disk => "",
            Location::Archive(packed) => packed.prefix(),
        };
        let parts = [prefix, path].into_iter().filter(|part| !part.is_empty());
        parts.fold(self.root.clone(), |path, part| path.join(part))
    }

    /// The path on disk.
    fn on_disk(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }

    /// The visible names in a folder, sorted.
    fn visible_names(&self, folder: &str) -> Result<Vec<String>, DataError> {
        let mut names = Vec::new();
        match &self.location {
            Location::Disk => {
                let path = self.on_disk(folder);
                for entry in fs::read_dir(&path).map_err(unreadable(&path))? {
                    let name = entry.map_err(unreadable(&path))?.file_name();
                    if !is_hidden(name.as_encoded_bytes()) {
                        let name = name.into_string();
                        names.push(name.map_err(|name| not_utf8(&path.join(name)))?);
                    }
                }
            }
            Location::Archive(packed) => {
                let not_a_folder = || invalid(&self.display_path(folder), "not a folder");
                let found =
                    packed.find(folder).map_err(|problem| invalid(&self.display_path(folder), problem))?;
                let Some(Found::Folder(inner)) = found else { return Err(not_a_folder()) };
                for name in packed.names(inner).filter(|name| !is_hidden(name)) {
                    let text = std::str::from_utf8(name).map_err(|_| {
                        not_utf8(&self.display_path(folder).join(String::from_utf8_lossy(name).as_ref()))
                    })?;
                    names.push(text.to_owned());
                }
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Returns whether a path is a folder, following links.
    fn is_folder(&self, path: &str) -> bool {
        match &self.location {
            Location::Disk => self.on_disk(path).is_dir(),
            Location::Archive(packed) => matches!(packed.find(path), Ok(Some(Found::Folder(_)))),
        }
    }

    /// Returns whether a path exists, following links.
    ///
    /// # Errors
    ///
    /// If a link is broken.
    fn exists(&self, path: &str) -> Result<bool, DataError> {
        match &self.location {
            Location::Disk => {
                let path = self.on_disk(path);
                files::reject_dead_link(&path)?;
                Ok(path.exists())
            }
            Location::Archive(packed) => match packed.find(path) {
                Ok(found) => Ok(found.is_some()),
                Err(problem) => Err(invalid(&self.display_path(path), problem)),
            },
        }
    }

    /// The names of the folders in a folder, sorted. Files are ignored. Links are followed; a broken link is
    /// an error if its name is `needed`.
    fn folders_in(&self, folder: &str, needed: fn(&str) -> bool) -> Result<Vec<String>, DataError> {
        let mut folders = Vec::new();
        for name in self.visible_names(folder)? {
            let path = join(folder, &name);
            if self.is_folder(&path) {
                folders.push(name);
            } else if needed(&name) {
                self.exists(&path)?;
            }
        }
        Ok(folders)
    }

    /// Returns whether a folder has a file with an image's name.
    pub(super) fn has_images(&self, folder: &str) -> bool {
        let names = self.visible_names(folder).unwrap_or_default();
        names.iter().any(|name| is_image(Path::new(name)))
    }

    /// Returns whether the data set holds folders of images, directly or in a split folder.
    pub(super) fn looks_like_class_folder(&self) -> bool {
        let folders = |folder: &str| self.folders_in(folder, |_| false).unwrap_or_default();
        folders("").iter().any(|folder| {
            let in_split = || folders(folder).iter().any(|class| self.has_images(&join(folder, class)));
            self.has_images(folder) || is_split_folder(folder) && in_split()
        })
    }

    /// The folder of a split.
    pub(super) fn split_folder(&self, split: Split) -> Result<String, DataError> {
        let folders = self.folders_in("", is_split_folder)?;
        let folder = find_split_folder(&folders, split).map(str::to_owned);
        folder.ok_or_else(|| self.missing_split_error(&folders, split))
    }

    /// The error for a missing split folder, with a hint.
    fn missing_split_error(&self, folders: &[String], split: Split) -> DataError {
        let train = find_split_folder(folders, Split::Train);
        let mut classes: Vec<&String> = folders.iter().filter(|folder| !is_split_folder(folder)).collect();
        classes.sort_unstable();
        let quoted = |names: &[&str]| format!("`{}`", names.join("`, `"));
        let expected = match folder_names(split) {
            [one, ..] if split == Split::Train => format!("`{one}`"),
            several => quoted(several),
        };
        let missing_splits = |found: String| DataError::MissingSplits {
            root: self.root.clone(),
            found,
            divided: "each class",
            remedy: "move the images to train/<class>/ and val/<class>/",
        };
        match train {
            Some(train) => missing_splits(format!("found `{train}`, but no folder {expected}")),
            None if classes.len() == folders.len() && classes.iter().any(|class| self.has_images(class)) => {
                let listed = classes.iter().take(MAX_LISTED_CLASSES).map(|class| class.as_str());
                let listed: Vec<&str> = listed.collect();
                let more = if classes.len() > listed.len() { ", …" } else { "" };
                let (count, plural) = (classes.len(), if classes.len() == 1 { "" } else { "s" });
                missing_splits(format!(
                    "found {count} class folder{plural} ({}{more}), but no folder {expected}",
                    listed.join(", ")
                ))
            }
            None if folders.is_empty() && self.has_images("") => invalid(
                &self.root,
                "found images but no class folders; move them to train/<class>/ and val/<class>/, or to \
                 <class>/ with data.split_seed",
            ),
            None => {
                let found = match folders.iter().map(String::as_str).collect::<Vec<_>>() {
                    none if none.is_empty() => String::new(),
                    some => format!(", found {}", quoted(&some[..some.len().min(MAX_LISTED_CLASSES)])),
                };
                let problem = format!(
                    "no folder {expected}{found}; expected train/<class>/<image> and val/<class>/<image>, or \
                     <class>/<image> with data.split_seed"
                );
                invalid(&self.root, problem)
            }
        }
    }

    /// The folder to be split: `train`, or the data set itself without one.
    pub(super) fn unsplit_folder(&self) -> Result<String, DataError> {
        let folders = self.folders_in("", is_split_folder)?;
        Ok(find_split_folder(&folders, Split::Train).unwrap_or_default().to_owned())
    }

    /// The classes of a split, sorted by name.
    pub(super) fn classes(&self, split: &str) -> Result<Vec<String>, DataError> {
        self.folders_in(split, |_| true)
    }

    /// Builds the index of a split with the first `max_per_class` files of each class by name. Nothing else
    /// can be indexed afterwards.
    pub(super) fn index(
        &mut self,
        split: &str,
        classes: &[String],
        max_per_class: usize,
    ) -> Result<SampleIndex, DataError> {
        let mut index = SampleIndex::new(classes.to_vec());
        split.clone_into(&mut self.indexed);
        for class in classes {
            let folder = join(split, class);
            // A class of another split may be missing in this one.
            let names = if self.exists(&folder)? { self.visible_names(&folder)? } else { Vec::new() };
            let mut in_class = 0;
            for name in &names {
                if in_class == max_per_class {
                    break;
                }
                let path = join(&folder, name);
                if !has_image_extension(name) && self.is_other_file(&path) {
                    let shown = self.display_path(&path);
                    self.ignored_files.add(|| shown.display().to_string());
                    continue;
                }
                let range = match &mut self.location {
                    Location::Disk => None,
                    Location::Archive(packed) => Some(packed.range(&path)),
                };
                index.push(name, range).map_err(too_large(&self.display_path(&folder)))?;
                in_class += 1;
            }
            index.finish_class();
        }
        if let Location::Archive(packed) = &mut self.location {
            packed.forget_tree();
        }
        index.shrink();
        Ok(index)
    }

    /// Returns whether a path is a file without the content of an image. Anything that cannot be read is not:
    /// it may have been an image, such as the target of a broken link.
    fn is_other_file(&self, path: &str) -> bool {
        let mut head = [0; FORMAT_BYTES];
        let read = match &self.location {
            Location::Disk => {
                let path = self.on_disk(path);
                match files::dead_link(&path) {
                    Some(problem) => Err(problem),
                    None => files::read_head(&path, &mut head),
                }
            }
            Location::Archive(packed) => packed.read_head(path, &mut head),
        };
        read.is_ok_and(|bytes| !looks_like_image(&head[..bytes]))
    }

    /// Files in the folders of the classes that are no images.
    pub(super) fn ignored_files(&self) -> &IgnoredFiles {
        &self.ignored_files
    }

    /// The path of a sample, for messages.
    pub(super) fn name(&self, index: &SampleIndex, sample: usize) -> String {
        self.display_path(&self.path_below(index, sample)).display().to_string()
    }

    /// The path of a sample relative to the data set folder.
    fn path_below(&self, index: &SampleIndex, sample: usize) -> String {
        let folder = join(&self.indexed, &index.classes()[index.class(sample)]);
        join(&folder, index.name(sample))
    }

    /// Reports a sample's file.
    pub(super) fn report(
        &self,
        index: &SampleIndex,
        sample: usize,
        scratch: &mut Scratch,
        detail: FileDetail,
        report: &mut dyn FnMut(StoredFile<'_>),
    ) {
        let path = self.path_below(index, sample);
        if let Location::Disk = self.location {
            files::report(&self.root, &path, scratch, detail, report);
            return;
        }
        let bytes = index.range(sample).map(|range| u64::from(range.bytes));
        let is_read = detail == FileDetail::Content && self.read(index, sample, scratch).is_ok();
        let content = is_read.then_some(scratch.encoded.as_slice());
        report(StoredFile { path: &path, bytes, content });
    }

    /// Reads a sample's file into `scratch.encoded`.
    pub(super) fn read(
        &self,
        index: &SampleIndex,
        sample: usize,
        scratch: &mut Scratch,
    ) -> Result<(), String> {
        let Scratch { encoded, path, .. } = scratch;
        self.with_file(index, sample, encoded, path, &mut |file, bytes, out| {
            out.resize(bytes as usize, 0);
            file(0, out)
        })
    }

    /// Checks the beginning and end of a sample's file; decodes it if that is not sufficient.
    pub(super) fn probe(
        &self,
        index: &SampleIndex,
        sample: usize,
        scratch: &mut Scratch,
    ) -> Result<(), String> {
        let Scratch { encoded, decoded, path, images, .. } = scratch;
        self.with_file(index, sample, encoded, path, &mut |file, bytes, out| {
            images.probe(file, bytes, out, decoded).map(|_| ())
        })
    }

    /// Calls `callback` with random access to a sample's file.
    fn with_file(
        &self,
        index: &SampleIndex,
        sample: usize,
        encoded: &mut Vec<u8>,
        path: &mut PathBuf,
        callback: FileCallback<'_>,
    ) -> Result<(), String> {
        match &self.location {
            Location::Disk => {
                path.clear();
                path.push(&self.root);
                path.push(&self.indexed);
                path.push(&index.classes()[index.class(sample)]);
                path.push(index.name(sample));
                files::with_file(path, encoded, callback)
            }
            Location::Archive(packed) => {
                let range = index.range(sample).ok_or("not in the archive")?;
                packed.check_readable(range)?;
                let mut read = |at: u64, out: &mut [u8]| {
                    packed.read_at(range, at, out).map_err(|error| error.to_string())
                };
                callback(&mut read, u64::from(range.bytes), encoded)
            }
        }
    }

    /// Memory in bytes.
    pub(super) fn resident_bytes(&self) -> u64 {
        let archive = match &self.location {
            Location::Disk => 0,
            Location::Archive(packed) => packed.resident_bytes(),
        };
        archive + self.ignored_files.memory_bytes()
    }
}

/// Joins a folder and a name.
fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

fn not_utf8(path: &Path) -> DataError {
    invalid(path, "name is not UTF-8; rename it")
}
