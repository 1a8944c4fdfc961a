//! A data set, its samples and how they are stored.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::datasets::split::Split;
use crate::decode::ImageDecoder;
use crate::error::DataError;
use crate::geometry::{DctScale, DctScaled, Orientation, Region};
use crate::ignored_files::IgnoredFiles;
use crate::transform::pixels::{Normalisation, PixelOrder};

/// The maximum number of damaged samples in a message.
pub(crate) const MAX_LISTED_SAMPLES: usize = 20;

/// The label of images without a class, such as those with masks or targets.
pub const IGNORED: u32 = u32::MAX;
/// The class of mask pixels without a class: losses and metrics ignore them.
pub const IGNORED_PIXEL: u8 = 255;

/// Computes the region of a sample to read, from the shape (C, H, W) and orientation of its stored image.
pub type RegionRequest<'a> = &'a dyn Fn([usize; 3], Orientation) -> Region;

/// The kind of targets of a data set that has targets instead of classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetKind {
    /// Several labels per image: 1 yes, 0 no.
    Labels,
    /// Several numbers per image, in the unit of the data set.
    Numbers,
}

/// A labelled collection of images.
///
/// Samples are read by index, in any order and from several threads: from memory, or decoded by the calling
/// thread. They are returned as stored; the loader crops, resizes and normalises them.
pub trait Dataset: Send + Sync {
    /// The name in the registry.
    fn name(&self) -> &str;

    /// The number of samples; never 0.
    fn len(&self) -> usize;

    /// Returns whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of classes: labels are below it. With [targets](Self::target_kind) their number per sample.
    fn classes(&self) -> usize;

    /// The name of a class, or of a target.
    fn class_name(&self, class: usize) -> String {
        class.to_string()
    }

    /// Channels, height, width of every stored sample; `None` if they differ.
    fn sample_shape(&self) -> Option<[usize; 3]>;

    /// The name of a sample for messages: its file.
    fn sample_name(&self, index: usize) -> String {
        format!("sample {index}")
    }

    /// The label of sample `index`, without decoding its pixels.
    ///
    /// # Errors
    ///
    /// [`DataError::SampleOutOfRange`], or if the label cannot be read.
    fn label(&self, index: usize) -> Result<u32, DataError>;

    /// The kind of the targets, if samples have targets instead of a class or a mask. Their
    /// [`label`](Self::label) is then [`IGNORED`].
    fn target_kind(&self) -> Option<TargetKind> {
        None
    }

    /// The targets of sample `index`, [`classes`](Self::classes) values; NaN marks a missing one. Empty if
    /// the data set has none.
    ///
    /// # Errors
    ///
    /// [`DataError::SampleOutOfRange`].
    fn targets(&self, index: usize) -> Result<&[f32], DataError> {
        let _ = index;
        Ok(&[])
    }

    /// The target of a label that the data set does not have, for samples with targets: 0 if its labels
    /// exclude each other, else NaN, since it is not known whether the label applies.
    fn target_of_other_labels(&self) -> f32 {
        f32::NAN
    }

    /// Reads sample `index`. Its pixels are in the data set or in `scratch`, which belongs to the calling
    /// thread.
    ///
    /// # Errors
    ///
    /// [`DataError::SampleOutOfRange`], or if the sample cannot be read or decoded.
    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError>;

