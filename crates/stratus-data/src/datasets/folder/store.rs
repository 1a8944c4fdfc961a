//! Where a folder's files are: on disk, or in a tar archive.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::index::{Index, TooLarge};
use super::packed::Packed;
use super::parts;
use crate::archive::Found;
use crate::datasets::files::{self, Reading, is_hidden};
use crate::datasets::{FileDetail, Scratch, Split, StoredFile};
use crate::error::DataError;
use crate::images::is_image;

/// A folder with the files of a data set. Paths in it have `/` between their parts; that of the folder itself
/// is empty.
#[derive(Debug)]
pub(super) struct Store {
    root: PathBuf,
    place: Place,
    /// The folder of the split that is indexed.
    indexed: String,
}

#[derive(Debug)]
enum Place {
    Disk,
    Archive(Box<Packed>),
}

fn unreadable(path: &Path) -> impl Fn(io::Error) -> DataError + '_ {
    |cause| DataError::Unreadable { path: path.to_owned(), cause }
}

fn damaged(path: &Path, problem: impl Into<String>) -> DataError {
    DataError::Damaged { path: path.to_owned(), problem: problem.into() }
}

fn too_large(path: &Path) -> impl Fn(TooLarge) -> DataError + '_ {
    |_| damaged(path, "more images, or longer names, than an index can hold: 4,294,967,295 samples or bytes")
}

