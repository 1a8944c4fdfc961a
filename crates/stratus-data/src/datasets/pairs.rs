//! Pairs of an image file and a label image of the same size: the layout of CamVid and Cityscapes.
//!
//! Only the paths are in memory. Both files are read and decoded by the loader's threads. Label images become
//! masks by the [`LabelEncoding`] of the data set.

use std::path::{Path, PathBuf};

use super::files;
use super::label_encoding::LabelEncoding;
use super::upright::{self, AssumedUpright, CoordinateSpace};
use crate::dataset::{Dataset, FileDetail, IGNORED, Sample, Scratch, StoredFile, reject_damaged};
use crate::datasets::entry::OpenOptions;
use crate::datasets::split::Split;
use crate::decode;
use crate::error::DataError;
use crate::geometry::Orientation;
use crate::ignored_files::IgnoredFiles;
use crate::parallel;
use crate::transform::pixels::Normalisation;

/// An image and its label image: paths below the data set's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub image: Box<str>,
    pub labels: Box<str>,
}

/// One split of a data set of pairs of files.
#[derive(Debug)]
pub(super) struct PairedFiles {
    name: &'static str,
    encoding: &'static LabelEncoding<'static>,
    root: PathBuf,
    pairs: Vec<Pair>,
    damaged: Vec<(u32, String)>,
    ignored_files: IgnoredFiles,
    assumed: AssumedUpright,
}

impl PairedFiles {
    /// Opens the pairs. Unless `options.verify` is off, checks the beginning and end of every image, and
    /// decodes every label image.
    pub(super) fn open(
        name: &'static str,
        encoding: &'static LabelEncoding<'static>,
        root: &Path,
        split: Split,
        pairs: Vec<Pair>,
        options: &OpenOptions,
    ) -> Result<Self, DataError> {
        if pairs.is_empty() {
            return Err(DataError::Empty { origin: format!("{}, {split} split", root.display()) });
        }
        let assumed = AssumedUpright::new(pairs.len());
        let mut set = Self {
            name,
            encoding,
            root: root.to_owned(),
            pairs,
            damaged: Vec::new(),
            ignored_files: IgnoredFiles::default(),
            assumed,
        };
        if options.verify {
            set.damaged = set.find_damaged();
        }
        if !options.skip_damaged {
            reject_damaged(&set, split)?;
        }
        Ok(set)
    }

    /// Sets the files beside the images that are no images.
    pub(super) fn with_ignored_files(self, ignored_files: IgnoredFiles) -> Self {
        Self { ignored_files, ..self }
    }

    /// Checks every pair, on all cores.
    fn find_damaged(&self) -> Vec<(u32, String)> {
        parallel::collect_problems(self.len(), |scratch, index| self.probe(index, scratch))
    }

    fn probe(&self, index: usize, scratch: &mut Scratch) -> Result<(), String> {
        let image = &self.pairs[index].image;
        files::set_path(&mut scratch.path, &self.root, image);
        let Scratch { encoded, decoded, path, images, .. } = &mut *scratch;
        let size = files::probe(path, images, encoded, decoded)?;
        let upright = self.read_mask(index, size, Orientation::default(), scratch);
        if upright.is_ok() {
            return upright;
        }
        // The label image may refer to the upright image.
        files::set_path(&mut scratch.path, &self.root, image);
        let Scratch { encoded, decoded, path, images, .. } = &mut *scratch;
        let (size, orientation) = files::stored_size_and_orientation(path, images, encoded, decoded)?;
        if orientation == Orientation::default() {
            return upright;
        }
        self.read_mask(index, size, orientation, scratch)
    }

