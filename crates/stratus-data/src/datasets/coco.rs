//! COCO: photographs of everyday scenes whose objects are outlined; a class for every pixel is made of the
//! outlines.
//!
//! T.-Y. Lin et al.: "Microsoft COCO: common objects in context", 2014. The layout is that of its archives:
//! `annotations/instances_<part>.json` and the images in `<part>/` or `images/<part>/`; the parts are called
//! `train…` and `val…` or `test…`, and of several (2014, 2017) the last by name is taken. Other data with
//! annotations of this format are read too.
//!
//! Class 0 is the background, what no outline covers; the categories follow by their ids without gaps. Where
//! outlines overlap, the smaller object is painted over the larger. Regions marked `iscrowd` are drawn
//! roughly around many objects: neither is each pixel in them of the class nor of the background, so that
//! losses and measures pass over what is left of them when the single objects are painted, as COCO's own
//! evaluation does. A pixel belongs to a polygon where its middle is inside by the even-odd rule; the
//! polygons of an annotation are joined.
//!
//! Photographs with an EXIF orientation are turned upright. Annotations are taken as they are, in coordinates
//! of the upright image, unless the size that they are for is the stored image's alone (`upright.rs`).
//!
//! `coco_labels` is the same photographs with one class each, for networks that give one answer for an image:
//! the category whose objects cover the largest part of it by the annotations' `area`, crowds left out; of
//! two that cover as much, the first. Classes are the categories by their ids, from 0. An image without an
//! object that counts has no class and is as one that is damaged.

mod annotations;
mod scalar;
mod shapes;

use std::path::{Path, PathBuf};

use sha2::Sha256;

use self::annotations::{Annotations, Content, Target};
use super::upright::{self, Assumed, Of};
use super::{
    Dataset, DatasetEntry, FileDetail, IGNORED, OpenOptions, RegionRequest, Sample, Scratch, Split,
    StoredFile, files, refuse_damaged,
};
use crate::error::DataError;
use crate::parallel;
use crate::transform::frame::Orientation;
use crate::transform::pixels::Normalisation;

const FOLDER: &str = "annotations";
const NO_LABEL: &str = "it has no class: nothing in it is annotated but crowds";

/// The registry's entries.
pub static ENTRY: DatasetEntry = DatasetEntry {
    name: "coco",
    summary: "photographs with outlined objects, 80 classes and background; annotations/instances_*.json",
    open: |root, split, options| Ok(Box::new(Coco::open(&ENTRY, Target::Mask, root, split, options)?)),
    files: &[],
    mirrors: &[],
};

/// COCO with a class for each image.
pub static LABELS: DatasetEntry = DatasetEntry {
    name: "coco_labels",
    summary: "the photographs of coco, each with the class that covers most of it, 80 classes",
    open: |root, split, options| Ok(Box::new(Coco::open(&LABELS, Target::Label, root, split, options)?)),
    files: &[],
    mirrors: &[],
};

/// One split of a data set in COCO's format.
#[derive(Debug)]
struct Coco {
    name: &'static str,
    root: PathBuf,
    /// The folder of the images.
    folder: PathBuf,
    annotations: Annotations,
    damaged: Vec<(u32, String)>,
    assumed: Assumed,
}

impl Coco {
    /// Opens a split. Every file's beginning and end, and the size of its image, are looked at, unless
    /// `options.verify` is off.
    ///
    /// # Errors
    ///
    /// [`DataError`]: nothing of this layout is there; annotations that cannot be; images that are damaged or
    /// have no class, all counted and the first listed.
    fn open(
        entry: &DatasetEntry,
        target: Target,
        root: &Path,
        split: Split,
        options: &OpenOptions,
    ) -> Result<Self, DataError> {
        let part = part_of(root, split)?;
        let folders = [root.join(&part), root.join("images").join(&part)];
        folders.iter().try_for_each(|folder| files::expect_live(folder))?;
        let Some(folder) = folders.into_iter().find(|folder| folder.is_dir()) else {
            let problem = format!("holds no folder `{part}` or `images/{part}` with the images");
            return Err(DataError::Damaged { path: root.to_owned(), problem });
        };
        let annotations =
            Annotations::read(&root.join(FOLDER).join(format!("instances_{part}.json")), target)?;
        let assumed = Assumed::new(if target == Target::Mask { annotations.images.len() } else { 0 });
        let (name, root, damaged) = (entry.name, root.to_owned(), Vec::new());
        let mut set = Self { name, root, folder, annotations, damaged, assumed };
        set.damaged = set.find_damaged(options.verify);
        if !options.skip_damaged {
            refuse_damaged(&set, split)?;
        }
        Ok(set)
    }

