//! COCO: photographs of everyday scenes with outlined objects, from which masks are made.
//!
//! T.-Y. Lin et al.: "Microsoft COCO: common objects in context", 2014. The layout is that of its archives:
//! `annotations/instances_<part>.json` and the images in `<part>/` or `images/<part>/`. The parts are named
//! `train…` and `val…` or `test…`; if there are several (2014, 2017), the last by name is used. Other data
//! with annotations in this format can be read too.
//!
//! Class 0 is the background; the categories follow by id, without gaps. Smaller objects are painted over
//! larger ones. `iscrowd` regions outline groups loosely. Losses and metrics ignore their pixels unless a
//! single object is painted over them, like COCO's own evaluation. A pixel belongs to a polygon if its centre
//! is inside by the even-odd rule; the polygons of an annotation are joined.
//!
//! Photographs with an EXIF orientation are turned upright. Annotations refer to the upright image, unless
//! their size matches only the stored image (`upright.rs`).
//!
//! `coco_labels` gives the same photographs one class each, for image classification: the category whose
//! objects cover the largest area by the annotations' `area`, without crowds; if areas are equal, the first
//! category. Classes are the categories by id, from 0. An image without such an object has no class and
//! counts as damaged.
//!
//! `coco_multilabel` gives them a label for each category: yes if an object of it is in the image, without
//! crowds. For an image without objects all labels are 0; it does not count as damaged.

mod annotations;
mod image_labels;
mod scalar;
mod shapes;

use std::path::{Path, PathBuf};

use sha2::Sha256;

use self::annotations::{AnnotationUse, Annotations, Targets};
use super::files;
use super::upright::{self, AssumedUpright, CoordinateSpace};
use crate::dataset::{
    Dataset, FileDetail, IGNORED, RegionRequest, Sample, Scratch, StoredFile, TargetKind, reject_damaged,
};
use crate::datasets::entry::{DatasetEntry, OpenOptions};
use crate::datasets::split::Split;
use crate::error::DataError;
use crate::geometry::Orientation;
use crate::parallel;
use crate::transform::pixels::Normalisation;

const FOLDER: &str = "annotations";
const NO_LABEL: &str = "no class: the image has no annotation except `iscrowd` regions";

/// The registry entry of COCO with masks.
pub static ENTRY: DatasetEntry = DatasetEntry {
    name: "coco",
    summary: "photographs with outlined objects, 80 classes and background; annotations/instances_*.json",
    open: |root, split, options| Ok(Box::new(Coco::open(&ENTRY, AnnotationUse::Mask, root, split, options)?)),
    files: &[],
    mirrors: &[],
};

/// The registry entry of COCO with a class per image.
pub static LABELS: DatasetEntry = DatasetEntry {
    name: "coco_labels",
    summary: "the photographs of coco, each with the class that covers most of it, 80 classes",
    open: |root, split, options| {
        Ok(Box::new(Coco::open(&LABELS, AnnotationUse::Class, root, split, options)?))
    },
    files: &[],
    mirrors: &[],
};

/// The registry entry of COCO with a label per image and category.
pub static MULTILABEL: DatasetEntry = DatasetEntry {
    name: "coco_multilabel",
    summary: "the photographs of coco, each with the classes of all its objects, 80 labels",
    open: |root, split, options| {
        Ok(Box::new(Coco::open(&MULTILABEL, AnnotationUse::Labels, root, split, options)?))
    },
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
    assumed: AssumedUpright,
}