    /// Reads the mask of an image with this stored size and orientation.
    fn read_mask(
        &self,
        index: usize,
        size: [usize; 2],
        orientation: Orientation,
        scratch: &mut Scratch,
    ) -> Result<(), String> {
        let pair = &self.pairs[index];
        let Scratch { encoded, mask, path, .. } = scratch;
        files::set_path(path, &self.root, &pair.labels);
        let named = |problem: String| format!("label image {}: {problem}", pair.labels);
        files::read(path, encoded).map_err(named)?;
        let labels = decode::decode_labels(encoded, mask).map_err(named)?;
        let found = [labels.height, labels.width];
        let Some(space) = upright::resolve_space(found, size, orientation) else {
            let [height, width] = size;
            return Err(named(format!("is {}×{}, but the image is {height}×{width}", found[0], found[1])));
        };
        self.encoding.decode_mask(&labels, mask).map_err(named)?;
        self.assumed.record(index, space);
        if let CoordinateSpace::Upright { .. } = space {
            upright::to_stored_layout(mask, size, orientation, encoded);
        }
        Ok(())
    }

    fn check_index(&self, index: usize) -> Result<&Pair, DataError> {
        self.pairs.get(index).ok_or_else(|| DataError::SampleOutOfRange {
            dataset: self.name.to_owned(),
            index,
            len: self.len(),
        })
    }
}

impl Dataset for PairedFiles {
    fn name(&self) -> &str {
        self.name
    }

    fn len(&self) -> usize {
        self.pairs.len()
    }

    fn classes(&self) -> usize {
        self.encoding.classes.len()
    }

    fn class_name(&self, class: usize) -> String {
        self.encoding.classes.get(class).map_or_else(|| class.to_string(), |&name| name.to_owned())
    }

    fn sample_shape(&self) -> Option<[usize; 3]> {
        None
    }

    fn sample_name(&self, index: usize) -> String {
        let name = self.pairs.get(index).map(|pair| format!("{}/{}", self.root.display(), pair.image));
        name.unwrap_or_else(|| format!("sample {index}"))
    }

    fn label(&self, index: usize) -> Result<u32, DataError> {
        self.check_index(index)?;
        Ok(IGNORED)
    }

    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        let pair = self.check_index(index)?;
        let bad_sample = |problem| DataError::BadSample { sample: self.sample_name(index), problem };
        files::set_path(&mut scratch.path, &self.root, &pair.image);
        let annotate = |size: [usize; 2], orientation, scratch: &mut Scratch| {
            self.read_mask(index, size, orientation, scratch).map(|()| IGNORED)
        };
        files::decode_sample(scratch, None, annotate).map_err(bad_sample)
    }

    fn encoded<'a>(&self, index: usize, scratch: &'a mut Scratch) -> Result<Option<&'a [u8]>, DataError> {
        let pair = self.check_index(index)?;
        files::set_path(&mut scratch.path, &self.root, &pair.image);
        files::read_encoded(scratch)
            .map_err(|problem| DataError::BadSample { sample: self.sample_name(index), problem })
    }

    fn stored_files(
        &self,
        index: usize,
        scratch: &mut Scratch,
        detail: FileDetail,
        report: &mut dyn FnMut(StoredFile<'_>),
    ) {
        let Some(Pair { image, labels }) = self.pairs.get(index) else { return };
        for file in [image, labels] {
            files::report(&self.root, file, scratch, detail, report);
        }
    }

    fn damaged(&self) -> &[(u32, String)] {
        &self.damaged
    }

    fn ignored_files(&self) -> IgnoredFiles {
        self.ignored_files.clone()
    }

    fn assumed_upright(&self) -> usize {
        self.assumed.count()
    }

    fn has_masks(&self) -> bool {
        true
    }

    fn normalisation(&self) -> Normalisation {
        Normalisation::imagenet()
    }

    fn resident_bytes(&self) -> u64 {
        let bytes = |pair: &Pair| size_of::<Pair>() + pair.image.len() + pair.labels.len();
        self.pairs.iter().map(bytes).sum::<usize>() as u64
            + self.assumed.memory_bytes()
            + self.ignored_files.memory_bytes()
    }
}