    /// The images that cannot be used. With `verify` every file is looked at, on all cores.
    fn find_damaged(&self, verify: bool) -> Vec<(u32, String)> {
        if !verify && matches!(self.annotations.content, Content::Masks(_)) {
            return Vec::new();
        }
        parallel::problems(self.len(), |scratch: &mut Scratch, index| {
            if self.label_of(index) == Some(IGNORED) {
                return Err(NO_LABEL.to_owned());
            }
            if !verify {
                return Ok(());
            }
            let Scratch { encoded, decoded, path, images, .. } = scratch;
            files::below(path, &self.folder, &self.annotations.images[index].name);
            let found = files::probe(path, images, encoded, decoded)?;
            let upright = self.place(index, found, Orientation::default());
            if upright.is_ok() {
                return upright.map(drop);
            }
            // The annotations may be of the image as it is shown.
            let (found, orientation) = files::described(path, images, encoded, decoded)?;
            self.place(index, found, orientation).map(drop)
        })
    }

    /// The label of an image, [`IGNORED`] where it has none; `None` where images have masks.
    fn label_of(&self, index: usize) -> Option<u32> {
        match &self.annotations.content {
            Content::Masks(_) => None,
            Content::Labels(labels) => Some(labels[index]),
        }
    }

    /// What an image's annotations are of, which was found with this stored size and orientation.
    fn place(&self, index: usize, found: [usize; 2], orientation: Orientation) -> Result<Of, String> {
        let annotated = self.annotations.images[index].size.map(|length| length as usize);
        let of = match &self.annotations.content {
            // Where nothing has coordinates, either size will do.
            Content::Labels(_) if [annotated[1], annotated[0]] == found => Some(Of::Stored),
            _ => upright::annotated(annotated, found, orientation),
        };
        of.ok_or_else(|| {
            let ([height, width], [found_height, found_width]) = (annotated, found);
            format!("its annotations are for {height}×{width}, but the image is {found_height}×{found_width}")
        })
    }

    /// The image, or of its pixels those that are `wanted`, and its label or mask.
    fn sample<'a>(
        &self,
        index: usize,
        scratch: &'a mut Scratch,
        wanted: Option<RegionRequest<'_>>,
    ) -> Result<Sample<'a>, DataError> {
        self.check(index)?;
        let bad = |problem| DataError::BadSample { sample: self.sample_name(index), problem };
        files::below(&mut scratch.path, &self.folder, &self.annotations.images[index].name);
        let annotate = |size: [usize; 2], orientation: Orientation, scratch: &mut Scratch| {
            let of = self.place(index, size, orientation)?;
            let Scratch { encoded, mask, .. } = scratch;
            let outlines = match &self.annotations.content {
                Content::Labels(labels) if labels[index] == IGNORED => return Err(NO_LABEL.to_owned()),
                Content::Labels(labels) => return Ok(labels[index]),
                Content::Masks(outlines) => outlines,
            };
            self.assumed.note(index, of);
            let painted = if of == Of::Stored { size } else { orientation.turned(size) };
            mask.clear();
            mask.resize(size[0] * size[1], 0);
            for (class, shape) in outlines.regions(index) {
                // The file is decoded; its memory is free.
                shapes::paint(shape, class, mask, painted, encoded);
            }
            if of != Of::Stored {
                upright::store(mask, size, orientation, encoded);
            }
            Ok(IGNORED)
        };
        files::sample(scratch, wanted, annotate).map_err(bad)
    }

    fn check(&self, index: usize) -> Result<(), DataError> {
        if index < self.len() {
            return Ok(());
        }
        Err(DataError::NoSuchSample { dataset: self.name.to_owned(), index, len: self.len() })
    }
}