impl Store {
    /// The store at a path: a folder, or a tar archive, whose headers are read.
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let place = match fs::metadata(path).map_err(unreadable(path))? {
            about if about.is_dir() => Place::Disk,
            about if about.is_file() => Place::Archive(Box::new(Packed::open(path)?)),
            _ => return Err(damaged(path, "is neither a folder nor a file")),
        };
        Ok(Self { root: path.to_owned(), place, indexed: String::new() })
    }

    /// A file or folder for messages; of an archive with its path there.
    pub(super) fn shown(&self, path: &str) -> PathBuf {
        let prefix = match &self.place {
            Place::Disk => "",
            Place::Archive(packed) => packed.prefix(),
        };
        let parts = [prefix, path].into_iter().filter(|part| !part.is_empty());
        parts.fold(self.root.clone(), |path, part| path.join(part))
    }

    /// The path on disk.
    fn on_disk(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }

    /// The names in a folder that are not hidden, sorted.
    fn names_in(&self, folder: &str) -> Result<Vec<String>, DataError> {
        let mut names = Vec::new();
        match &self.place {
            Place::Disk => {
                let path = self.on_disk(folder);
                for entry in fs::read_dir(&path).map_err(unreadable(&path))? {
                    let name = entry.map_err(unreadable(&path))?.file_name();
                    if !is_hidden(name.as_encoded_bytes()) {
                        let name = name.into_string();
                        names.push(name.map_err(|name| not_text(&path.join(name)))?);
                    }
                }
            }
            Place::Archive(packed) => {
                let of_file = || damaged(&self.shown(folder), "is no folder");
                let found = packed.find(folder).map_err(|problem| damaged(&self.shown(folder), problem))?;
                let Some(Found::Folder(inner)) = found else { return Err(of_file()) };
                for name in packed.names(inner).filter(|name| !is_hidden(name)) {
                    let text = std::str::from_utf8(name).map_err(|_| {
                        not_text(&self.shown(folder).join(String::from_utf8_lossy(name).as_ref()))
                    })?;
                    names.push(text.to_owned());
                }
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Whether a path leads to a folder.
    fn is_folder(&self, path: &str) -> bool {
        match &self.place {
            Place::Disk => self.on_disk(path).is_dir(),
            Place::Archive(packed) => matches!(packed.find(path), Ok(Some(Found::Folder(_)))),
        }
    }

    /// Whether a path leads to anything.
    ///
    /// # Errors
    ///
    /// A link that leads nowhere.
    fn exists(&self, path: &str) -> Result<bool, DataError> {
        match &self.place {
            Place::Disk => {
                let path = self.on_disk(path);
                files::expect_live(&path)?;
                Ok(path.exists())
            }
            Place::Archive(packed) => match packed.find(path) {
                Ok(found) => Ok(found.is_some()),
                Err(problem) => Err(damaged(&self.shown(path), problem)),
            },
        }
    }

    /// The names of the folders in one, sorted. A file beside them is a list or a text; what is a link is
    /// followed, and where it leads nowhere, an error if it is `needed`.
    fn folders_in(&self, folder: &str, needed: fn(&str) -> bool) -> Result<Vec<String>, DataError> {
        let mut folders = Vec::new();
        for name in self.names_in(folder)? {
            let path = below(folder, &name);
            if self.is_folder(&path) {
                folders.push(name);
            } else if needed(&name) {
                self.exists(&path)?;
            }
        }
        Ok(folders)
    }

    /// Whether a folder has a file that is called as an image is.
    pub(super) fn has_images(&self, folder: &str) -> bool {
        let names = self.names_in(folder).unwrap_or_default();
        names.iter().any(|name| is_image(Path::new(name)))
    }

    /// Whether folders of images are in it, or in one of its parts.
    pub(super) fn holds_classes(&self) -> bool {
        let folders = |folder: &str| self.folders_in(folder, |_| false).unwrap_or_default();
        folders("").iter().any(|folder| {
            let in_part = || folders(folder).iter().any(|class| self.has_images(&below(folder, class)));
            self.has_images(folder) || parts::is_part(folder) && in_part()
        })
    }

    /// The folder of a split.
    pub(super) fn split_folder(&self, split: Split) -> Result<String, DataError> {
        let folders = self.folders_in("", parts::is_part)?;
        let folder = parts::folder_of(&folders, split).map(str::to_owned);
        folder.ok_or_else(|| parts::missing(self, &self.root, &folders, split))
    }

    /// The folder whose classes are yet to be divided: `train`, or where there is none the data set itself.
    pub(super) fn undivided_folder(&self) -> Result<String, DataError> {
        let folders = self.folders_in("", parts::is_part)?;
        Ok(parts::folder_of(&folders, Split::Train).unwrap_or_default().to_owned())
    }

    /// The classes of a split, by name.
    pub(super) fn classes(&self, split: &str) -> Result<Vec<String>, DataError> {
        self.folders_in(split, |_| true)
    }

    /// The index of a split: of each class the first `most` files by name. Nothing else can be indexed
    /// afterwards.
    pub(super) fn index(&mut self, split: &str, classes: &[String], most: usize) -> Result<Index, DataError> {
        let mut index = Index::new(classes.to_vec());
        split.clone_into(&mut self.indexed);
        for class in classes {
            let folder = below(split, class);
            // A class that another split has may be missing in this one.
            let names = if self.exists(&folder)? { self.names_in(&folder)? } else { Vec::new() };
            for name in names.iter().take(most) {
                let range = match &mut self.place {
                    Place::Disk => None,
                    Place::Archive(packed) => Some(packed.range(&below(&folder, name))),
                };
                index.push(name, range).map_err(too_large(&self.shown(&folder)))?;
            }
            index.end_class();
        }
        if let Place::Archive(packed) = &mut self.place {
            packed.forget_tree();
        }
        index.shrink();
        Ok(index)
    }

    /// What a person calls a sample of the index: its path.
    pub(super) fn name(&self, index: &Index, sample: usize) -> String {
        self.shown(&self.path_below(index, sample)).display().to_string()
    }

    /// The path of a sample of the index below the folder that is read.
    fn path_below(&self, index: &Index, sample: usize) -> String {
        let folder = below(&self.indexed, &index.classes()[index.class(sample)]);
        below(&folder, index.name(sample))
    }

    /// Reports a sample's file.
    pub(super) fn report(
        &self,
        index: &Index,
        sample: usize,
        scratch: &mut Scratch,
        detail: FileDetail,
        report: &mut dyn FnMut(StoredFile<'_>),
    ) {
        let path = self.path_below(index, sample);
        if let Place::Disk = self.place {
            files::report(&self.root, &path, scratch, detail, report);
            return;
        }
        let bytes = index.range(sample).map(|range| u64::from(range.bytes));
        let is_read = detail == FileDetail::Content && self.read(index, sample, scratch).is_ok();
        let content = is_read.then_some(scratch.encoded.as_slice());
        report(StoredFile { path: &path, bytes, content });
    }

    /// Reads a sample's file into `scratch.encoded`.
    pub(super) fn read(&self, index: &Index, sample: usize, scratch: &mut Scratch) -> Result<(), String> {
        let Scratch { encoded, path, .. } = scratch;
        self.with_file(index, sample, encoded, path, &mut |file, bytes, out| {
            out.resize(bytes as usize, 0);
            file(0, out)
        })
    }

    /// Whether a sample's file looks whole by its beginning and its end; decodes it where they cannot tell.
    pub(super) fn probe(&self, index: &Index, sample: usize, scratch: &mut Scratch) -> Result<(), String> {
        let Scratch { encoded, decoded, path, images, .. } = scratch;
        self.with_file(index, sample, encoded, path, &mut |file, bytes, out| {
            images.probe(file, bytes, out, decoded).map(|_| ())
        })
    }

    /// Calls with a way to read the file at any offset, its length, and where to put what is read.
    fn with_file(
        &self,
        index: &Index,
        sample: usize,
        encoded: &mut Vec<u8>,
        path: &mut PathBuf,
        reading: Reading<'_>,
    ) -> Result<(), String> {
        match &self.place {
            Place::Disk => {
                path.clear();
                path.push(&self.root);
                path.push(&self.indexed);
                path.push(&index.classes()[index.class(sample)]);
                path.push(index.name(sample));
                files::with_file(path, encoded, reading)
            }
            Place::Archive(packed) => {
                let range = index.range(sample).ok_or("it is not in the archive")?;
                packed.expect_file(range)?;
                let mut read = |at: u64, out: &mut [u8]| {
                    packed.read_at(range, at, out).map_err(|error| error.to_string())
                };
                reading(&mut read, u64::from(range.bytes), encoded)
            }
        }
    }

    /// Memory in bytes.
    pub(super) fn resident_bytes(&self) -> u64 {
        match &self.place {
            Place::Disk => 0,
            Place::Archive(packed) => packed.resident_bytes(),
        }
    }
}

/// The path of a name in a folder.
fn below(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

fn not_text(path: &Path) -> DataError {
    damaged(path, "its name is not UTF-8; rename it")
}
