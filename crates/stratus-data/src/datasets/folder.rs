//! Folders of image files, as ImageNet has them: `train/<class>/<image>` and `val/<class>/<image>` (or
//! `validation/`, `test/`), JPEG or PNG, on disk or in one tar archive, which is read in place.
//!
//! Only the index is in memory: names, and for an archive where each file lies. Images are read and decoded
//! by the loader's threads. Classes are the training folders by name, or those that a list names, in its
//! order; the other split has the same. A folder that is not divided, `<class>/<image>` or
//! `train/<class>/<image>`, can be by lists or by a seed ([`SplitBy`]).

mod index;
mod packed;
mod parts;
mod split;
mod store;

use std::path::{Component, Path, PathBuf};

use stratus_base::{did_you_mean, nearest};

use self::index::Index;
use self::store::Store;
use super::{
    Dataset, DatasetEntry, FileDetail, LISTED, OpenOptions, RegionRequest, Sample, Scratch, Split, SplitBy,
    StoredFile, files, refuse_damaged,
};
use crate::decode::Decoded;

use crate::error::DataError;
use crate::images::is_image;
use crate::parallel;
use crate::transform::pixels::{Normalisation, PixelOrder};

const NAME: &str = "folder";

/// Entries of a folder that are looked at to see whether it holds photographs.
const LOOKED_AT: usize = 1000;

/// Whether a folder, or its part for training, holds folders of photographs: a guess for hints, made of their
/// names. A tar archive counts as the folder that it holds.
#[must_use]
pub fn holds_classes(root: &Path) -> bool {
    if root.is_file() {
        return Store::open(root).is_ok_and(|store| store.holds_classes());
    }
    let entries = |path: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(path).into_iter().flatten().take(LOOKED_AT).flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let has_images = |folder: &PathBuf| entries(folder).iter().any(|path| is_image(path));
    let inside = entries(root);
    let parts = inside
        .iter()
        .filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(parts::is_part));
    inside.iter().any(has_images) || parts.flat_map(|part| entries(part)).any(|class| has_images(&class))
}

/// Whether a folder, or the one in a tar archive, has a part for training.
#[must_use]
pub fn holds_training_part(root: &Path) -> bool {
    Store::open(root).and_then(|store| store.undivided_folder()).is_ok_and(|part| !part.is_empty())
}

/// The registry's entry.
pub static ENTRY: DatasetEntry = DatasetEntry {
    name: NAME,
    summary: "your own JPEG and PNG files: train/<class>/<image>, val/<class>/<image>; a folder or a .tar",
    open: |root, split, options| Ok(Box::new(Folder::open(root, split, options)?)),
    files: &[],
    mirrors: &[],
};

/// One split of a folder of image files.
#[derive(Debug)]
pub struct Folder {
    store: Store,
    index: Index,
    damaged: Vec<(u32, String)>,
}

