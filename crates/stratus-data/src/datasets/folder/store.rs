//! Where a folder's files are: on disk, or in a tar archive.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tar::Archive;

use super::index::{ByteRange, Index, TooLarge};
use super::{is_plain, parts};
use crate::datasets::files::{self, Reading, within_limit};
use crate::datasets::{Scratch, Split};
use crate::error::DataError;
use crate::images::is_image;

/// A place with the files of a data set.
#[derive(Debug)]
pub(super) enum Store {
    /// A folder, and the split in it that is indexed.
    Disk { root: PathBuf, split: String },
    /// An archive, and what it holds.
    Tar(Tar),
}

/// A tar archive with the names in it.
#[derive(Debug)]
pub(super) struct Tar {
    path: PathBuf,
    file: Mutex<File>,
    /// Files by their last three parts: split, class, name. Emptied when the index is made.
    members: Vec<Member>,
    splits: Vec<String>,
    classes: Vec<String>,
    names: String,
    /// The split that is indexed.
    indexed: String,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    split: u32,
    class: u32,
    /// The name's range in `names`.
    name: (u32, u32),
    range: ByteRange,
}

/// Interned names.
#[derive(Default)]
struct NameTable {
    names: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl NameTable {
    fn number(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }
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
        if fs::metadata(path).map_err(unreadable(path))?.is_dir() {
            return Ok(Self::Disk { root: path.to_owned(), split: String::new() });
        }
        Ok(Self::Tar(Tar::open(path)?))
    }

    /// The folders that hold parts or classes: of an archive those whose folders hold files.
    fn folders(&self) -> Result<Vec<String>, DataError> {
        match self {
            Self::Disk { root, .. } => self.folders_in(root, parts::is_part),
            Self::Tar(tar) => Ok(tar.splits.clone()),
        }
    }

    /// The names of the folders in one on disk, sorted. A file beside them is a list or a text; what is a
    /// link is followed, and where it leads nowhere, an error if it is `needed`.
    fn folders_in(&self, folder: &Path, needed: fn(&str) -> bool) -> Result<Vec<String>, DataError> {
        let mut names = Vec::new();
        for_each_entry(folder, &mut |entry, name| {
            if entry.path().is_dir() {
                names.push(name.to_owned());
            } else if needed(name) {
                files::expect_live(&entry.path())?;
            }
            Ok(())
        })?;
        names.sort_unstable();
        Ok(names)
    }

    /// Whether a folder has a file that is called as an image is.
    pub(super) fn has_images(&self, folder: &str) -> bool {
        // What an archive's index lists are files.
        let Self::Disk { root, .. } = self else { return true };
        let Ok(entries) = fs::read_dir(root.join(folder)) else { return false };
        entries.flatten().any(|entry| is_image(&entry.path()))
    }

    /// The folder of a split.
    pub(super) fn split_folder(&self, root: &Path, split: Split) -> Result<String, DataError> {
        let folders = self.folders()?;
        match parts::folder_of(&folders, split) {
            Some(folder) => Ok(folder.to_owned()),
            None => match self {
                // Classes lie in one folder of the archive, which is called as anything is.
                Self::Tar(tar) if split == Split::Train && matches!(tar.splits[..], [_]) => {
                    Err(parts::missing(self, root, &tar.classes, split))
                }
                _ => Err(parts::missing(self, root, &folders, split)),
            },
        }
    }

    /// The folder whose classes are yet to be divided: `train`, or where there is none the data set itself.
    pub(super) fn undivided_folder(&self, root: &Path) -> Result<String, DataError> {
        let folders = self.folders()?;
        if let Some(train) = parts::folder_of(&folders, Split::Train) {
            return Ok(train.to_owned());
        }
        match self {
            Self::Disk { .. } => Ok(String::new()),
            Self::Tar(tar) => match &tar.splits[..] {
                [only] => Ok(only.clone()),
                _ => Err(damaged(root, "holds neither one folder of classes nor a folder `train` of them")),
            },
        }
    }

    /// The classes of a split, by name.
    pub(super) fn classes(&self, split: &str) -> Result<Vec<String>, DataError> {
        let mut classes: Vec<String> = match self {
            Self::Disk { root, .. } => return self.folders_in(&root.join(split), |_| true),
            Self::Tar(tar) => {
                let split = tar.split(split);
                let mut used = vec![false; tar.classes.len()];
                let members = tar.members.iter().filter(|member| Some(member.split) == split);
                members.for_each(|member| used[member.class as usize] = true);
                let used = tar.classes.iter().zip(used).filter(|(_, used)| *used);
                used.map(|(class, _)| class.clone()).collect()
            }
        };
        classes.sort_unstable();
        Ok(classes)
    }