impl Coco {
    /// Opens a split. Checks the beginning and end of every file and its image size, unless `options.verify`
    /// is off.
    ///
    /// # Errors
    ///
    /// [`DataError`]: missing files or folders, invalid annotations, or images that are damaged or have no
    /// class, with their number and the first few.
    fn open(
        entry: &DatasetEntry,
        target: AnnotationUse,
        root: &Path,
        split: Split,
        options: &OpenOptions,
    ) -> Result<Self, DataError> {
        let part = split_file_stem(root, split)?;
        let folders = [root.join(&part), root.join("images").join(&part)];
        folders.iter().try_for_each(|folder| files::reject_dead_link(folder))?;
        let Some(folder) = folders.into_iter().find(|folder| folder.is_dir()) else {
            let problem = format!("no folder `{part}` or `images/{part}` with the images");
            return Err(DataError::Invalid { path: root.to_owned(), problem });
        };
        let annotations =
            Annotations::read(&root.join(FOLDER).join(format!("instances_{part}.json")), target)?;
        let assumed =
            AssumedUpright::new(if target == AnnotationUse::Mask { annotations.images.len() } else { 0 });
        let (name, root, damaged) = (entry.name, root.to_owned(), Vec::new());
        let mut set = Self { name, root, folder, annotations, damaged, assumed };
        set.damaged = set.find_damaged(options.verify);
        if !options.skip_damaged {
            reject_damaged(&set, split)?;
        }
        Ok(set)
    }

    /// The images that cannot be used. With `verify` every file is checked, on all cores.
    fn find_damaged(&self, verify: bool) -> Vec<(u32, String)> {
        if !verify && !matches!(self.annotations.targets, Targets::Classes(_)) {
            return Vec::new();
        }
        parallel::collect_problems(self.len(), |scratch: &mut Scratch, index| {
            if self.class_label(index) == Some(IGNORED) {
                return Err(NO_LABEL.to_owned());
            }
            if !verify {
                return Ok(());
            }
            let Scratch { encoded, decoded, path, images, .. } = scratch;
            files::set_path(path, &self.folder, &self.annotations.images[index].name);
            let found = files::probe(path, images, encoded, decoded)?;
            let upright = self.resolve_space(index, found, Orientation::default());
            if upright.is_ok() {
                return upright.map(drop);
            }
            // The annotations may refer to the upright image.
            let (found, orientation) = files::stored_size_and_orientation(path, images, encoded, decoded)?;
            self.resolve_space(index, found, orientation).map(drop)
        })
    }

    /// The label of an image, or [`IGNORED`] if it has none; `None` if images have masks or several labels.
    fn class_label(&self, index: usize) -> Option<u32> {
        match &self.annotations.targets {
            Targets::Masks(_) | Targets::Labels(_) => None,
            Targets::Classes(labels) => Some(labels[index]),
        }
    }

    /// The coordinate space of an image's annotations, from its stored size and orientation.
    fn resolve_space(
        &self,
        index: usize,
        found: [usize; 2],
        orientation: Orientation,
    ) -> Result<CoordinateSpace, String> {
        let annotated = self.annotations.images[index].size.map(|length| length as usize);
        let space = match &self.annotations.targets {
            // Without coordinates, either size is accepted.
            Targets::Classes(_) | Targets::Labels(_) if [annotated[1], annotated[0]] == found => {
                Some(CoordinateSpace::Stored)
            }
            _ => upright::resolve_space(annotated, found, orientation),
        };
        space.ok_or_else(|| {
            let ([height, width], [found_height, found_width]) = (annotated, found);
            format!("annotations are for {height}×{width}, but the image is {found_height}×{found_width}")
        })
    }

    /// Reads an image, or only the region that `region` returns, with its label or mask.
    fn read_sample<'a>(
        &self,
        index: usize,
        scratch: &'a mut Scratch,
        region: Option<RegionRequest<'_>>,
    ) -> Result<Sample<'a>, DataError> {
        self.check_index(index)?;
        let bad_sample = |problem| DataError::BadSample { sample: self.sample_name(index), problem };
        files::set_path(&mut scratch.path, &self.folder, &self.annotations.images[index].name);
        let annotate = |size: [usize; 2], orientation: Orientation, scratch: &mut Scratch| {
            let space = self.resolve_space(index, size, orientation)?;
            let Scratch { encoded, mask, .. } = scratch;
            let regions = match &self.annotations.targets {
                Targets::Classes(labels) if labels[index] == IGNORED => return Err(NO_LABEL.to_owned()),
                Targets::Classes(labels) => return Ok(labels[index]),
                Targets::Labels(_) => return Ok(IGNORED),
                Targets::Masks(regions) => regions,
            };
            self.assumed.record(index, space);
            let painted =
                if space == CoordinateSpace::Stored { size } else { orientation.apply_to_size(size) };
            mask.clear();
            mask.resize(size[0] * size[1], 0);
            for (class, shape) in regions.of_image(index) {
                // The file is decoded, so its memory can be reused.
                shapes::rasterise(shape, class, mask, painted, encoded);
            }
            if space != CoordinateSpace::Stored {
                upright::to_stored_layout(mask, size, orientation, encoded);
            }
            Ok(IGNORED)
        };
        let sample = files::decode_sample(scratch, region, annotate).map_err(bad_sample)?;
        Ok(Sample { mask: sample.mask.filter(|_| self.has_masks()), ..sample })
    }

    fn check_index(&self, index: usize) -> Result<(), DataError> {
        if index < self.len() {
            return Ok(());
        }
        Err(DataError::SampleOutOfRange { dataset: self.name.to_owned(), index, len: self.len() })
    }
}