    /// Like [`read`](Self::read), but may decode only the region that `region` returns, at a DCT scale that
    /// it allows. Rows below the region may be missing, and pixels outside of it are undefined. Damage
    /// elsewhere in the file may go unnoticed.
    ///
    /// # Errors
    ///
    /// Like [`read`](Self::read).
    fn read_region<'a>(
        &'a self,
        index: usize,
        scratch: &'a mut Scratch,
        region: RegionRequest<'_>,
    ) -> Result<Sample<'a>, DataError> {
        let _ = region;
        self.read(index, scratch)
    }

    /// Reads the stored file of a sample, an image file, into `scratch`, without decoding it; `None` if
    /// samples are not files. The file may be damaged.
    ///
    /// # Errors
    ///
    /// [`DataError::SampleOutOfRange`], or if the file cannot be read.
    fn encoded<'a>(&self, index: usize, scratch: &'a mut Scratch) -> Result<Option<&'a [u8]>, DataError> {
        let _ = (index, scratch);
        Ok(None)
    }

    /// Reports each file of a sample, its image first. Samples that are synthetic, or parts of larger files,
    /// have none.
    fn stored_files(
        &self,
        index: usize,
        scratch: &mut Scratch,
        detail: FileDetail,
        report: &mut dyn FnMut(StoredFile<'_>),
    ) {
        let _ = (index, scratch, detail, report);
    }

    /// The files that hold several samples each, in order: path below the root, length in bytes, and SHA-256
    /// if an index records it.
    fn archives(&self) -> Vec<(String, u64, Option<String>)> {
        Vec::new()
    }

    /// Hashes the sample data in memory other than labels: pixels, outlines, positions in archives.
    fn hash_memory(&self, hash: &mut Sha256) {
        let _ = hash;
    }

    /// The groups in which samples are stored, if reading in arbitrary order is slow.
    fn groups(&self) -> Option<Groups<'_>> {
        None
    }

    /// Announces the groups to be read: `now` in arbitrary order, then `next` in this order. Other groups
    /// will not be read soon. Must not block.
    fn announce_groups(&self, now: &[u32], next: &[u32]) {
        let _ = (now, next);
    }

    /// Damaged samples that were found when the data set was opened and that [`read`](Self::read) rejects:
    /// index and cause, in order.
    fn damaged(&self) -> &[(u32, String)] {
        &[]
    }

    /// Files in the folders of images that are images neither by their names nor by their contents. They are
    /// not samples.
    fn ignored_files(&self) -> IgnoredFiles {
        IgnoredFiles::default()
    }

    /// Properties of the data set that are unusual, but no error: a sentence each.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Verifies files with known checksums that were not verified when the data set was opened. Returns the
    /// files that differ, with the problem.
    ///
    /// # Errors
    ///
    /// [`DataError::Unreadable`].
    fn verify_files(&self) -> Result<Vec<(String, String)>, DataError> {
        Ok(Vec::new())
    }

    /// The number of samples read so far that have an EXIF rotation and annotations whose coordinate space is
    /// ambiguous. They are assumed to refer to the upright image.
    fn assumed_upright(&self) -> usize {
        0
    }

    /// Returns whether samples have masks: a class for every pixel instead of one for the image.
    fn has_masks(&self) -> bool {
        false
    }

    /// The usual mean and standard deviation of this data set.
    fn normalisation(&self) -> Normalisation;

    /// Memory of the open data set, in bytes.
    fn resident_bytes(&self) -> u64;
}

/// The detail in which a file is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileDetail {
    /// The path only: nothing is read from disk.
    Path,
    /// Path and length.
    Length,
    /// Path, length and content.
    Content,
}

/// A file of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredFile<'a> {
    /// Its path below the data set's root, separated by `/`.
    pub path: &'a str,
    /// Its length in bytes; `None` if it was not requested, or there is no such file.
    pub bytes: Option<u64>,
    /// Its bytes, if they were requested and can be read.
    pub content: Option<&'a [u8]>,
}

/// Samples that are stored in groups, such as shards. An epoch then permutes the groups, and the samples
/// within each window of consecutive groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups<'a> {
    /// The first sample of each group, starting at 0; no group is empty.
    pub starts: &'a [u32],
    /// Groups per window, at least 1.
    pub window: usize,
}