    /// The index of a split: of each class the first `most` files by name. Members of other splits are
    /// forgotten.
    pub(super) fn index(&mut self, split: &str, classes: &[String], most: usize) -> Result<Index, DataError> {
        let mut index = Index::new(classes.to_vec());
        match self {
            Self::Disk { root, split: indexed } => {
                split.clone_into(indexed);
                for class in classes {
                    let folder = root.join(split).join(class);
                    let mut names = Vec::new();
                    files::expect_live(&folder)?;
                    // A class that another split has may be missing in this one.
                    if folder.exists() {
                        for_each_entry(&folder, &mut |_, name| {
                            names.push(name.to_owned());
                            Ok(())
                        })?;
                    }
                    names.sort_unstable();
                    for name in names.iter().take(most) {
                        index.push(name, None).map_err(too_large(&folder))?;
                    }
                    index.end_class();
                }
            }
            Self::Tar(tar) => {
                split.clone_into(&mut tar.indexed);
                let number = tar.split(split);
                let (mut members, names) = (std::mem::take(&mut tar.members), std::mem::take(&mut tar.names));
                let name = |member: &Member| &names[member.name.0 as usize..member.name.1 as usize];
                members.retain(|member| Some(member.split) == number);
                members.sort_unstable_by(|a, b| (a.class, name(a)).cmp(&(b.class, name(b))));
                if let Some(twice) = members
                    .windows(2)
                    .find(|two| two[0].class == two[1].class && name(&two[0]) == name(&two[1]))
                {
                    let class = &tar.classes[twice[0].class as usize];
                    return Err(damaged(
                        &tar.path,
                        format!("{split}/{class}/{} is there twice", name(&twice[0])),
                    ));
                }
                for class in classes {
                    let class = tar.classes.iter().position(|known| known == class);
                    let class = class.and_then(|class| u32::try_from(class).ok()).unwrap_or(u32::MAX);
                    let first = members.partition_point(|member| member.class < class);
                    let of_class = members[first..].iter().take_while(|member| member.class == class);
                    for member in of_class.take(most) {
                        index.push(name(member), Some(member.range)).map_err(too_large(&tar.path))?;
                    }
                    index.end_class();
                }
            }
        }
        index.shrink();
        Ok(index)
    }

    /// What a person calls a sample of the index: its path.
    pub(super) fn name(&self, index: &Index, sample: usize) -> String {
        let (range, split) = match self {
            Self::Disk { root, split } => (root, split),
            Self::Tar(tar) => (&tar.path, &tar.indexed),
        };
        let (class, name) = (&index.classes()[index.class(sample)], index.name(sample));
        let split = if split.is_empty() { String::new() } else { format!("{split}/") };
        format!("{}/{split}{class}/{name}", range.display())
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
        match self {
            Self::Disk { root, split } => {
                path.clear();
                path.push(root);
                path.push(split);
                path.push(&index.classes()[index.class(sample)]);
                path.push(index.name(sample));
                files::with_file(path, encoded, reading)
            }
            Self::Tar(tar) => {
                let range = index.range(sample).ok_or("it is not in the archive")?;
                let bytes = within_limit(u64::from(range.bytes))?;
                let mut read = |offset: u64, out: &mut [u8]| {
                    tar.read_at(range.offset + offset, out).map_err(|error| error.to_string())
                };
                reading(&mut read, bytes, encoded)
            }
        }
    }
}

impl Tar {
    fn open(path: &Path) -> Result<Self, DataError> {
        let file = File::open(path).map_err(unreadable(path))?;
        let length = file.metadata().map_err(unreadable(path))?.len();
        let unread = |error: io::Error| damaged(path, format!("not a whole tar archive: {error}"));
        let mut archive = Archive::new(BufReader::with_capacity(1 << 10, &file));
        let (mut splits, mut classes) = (NameTable::default(), NameTable::default());
        let (mut members, mut names) = (Vec::new(), String::new());
        for entry in archive.entries_with_seek().map_err(unread)? {
            let entry = entry.map_err(unread)?;
            let kind = entry.header().entry_type();
            if kind.is_dir() {
                continue;
            }
            let bytes = entry.path_bytes();
            let member = std::str::from_utf8(&bytes).map_err(|_| {
                damaged(path, format!("{}: its name is not UTF-8", String::from_utf8_lossy(&bytes)))
            })?;
            let mut parts = member.rsplit('/');
            let (Some(name), Some(class), Some(split)) = (parts.next(), parts.next(), parts.next()) else {
                continue;
            };
            // What is hidden is no image, and what is no plain name is not what it seems.
            if files::is_hidden(name) || !is_plain(name) || !is_plain(class) || !is_plain(split) {
                continue;
            }
            // Links are not followed: as a file without content they are found damaged.
            let size = if kind.is_file() { entry.size() } else { 0 };
            let offset = entry.raw_file_position();
            let whole = offset.checked_add(size).is_some_and(|end| end <= length);
            let bytes = u32::try_from(size).ok().filter(|_| whole);
            let Some(bytes) = bytes else {
                return Err(damaged(path, format!("ends within {member}: it has {length} bytes")));
            };
            let begin = names.len();
            names.push_str(name);
            let (Ok(begin), Ok(end)) = (u32::try_from(begin), u32::try_from(names.len())) else {
                return Err(too_large(path)(TooLarge));
            };
            members.push(Member {
                split: splits.number(split),
                class: classes.number(class),
                name: (begin, end),
                range: ByteRange { offset, bytes },
            });
        }
        let file = Mutex::new(file);
        Ok(Self {
            path: path.to_owned(),
            file,
            members,
            splits: splits.names,
            classes: classes.names,
            names,
            indexed: String::new(),
        })
    }

    fn split(&self, name: &str) -> Option<u32> {
        self.splits.iter().position(|split| split == name).map(|split| split as u32)
    }

    /// Fills `out` with what stands at `offset`.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(out)
    }
}

/// Calls for each entry of a folder that is not hidden.
fn for_each_entry(
    folder: &Path,
    report: &mut dyn FnMut(&fs::DirEntry, &str) -> Result<(), DataError>,
) -> Result<(), DataError> {
    for entry in fs::read_dir(folder).map_err(unreadable(folder))? {
        let entry = entry.map_err(unreadable(folder))?;
        let name = entry.file_name();
        let name = name.to_str().ok_or_else(|| damaged(&entry.path(), "its name is not UTF-8; rename it"))?;
        if !files::is_hidden(name) {
            report(&entry, name)?;
        }
    }
    Ok(())
}