/// The name of a split's part: what stands between `instances_` and `.json`.
fn part_of(root: &Path, split: Split) -> Result<String, DataError> {
    let kinds: &[&str] = match split {
        Split::Train => &["train"],
        Split::Validation => &["val", "test"],
        Split::Test => &["test", "val"],
    };
    let part_of = |name: &str| Some(name.strip_prefix("instances_")?.strip_suffix(".json")?.to_owned());
    let folder = root.join(FOLDER);
    let parts =
        if folder.is_dir() { files::names_in(&folder, |name| part_of(name).is_some())? } else { Vec::new() };
    let part = |kind: &&str| {
        parts
            .iter()
            .filter_map(|name| part_of(name))
            .rfind(|part| part.to_ascii_lowercase().starts_with(*kind))
    };
    kinds.iter().find_map(part).ok_or_else(|| {
        let files: Vec<String> =
            kinds.iter().map(|kind| format!("{FOLDER}/instances_{kind}*.json")).collect();
        let problem = format!(
            "holds no file {}; the images belong in folders named like the \
                     split",
            files.join(" or ")
        );
        DataError::Damaged { path: root.to_owned(), problem }
    })
}

impl Dataset for Coco {
    fn name(&self) -> &str {
        self.name
    }

    fn len(&self) -> usize {
        self.annotations.images.len()
    }

    fn classes(&self) -> usize {
        self.annotations.categories.len() + usize::from(self.masks())
    }

    fn class_name(&self, class: usize) -> String {
        match class.checked_sub(usize::from(self.masks())) {
            None => "background".to_owned(),
            Some(category) => {
                self.annotations.categories.get(category).cloned().unwrap_or_else(|| class.to_string())
            }
        }
    }

    fn sample_shape(&self) -> Option<[usize; 3]> {
        None
    }

    fn sample_name(&self, index: usize) -> String {
        let name = self.annotations.images.get(index).map(|image| self.folder.join(&*image.name));
        name.map_or_else(|| format!("sample {index}"), |path| path.display().to_string())
    }

    fn label(&self, index: usize) -> Result<u32, DataError> {
        self.check(index)?;
        Ok(self.label_of(index).unwrap_or(IGNORED))
    }

    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        self.sample(index, scratch, None)
    }

    fn read_region<'a>(
        &'a self,
        index: usize,
        scratch: &'a mut Scratch,
        wanted: RegionRequest<'_>,
    ) -> Result<Sample<'a>, DataError> {
        self.sample(index, scratch, Some(wanted))
    }

    fn encoded<'a>(&self, index: usize, scratch: &'a mut Scratch) -> Result<Option<&'a [u8]>, DataError> {
        self.check(index)?;
        let bad = |problem| DataError::BadSample { sample: self.sample_name(index), problem };
        if self.label_of(index) == Some(IGNORED) {
            return Err(bad(NO_LABEL.to_owned()));
        }
        files::below(&mut scratch.path, &self.folder, &self.annotations.images[index].name);
        files::encoded(scratch).map_err(bad)
    }

    fn stored_files(
        &self,
        index: usize,
        scratch: &mut Scratch,
        detail: FileDetail,
        report: &mut dyn FnMut(StoredFile<'_>),
    ) {
        let Some(image) = self.annotations.images.get(index) else { return };
        let folder = self.folder.strip_prefix(&self.root).unwrap_or(&self.folder);
        files::report(&self.root, &format!("{}/{}", folder.display(), image.name), scratch, detail, report);
    }

    fn hash_memory(&self, hash: &mut Sha256) {
        self.annotations.hash(hash);
    }

    fn damaged(&self) -> &[(u32, String)] {
        &self.damaged
    }

    fn assumed_upright(&self) -> usize {
        self.assumed.count()
    }

    fn masks(&self) -> bool {
        matches!(self.annotations.content, Content::Masks(_))
    }

    fn normalisation(&self) -> Normalisation {
        Normalisation::imagenet()
    }

    fn resident_bytes(&self) -> u64 {
        self.annotations.bytes() + self.assumed.bytes()
    }
}