/// A sample, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample<'a> {
    /// Pixels 0 to 255, row-major, contiguous. From [`read_region`](Dataset::read_region) possibly the first
    /// rows only, then interleaved.
    pub pixels: &'a [u8],
    /// Channels, height, width.
    pub shape: [usize; 3],
    /// The size of the stored image, if the pixels are a scaled version; see [`Region::scale`].
    pub dct_scaled: Option<DctScaled>,
    /// The order of the pixels.
    pub order: PixelOrder,
    /// The rotation and mirroring that make the image upright.
    pub orientation: Orientation,
    /// The class, or [`IGNORED`] for images with a mask or with targets.
    pub label: u32,
    /// For data sets with [masks](Dataset::has_masks): the class of every pixel, `[H, W]` of the stored
    /// image, row-major. [`IGNORED_PIXEL`] marks pixels without a class.
    pub mask: Option<&'a [u8]>,
}

impl Sample<'_> {
    /// Height and width of the stored image, even if the pixels are a scaled version.
    #[must_use]
    pub fn stored_size(&self) -> [usize; 2] {
        let [_, height, width] = self.shape;
        self.dct_scaled.map_or([height, width], |reduced| reduced.original_size)
    }

    /// The DCT scale of the pixels.
    #[must_use]
    pub fn dct_scale(&self) -> DctScale {
        self.dct_scaled.map_or(DctScale::Full, |reduced| reduced.scale)
    }

    /// Height and width of the stored image when it is upright.
    #[must_use]
    pub fn upright_size(&self) -> [usize; 2] {
        self.orientation.apply_to_size(self.stored_size())
    }

    /// Checks the number of pixels against the shape, and the shape against the declared one, if any.
    ///
    /// # Errors
    ///
    /// [`DataError::SampleSize`].
    pub fn check(&self, dataset: &dyn Dataset, index: usize) -> Result<(), DataError> {
        self.check_rows(dataset, index, self.shape[1])
    }

    /// Like [`check`](Self::check), for a sample of which the first `rows` rows were requested.
    ///
    /// # Errors
    ///
    /// [`DataError::SampleSize`].
    pub fn check_rows(&self, dataset: &dyn Dataset, index: usize, rows: usize) -> Result<(), DataError> {
        let bytes = |shape: [usize; 3]| shape.iter().try_fold(1, |all: usize, &n| all.checked_mul(n));
        let [channels, height, width] = self.shape;
        let declared = dataset.sample_shape().filter(|_| self.dct_scaled.is_none()).unwrap_or(self.shape);
        let (expected, found) = (bytes(declared), self.pixels.len());
        let min_bytes = bytes([channels, rows.min(height), width]);
        let is_partial = self.order == PixelOrder::Interleaved
            && min_bytes.is_some_and(|min_bytes| found >= min_bytes)
            && expected.is_some_and(|expected| found <= expected)
            && found.is_multiple_of((channels * width).max(1));
        if (is_partial || expected == Some(found)) && found > 0 && declared == self.shape {
            return Ok(());
        }
        let expected = expected.unwrap_or(usize::MAX);
        Err(DataError::SampleSize { dataset: dataset.name().to_owned(), index, expected, found })
    }
}

/// Scratch memory of a reading thread, kept between samples, so that decoding allocates only until it is
/// large enough.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    /// The bytes of a file.
    pub encoded: Vec<u8>,
    /// The decoded pixels.
    pub decoded: Vec<u8>,
    /// The decoded mask: a class for every pixel.
    pub mask: Vec<u8>,
    /// The path of a file.
    pub path: PathBuf,
    /// The image decoders.
    pub images: ImageDecoder,
}

/// Returns an error for damaged samples, with their number and the first few.
pub(crate) fn reject_damaged(set: &dyn Dataset, split: Split) -> Result<(), DataError> {
    let damaged = set.damaged();
    if damaged.is_empty() {
        return Ok(());
    }
    let first = damaged.iter().take(MAX_LISTED_SAMPLES);
    let listed = first.map(|(index, problem)| (set.sample_name(*index as usize), problem.clone())).collect();
    Err(DataError::BadSamples { dataset: set.name().to_owned(), split, count: damaged.len(), listed })
}