/// The name of the part that belongs to a split: the text between `instances_` and `.json` in the name of
/// its annotation file.
fn split_file_stem(root: &Path, split: Split) -> Result<String, DataError> {
    let kinds: &[&str] = match split {
        Split::Train => &["train"],
        Split::Validation => &["val", "test"],
        Split::Test => &["test", "val"],
    };
    let stem_of = |name: &str| Some(name.strip_prefix("instances_")?.strip_suffix(".json")?.to_owned());
    let folder = root.join(FOLDER);
    let parts = if folder.is_dir() {
        files::visible_names(&folder, |name| stem_of(name).is_some())?
    } else {
        Vec::new()
    };
    let last_part = |kind: &&str| {
        parts
            .iter()
            .filter_map(|name| stem_of(name))
            .rfind(|part| part.to_ascii_lowercase().starts_with(*kind))
    };
    kinds.iter().find_map(last_part).ok_or_else(|| {
        let files: Vec<String> =
            kinds.iter().map(|kind| format!("{FOLDER}/instances_{kind}*.json")).collect();
        let problem =
            format!("no file {}; the images must be in a folder named like the split", files.join(" or "));
        DataError::Invalid { path: root.to_owned(), problem }
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
        self.annotations.categories.len() + usize::from(self.has_masks())
    }

    fn class_name(&self, class: usize) -> String {
        match class.checked_sub(usize::from(self.has_masks())) {
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
        self.check_index(index)?;
        Ok(self.class_label(index).unwrap_or(IGNORED))
    }

    fn target_kind(&self) -> Option<TargetKind> {
        matches!(self.annotations.targets, Targets::Labels(_)).then_some(TargetKind::Labels)
    }

    fn targets(&self, index: usize) -> Result<&[f32], DataError> {
        self.check_index(index)?;
        match &self.annotations.targets {
            Targets::Labels(rows) => Ok(rows.row(index)),
            _ => Ok(&[]),
        }
    }

    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        self.read_sample(index, scratch, None)
    }

    fn read_region<'a>(
        &'a self,
        index: usize,
        scratch: &'a mut Scratch,
        region: RegionRequest<'_>,
    ) -> Result<Sample<'a>, DataError> {
        self.read_sample(index, scratch, Some(region))
    }

    fn encoded<'a>(&self, index: usize, scratch: &'a mut Scratch) -> Result<Option<&'a [u8]>, DataError> {
        self.check_index(index)?;
        let bad_sample = |problem| DataError::BadSample { sample: self.sample_name(index), problem };
        if self.class_label(index) == Some(IGNORED) {
            return Err(bad_sample(NO_LABEL.to_owned()));
        }
        files::set_path(&mut scratch.path, &self.folder, &self.annotations.images[index].name);
        files::read_encoded(scratch).map_err(bad_sample)
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

    fn has_masks(&self) -> bool {
        matches!(self.annotations.targets, Targets::Masks(_))
    }

    fn normalisation(&self) -> Normalisation {
        Normalisation::imagenet()
    }

    fn resident_bytes(&self) -> u64 {
        self.annotations.memory_bytes() + self.assumed.memory_bytes()
    }
}
