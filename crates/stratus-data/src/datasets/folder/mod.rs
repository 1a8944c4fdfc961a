//! Folders of image files in ImageNet's layout: `train/<class>/<image>` and `val/<class>/<image>` (or
//! `validation/`, `test/`), JPEG, PNG or WebP, on disk or in one tar or zip archive, which is read
//! in place.
//!
//! Only the index is in memory: names, and byte ranges in the archive. Images are read and decoded by the
//! loader's threads. Classes are the training folders by name, or those of a list, in its order; all splits
//! share them. Other files between the images are ignored. A folder without splits, `<class>/<image>` or
//! `train/<class>/<image>`, can be split by lists or a seed ([`SplitMethod`]).

mod index;
mod packed;
mod split;
mod split_folders;
mod store;

use std::path::{Path, PathBuf};

use stratus_base::{did_you_mean, nearest};

use self::index::SampleIndex;
use self::store::FolderStorage;
use super::files;
use crate::dataset::{
    Dataset, FileDetail, MAX_LISTED_SAMPLES, RegionRequest, Sample, Scratch, StoredFile, reject_damaged,
};
use crate::datasets::entry::{DatasetEntry, OpenOptions};
use crate::datasets::split::{Split, SplitMethod};
use crate::decode::Decoded;
use crate::error::DataError;
use crate::ignored_files::IgnoredFiles;
use crate::images::is_image;
use crate::parallel;
use crate::transform::pixels::{Normalisation, PixelOrder};

const NAME: &str = "folder";

/// The maximum number of folder entries that are probed for photographs.
const MAX_PROBED_ENTRIES: usize = 1000;

/// Guesses by file names whether a folder, or its training folder, holds folders of photographs. An archive
/// counts as the folder in it.
#[must_use]
pub fn looks_like_class_folder(root: &Path) -> bool {
    if root.is_file() {
        return FolderStorage::open(root).is_ok_and(|store| store.looks_like_class_folder());
    }
    let entries = |path: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(path).into_iter().flatten().take(MAX_PROBED_ENTRIES).flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let has_images = |folder: &PathBuf| entries(folder).iter().any(|path| is_image(path));
    let inside = entries(root);
    let splits = inside.iter().filter(|path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(split_folders::is_split_folder)
    });
    inside.iter().any(has_images) || splits.flat_map(|folder| entries(folder)).any(|class| has_images(&class))
}

/// Returns whether a folder, or the one in an archive, has a training folder.
#[must_use]
pub fn has_training_folder(root: &Path) -> bool {
    FolderStorage::open(root).and_then(|store| store.unsplit_folder()).is_ok_and(|folder| !folder.is_empty())
}

/// The registry entry.
pub static ENTRY: DatasetEntry = DatasetEntry {
    name: NAME,
    summary: "your own images: train/<class>/<image>, val/<class>/<image>; a folder, a .tar or a .zip",
    open: |root, split, options| Ok(Box::new(Folder::open(root, split, options)?)),
    files: &[],
    mirrors: &[],
};

/// One split of a folder of image files.
#[derive(Debug)]
pub struct Folder {
    store: FolderStorage,
    index: SampleIndex,
    damaged: Vec<(u32, String)>,
}

impl Folder {
    /// Opens a split. Checks the beginning and end of every file, unless `options.verify` is off.
    ///
    /// # Errors
    ///
    /// [`DataError`]: another layout; a class without images; damaged images, with their number and the first
    /// few.
    pub fn open(root: &Path, split: Split, options: &OpenOptions) -> Result<Self, DataError> {
        let mut store = FolderStorage::open(root)?;
        let is_published = options.split_method == SplitMethod::Published;
        let (train, folder) = if is_published {
            (store.split_folder(Split::Train)?, store.split_folder(split)?)
        } else {
            let folder = store.unsplit_folder()?;
            (folder.clone(), folder)
        };
        let known = store.classes(&train)?;
        let classes = match &options.class_list {
            Some(path) => listed_classes(path, &known)?,
            None => known,
        };
        if options.class_list.is_none() && folder != train {
            let unknown =
                store.classes(&folder)?.into_iter().find(|class| classes.binary_search(class).is_err());
            if let Some(class) = unknown {
                let problem = format!(
                    "class `{class}` is in `{folder}` but not in `{train}`; select classes with data.classes"
                );
                return Err(DataError::Invalid { path: root.to_owned(), problem });
            }
        }
        let max_per_class = if split == Split::Train { options.images_per_class } else { None };
        let max_per_class = max_per_class.unwrap_or(usize::MAX);
        let mut index =
            store.index(&folder, &classes, if is_published { max_per_class } else { usize::MAX })?;
        let samples = match &options.split_method {
            SplitMethod::Published => None,
            SplitMethod::Unsplit => Some((0..index.len() as u32).collect()),
            SplitMethod::Seeded(seed) => {
                let samples = split::seeded_split(&index, *seed, split);
                split::require_every_class(root, &index, &samples, split, options.skip_damaged)?;
                Some(samples)
            }
            SplitMethod::Lists(_) => match options.split_method.list_of(split) {
                Some(list) => Some(split::listed_split(&index, list, options.class_list.is_some())?),
                None => Some(Vec::new()),
            },
        };
        if let Some(samples) = samples {
            index = index.subset(&samples, max_per_class);
        }
        let empty: Vec<&str> = index.empty_classes().collect();
        if !empty.is_empty() && !options.skip_damaged {
            return Err(DataError::EmptyClasses {
                path: store.display_path(&folder),
                count: empty.len(),
                listed: empty.iter().take(MAX_LISTED_SAMPLES).map(|&class| class.to_owned()).collect(),
            });
        }
        if index.len() == 0 {
            return Err(DataError::Empty { origin: store.display_path(&folder).display().to_string() });
        }
        let mut set = Self { store, index, damaged: Vec::new() };
        if options.verify {
            set.damaged = set.find_damaged();
        }
        if !options.skip_damaged {
            reject_damaged(&set, split)?;
        }
        Ok(set)
    }