impl Folder {
    /// Opens a split. Every file's beginning and end are looked at, unless `options.verify` is off.
    ///
    /// # Errors
    ///
    /// [`DataError`]: nothing of this layout is there; a class without images; damaged images, all counted
    /// and the first listed.
    pub fn open(root: &Path, split: Split, options: &OpenOptions) -> Result<Self, DataError> {
        let mut store = Store::open(root)?;
        let given = options.split_by == SplitBy::Given;
        let (train, folder) = if given {
            (store.split_folder(Split::Train)?, store.split_folder(split)?)
        } else {
            let folder = store.undivided_folder()?;
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
                    "class `{class}` is in `{folder}` and not in `{train}`; name the classes to use with \
                     data.classes"
                );
                return Err(DataError::Damaged { path: root.to_owned(), problem });
            }
        }
        let most = if split == Split::Train { options.images_per_class } else { None };
        let most = most.unwrap_or(usize::MAX);
        let mut index = store.index(&folder, &classes, if given { most } else { usize::MAX })?;
        let part = match &options.split_by {
            SplitBy::Given => None,
            SplitBy::Whole => Some((0..index.len() as u32).collect()),
            SplitBy::Seeded(seed) => {
                let part = split::seeded_part(&index, *seed, split);
                split::expect_classes(root, &index, &part, split, options.skip_damaged)?;
                Some(part)
            }
            SplitBy::Listed(_) => match options.split_by.list_of(split) {
                Some(list) => Some(split::listed_part(&index, list, options.class_list.is_some())?),
                None => Some(Vec::new()),
            },
        };
        if let Some(part) = part {
            index = index.part(&part, most);
        }
        let empty: Vec<&str> = index.empty_classes().collect();
        if !empty.is_empty() && !options.skip_damaged {
            return Err(DataError::EmptyClasses {
                path: store.shown(&folder),
                count: empty.len(),
                listed: empty.iter().take(LISTED).map(|&class| class.to_owned()).collect(),
            });
        }
        if index.len() == 0 {
            return Err(DataError::Empty { origin: store.shown(&folder).display().to_string() });
        }
        let mut set = Self { store, index, damaged: Vec::new() };
        if options.verify {
            set.damaged = set.find_damaged();
        }
        if !options.skip_damaged {
            refuse_damaged(&set, split)?;
        }
        Ok(set)
    }

    /// Looks at every file, on all cores.
    fn find_damaged(&self) -> Vec<(u32, String)> {
        parallel::problems(self.len(), |scratch, index| self.store.probe(&self.index, index, scratch))
    }

    /// Reads a sample and decodes it.
    fn sample<'a>(
        &'a self,
        index: usize,
        scratch: &'a mut Scratch,
        decode: &dyn Fn(&mut Scratch) -> Result<Decoded, String>,
    ) -> Result<Sample<'a>, DataError> {
        self.check(index)?;
        let decoded = self.store.read(&self.index, index, scratch).and_then(|()| decode(scratch));
        let Decoded { shape, reduced, orientation } =
            decoded.map_err(|problem| DataError::BadSample { sample: self.sample_name(index), problem })?;
        Ok(Sample {
            pixels: &scratch.decoded,
            shape,
            reduced,
            order: PixelOrder::Interleaved,
            orientation,
            label: self.index.class(index) as u32,
            mask: None,
        })
    }

    fn check(&self, index: usize) -> Result<(), DataError> {
        if index < self.len() {
            return Ok(());
        }
        Err(DataError::NoSuchSample { dataset: NAME.to_owned(), index, len: self.len() })
    }
}

/// The classes that a file names, each of which must be there.
fn listed_classes(path: &Path, known: &[String]) -> Result<Vec<String>, DataError> {
    let wrong = |problem| Err(DataError::Damaged { path: path.to_owned(), problem });
    let text = files::read_list(path)?;
    let mut classes: Vec<String> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for (number, line) in text.lines().enumerate() {
        let class = line.trim();
        if class.is_empty() {
            continue;
        }
        if known.binary_search_by(|known| known.as_str().cmp(class)).is_err() {
            let hint = did_you_mean(nearest(class, known.iter().map(String::as_str)));
            return wrong(format!("line {}: there is no class `{class}` to train on{hint}", number + 1));
        }
        if !seen.insert(class) {
            return wrong(format!("line {}: class `{class}` is named twice", number + 1));
        }
        classes.push(class.to_owned());
    }
    if classes.is_empty() {
        return wrong("names no class; write one a line".to_owned());
    }
    Ok(classes)
}

/// Whether a name is that of one file or folder, and leads nowhere else.
fn is_plain(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(_)), None))
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
        self.check(index)?;
        Ok(self.index.class(index) as u32)
    }

    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        self.sample(index, scratch, &|Scratch { images, encoded, decoded, .. }| {
            images.decode(encoded, decoded)
        })
    }

    fn read_region<'a>(
        &'a self,
        index: usize,
        scratch: &'a mut Scratch,
        wanted: RegionRequest<'_>,
    ) -> Result<Sample<'a>, DataError> {
        let wanted = |image: &Decoded| wanted(image.shape, image.orientation);
        self.sample(index, scratch, &|Scratch { images, encoded, decoded, .. }| {
            images.decode_region(encoded, decoded, &wanted)
        })
    }

    fn encoded<'a>(&self, index: usize, scratch: &'a mut Scratch) -> Result<Option<&'a [u8]>, DataError> {
        self.check(index)?;
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

    fn normalisation(&self) -> Normalisation {
        Normalisation::imagenet()
    }

    fn resident_bytes(&self) -> u64 {
        self.index.bytes() + self.store.resident_bytes()
    }
}
