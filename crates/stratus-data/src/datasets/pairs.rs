//! Image files, each with a label image of its size beside it: what CamVid and Cityscapes are made of.
//!
//! In memory are the paths alone. Both files are read and decoded by the loader's threads; label images
//! become masks by the tables of the data set ([`Coding`]).

use std::path::{Path, PathBuf};

use super::coding::Coding;
use super::upright::{self, Assumed, Of};
use super::{
    Dataset, FileDetail, IGNORED, OpenOptions, Sample, Scratch, Split, StoredFile, files, refuse_damaged,
};
use crate::decode;
use crate::error::DataError;
use crate::parallel;
use crate::transform::frame::Orientation;
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
    coding: &'static Coding<'static>,
    root: PathBuf,
    pairs: Vec<Pair>,
    damaged: Vec<(u32, String)>,
    assumed: Assumed,
}

impl PairedFiles {
    /// Opens the pairs. Unless `options.verify` is off, every image's beginning and end are looked at, and
    /// every label image is decoded.
    pub(super) fn open(
        name: &'static str,
        coding: &'static Coding<'static>,
        root: &Path,
        split: Split,
        pairs: Vec<Pair>,
        options: &OpenOptions,
    ) -> Result<Self, DataError> {
        if pairs.is_empty() {
            return Err(DataError::Empty { origin: format!("{}, {split} split", root.display()) });
        }
        let assumed = Assumed::new(pairs.len());
        let mut set = Self { name, coding, root: root.to_owned(), pairs, damaged: Vec::new(), assumed };
        if options.verify {
            set.damaged = set.find_damaged();
        }
        if !options.skip_damaged {
            refuse_damaged(&set, split)?;
        }
        Ok(set)
    }

    /// Looks at every pair, on all cores.
    fn find_damaged(&self) -> Vec<(u32, String)> {
        parallel::problems(self.len(), |scratch, index| self.probe(index, scratch))
    }

    fn probe(&self, index: usize, scratch: &mut Scratch) -> Result<(), String> {
        let image = &self.pairs[index].image;
        files::below(&mut scratch.path, &self.root, image);
        let Scratch { encoded, decoded, path, images, .. } = &mut *scratch;
        let size = files::probe(path, images, encoded, decoded)?;
        let upright = self.read_mask(index, size, Orientation::default(), scratch);
        if upright.is_ok() {
            return upright;
        }
        // The label image may be of the image as it is shown.
        files::below(&mut scratch.path, &self.root, image);
        let Scratch { encoded, decoded, path, images, .. } = &mut *scratch;
        let (size, orientation) = files::described(path, images, encoded, decoded)?;
        if orientation == Orientation::default() {
            return upright;
        }
        self.read_mask(index, size, orientation, scratch)
    }

    /// Reads the mask of an image of this stored size and orientation.
    fn read_mask(
        &self,
        index: usize,
        size: [usize; 2],
        orientation: Orientation,
        scratch: &mut Scratch,
    ) -> Result<(), String> {
        let pair = &self.pairs[index];
        let Scratch { encoded, mask, path, .. } = scratch;
        files::below(path, &self.root, &pair.labels);
        let named = |problem: String| format!("its label image {}: {problem}", pair.labels);
        files::read(path, encoded).map_err(named)?;
        let labels = decode::decode_labels(encoded, mask).map_err(named)?;
        let found = [labels.height, labels.width];
        let Some(of) = upright::annotated(found, size, orientation) else {
            let [height, width] = size;
            return Err(named(format!("is {}×{}, but the image is {height}×{width}", found[0], found[1])));
        };
        self.coding.mask_of(&labels, mask).map_err(named)?;
        self.assumed.note(index, of);
        if let Of::Upright { .. } = of {
            upright::store(mask, size, orientation, encoded);
        }
        Ok(())
    }

    fn check(&self, index: usize) -> Result<&Pair, DataError> {
        self.pairs.get(index).ok_or_else(|| DataError::NoSuchSample {
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
        self.coding.classes.len()
    }

    fn class_name(&self, class: usize) -> String {
        self.coding.classes.get(class).map_or_else(|| class.to_string(), |&name| name.to_owned())
    }

    fn sample_shape(&self) -> Option<[usize; 3]> {
        None
    }

    fn sample_name(&self, index: usize) -> String {
        let name = self.pairs.get(index).map(|pair| format!("{}/{}", self.root.display(), pair.image));
        name.unwrap_or_else(|| format!("sample {index}"))
    }

    fn label(&self, index: usize) -> Result<u32, DataError> {
        self.check(index)?;
        Ok(IGNORED)
    }

    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        let pair = self.check(index)?;
        let bad = |problem| DataError::BadSample { sample: self.sample_name(index), problem };
        files::below(&mut scratch.path, &self.root, &pair.image);
        let annotate = |size: [usize; 2], orientation, scratch: &mut Scratch| {
            self.read_mask(index, size, orientation, scratch).map(|()| IGNORED)
        };
        files::sample(scratch, None, annotate).map_err(bad)
    }

    fn encoded<'a>(&self, index: usize, scratch: &'a mut Scratch) -> Result<Option<&'a [u8]>, DataError> {
        let pair = self.check(index)?;
        files::below(&mut scratch.path, &self.root, &pair.image);
        files::encoded(scratch)
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

    fn assumed_upright(&self) -> usize {
        self.assumed.count()
    }

    fn masks(&self) -> bool {
        true
    }

    fn normalisation(&self) -> Normalisation {
        Normalisation::imagenet()
    }

    fn resident_bytes(&self) -> u64 {
        let bytes = |pair: &Pair| size_of::<Pair>() + pair.image.len() + pair.labels.len();
        self.pairs.iter().map(bytes).sum::<usize>() as u64 + self.assumed.bytes()
    }
}