    /// Checks every file, on all cores.
    fn find_damaged(&self) -> Vec<(u32, String)> {
        parallel::collect_problems(self.len(), |scratch, index| self.store.probe(&self.index, index, scratch))
    }

    /// Reads a sample and decodes it.
    fn read_sample<'a>(
        &'a self,
        index: usize,
        scratch: &'a mut Scratch,
        decode: &dyn Fn(&mut Scratch) -> Result<Decoded, String>,
    ) -> Result<Sample<'a>, DataError> {
        self.check_index(index)?;
        let decoded = self.store.read(&self.index, index, scratch).and_then(|()| decode(scratch));
        let Decoded { shape, dct_scaled, orientation } =
            decoded.map_err(|problem| DataError::BadSample { sample: self.sample_name(index), problem })?;
        Ok(Sample {
            pixels: &scratch.decoded,
            shape,
            dct_scaled,
            order: PixelOrder::Interleaved,
            orientation,
            label: self.index.class(index) as u32,
            mask: None,
        })
    }

    fn check_index(&self, index: usize) -> Result<(), DataError> {
        if index < self.len() {
            return Ok(());
        }
        Err(DataError::SampleOutOfRange { dataset: NAME.to_owned(), index, len: self.len() })
    }
}

/// Reads the classes of a list file. Each must exist.
fn listed_classes(path: &Path, known: &[String]) -> Result<Vec<String>, DataError> {
    let invalid = |problem| Err(DataError::Invalid { path: path.to_owned(), problem });
    let text = files::read_class_list(path)?;
    let mut classes: Vec<String> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for (number, line) in text.lines().enumerate() {
        let class = line.trim();
        if class.is_empty() {
            continue;
        }
        if known.binary_search_by(|known| known.as_str().cmp(class)).is_err() {
            let hint = did_you_mean(nearest(class, known.iter().map(String::as_str)));
            return invalid(format!("line {}: unknown class `{class}`{hint}", number + 1));
        }
        if !seen.insert(class) {
            return invalid(format!("line {}: duplicate class `{class}`", number + 1));
        }
        classes.push(class.to_owned());
    }
    if classes.is_empty() {
        return invalid("no class names; expected one per line".to_owned());
    }
    Ok(classes)
}

impl Dataset for Folder {
    fn name(&self) -> &str {
        NAME
    }

    fn len(&self) -> usize {
        self.index.len()
    }

    fn classes(&self) -> usize {
        self.index.classes().len()
    }

    fn class_name(&self, class: usize) -> String {
        self.index.classes().get(class).cloned().unwrap_or_else(|| class.to_string())
    }

    fn sample_shape(&self) -> Option<[usize; 3]> {
        None
    }

    fn sample_name(&self, index: usize) -> String {
        if index < self.len() { self.store.name(&self.index, index) } else { format!("sample {index}") }
    }

    fn label(&self, index: usize) -> Result<u32, DataError> {
        self.check_index(index)?;
        Ok(self.index.class(index) as u32)
    }

    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        self.read_sample(index, scratch, &|Scratch { images, encoded, decoded, .. }| {
            images.decode(encoded, decoded)
        })
    }

    fn read_region<'a>(
        &'a self,
        index: usize,
        scratch: &'a mut Scratch,
        region: RegionRequest<'_>,
    ) -> Result<Sample<'a>, DataError> {
        let region = |image: &Decoded| region(image.shape, image.orientation);
        self.read_sample(index, scratch, &|Scratch { images, encoded, decoded, .. }| {
            images.decode_region(encoded, decoded, &region)
        })
    }

    fn encoded<'a>(&self, index: usize, scratch: &'a mut Scratch) -> Result<Option<&'a [u8]>, DataError> {
        self.check_index(index)?;
        let read = self.store.read(&self.index, index, scratch);
        read.map_err(|problem| DataError::BadSample { sample: self.sample_name(index), problem })?;
        Ok(Some(&scratch.encoded))
    }

    fn stored_files(
        &self,
        index: usize,
        scratch: &mut Scratch,
        detail: FileDetail,
        report: &mut dyn FnMut(StoredFile<'_>),
    ) {
        if index < self.len() {
            self.store.report(&self.index, index, scratch, detail, report);
        }
    }

    fn damaged(&self) -> &[(u32, String)] {
        &self.damaged
    }

    fn ignored_files(&self) -> IgnoredFiles {
        self.store.ignored_files().clone()
    }

    fn normalisation(&self) -> Normalisation {
        Normalisation::imagenet()
    }

    fn resident_bytes(&self) -> u64 {
        self.index.memory_bytes() + self.store.resident_bytes()
    }
}
