//! Data sets: what one is, and the ones there are.
//!
//! A new data set is a file here with a [`DatasetEntry`] and its line in [`REGISTRY`].

pub mod camvid;
pub mod cifar;
pub mod cityscapes;
pub mod coco;
mod files;
pub mod folder;
pub mod mnist;
mod pairs;
pub mod shards;
mod split;
pub mod synthetic;

pub(crate) use self::files::read_list;
pub use self::split::{Split, SplitBy};

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stratus_base::nearest;
use stratus_store::RetryPolicy;

use crate::decode::ImageDecoder;
use crate::error::DataError;
use crate::frame::{Orientation, Region};
use crate::pixels::{Normalisation, PixelOrder};

/// How many damaged samples a message lists.
const LISTED: usize = 20;

/// Every data set, by name.
pub static REGISTRY: &[&DatasetEntry] = &[
    &mnist::ENTRY,
    &cifar::CIFAR10,
    &cifar::CIFAR100,
    &cifar::CIFAR100_COARSE,
    &folder::ENTRY,
    &camvid::ENTRY,
    &cityscapes::ENTRY,
    &coco::ENTRY,
    &coco::LABELS,
    &shards::ENTRY,
    &synthetic::ENTRY,
];

/// Says which region of a sample is wanted, given its stored image's shape (C, H, W) and orientation.
pub type RegionRequest<'a> = &'a dyn Fn([usize; 3], Orientation) -> Region;

/// A labelled collection of images.
///
/// Samples are read by index, in any order and from several threads at once: from memory, or decoded by the
/// thread that reads. They come as they are stored; the loader cuts, resizes and places them.
pub trait Dataset: Send + Sync {
    /// The name in the registry.
    fn name(&self) -> &str;

    /// The number of samples; never 0.
    fn len(&self) -> usize;

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of classes: labels go from 0 to `classes() - 1`.
    fn classes(&self) -> usize;

    /// What a person calls class `class`.
    fn class_name(&self, class: usize) -> String {
        class.to_string()
    }

    /// Channels, height, width of every stored sample; `None` where they differ.
    fn sample_shape(&self) -> Option<[usize; 3]>;

    /// What a person calls sample `index`: its file.
    fn sample_name(&self, index: usize) -> String {
        format!("sample {index}")
    }

    /// The label of sample `index`, without decoding its pixels.
    ///
    /// # Errors
    ///
    /// [`DataError::NoSuchSample`], and what reading the label may give.
    fn label(&self, index: usize) -> Result<u32, DataError>;

    /// Sample `index`. Its pixels lie in the data set or in `scratch`, which belongs to the calling thread.
    ///
    /// # Errors
    ///
    /// [`DataError::NoSuchSample`], and what reading and decoding may give.
    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError>;

    /// Sample `index` as by [`read`](Self::read), but of its pixels maybe only those of the region that is
    /// `wanted`. The rows below it may be missing, and what pixels outside of it hold is undefined. Where
    /// that saves work, what is wrong with the rest may not be noticed.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    fn read_region<'a>(
        &'a self,
        index: usize,
        scratch: &'a mut Scratch,
        wanted: RegionRequest<'_>,
    ) -> Result<Sample<'a>, DataError> {
        let _ = wanted;
        self.read(index, scratch)
    }

    /// The file of sample `index` as it is stored, JPEG or PNG, in `scratch`; `None` where samples are no
    /// files. It is not decoded, and may be damaged.
    ///
    /// # Errors
    ///
    /// [`DataError::NoSuchSample`], and what reading may give.
    fn encoded<'a>(&self, index: usize, scratch: &'a mut Scratch) -> Result<Option<&'a [u8]>, DataError> {
        let _ = (index, scratch);
        Ok(None)
    }

    /// How samples lie together, where reading them in any order would cost much; `None` where it does not.
    fn groups(&self) -> Option<Groups<'_>> {
        None
    }

    /// Says which groups samples will be read from: `now` in any order, among each other, and behind them
    /// `next`, in this order. What is in neither will not be read for a long time. Must return at once.
    fn expect(&self, now: &[u32], next: &[u32]) {
        let _ = (now, next);
    }

    /// Samples that were found damaged when the data set was opened, and that [`read`](Self::read) refuses:
    /// index and reason, in order.
    fn damaged(&self) -> &[(u32, String)] {
        &[]
    }

    /// Reads the files whose checksums are known and were not compared when the data set was opened, and
    /// gives those that differ: file and problem.
    ///
    /// # Errors
    ///
    /// [`DataError::Unreadable`].
    fn damaged_files(&self) -> Result<Vec<(String, String)>, DataError> {
        Ok(Vec::new())
    }

    /// Whether samples have masks: a class for every pixel instead of one for the image.
    fn masks(&self) -> bool {
        false
    }

    /// The mean and deviation commonly used with this data set.
    fn normalisation(&self) -> Normalisation;

    /// Bytes of memory the data set holds while it is open.
    fn resident_bytes(&self) -> u64;
}

/// Samples that lie together, as in files that are large or far away. The order of an epoch is then a
/// permutation of the groups, and within windows of it one of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups<'a> {
    /// The first sample of each group, in order, from 0; none is empty.
    pub firsts: &'a [u32],
    /// Groups whose samples are shuffled among each other, at least 1.
    pub window: usize,
}

/// One sample, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample<'a> {
    /// Pixels 0 to 255, row-major, contiguous; from [`read_region`](Dataset::read_region) maybe the first
    /// rows only, then interleaved.
    pub pixels: &'a [u8],
    /// Channels, height, width.
    pub shape: [usize; 3],
    /// The order of the pixels.
    pub order: PixelOrder,
    /// How the image is to be turned so that it is upright.
    pub orientation: Orientation,
    /// The class; of an image with a mask [`IGNORED`].
    pub label: u32,
    /// The class of every pixel, row-major, of the stored image's height and width, [`IGNORED_PIXEL`] where a
    /// pixel has none; for data sets with [`masks`](Dataset::masks).
    pub mask: Option<&'a [u8]>,
}

/// The label of an image that belongs to no class, as those with masks do.
pub const IGNORED: u32 = u32::MAX;
/// The class of a mask's pixel that belongs to none: losses and measures pass over it.
pub const IGNORED_PIXEL: u8 = 255;

impl Sample<'_> {
    /// Height and width of the image when it is upright.
    #[must_use]
    pub fn upright_size(&self) -> [usize; 2] {
        let [_, height, width] = self.shape;
        if self.orientation.transpose { [width, height] } else { [height, width] }
    }

    /// Checks that there are as many pixels as the shape says, and that the shape is the data set's where it
    /// has one.
    ///
    /// # Errors
    ///
    /// [`DataError::SampleSize`].
    pub fn check(&self, dataset: &dyn Dataset, index: usize) -> Result<(), DataError> {
        self.check_rows(dataset, index, self.shape[1])
    }

    /// The same for a sample of which the first `rows` rows were asked for.
    ///
    /// # Errors
    ///
    /// [`DataError::SampleSize`].
    pub fn check_rows(&self, dataset: &dyn Dataset, index: usize, rows: usize) -> Result<(), DataError> {
        let bytes = |shape: [usize; 3]| shape.iter().try_fold(1, |all: usize, &n| all.checked_mul(n));
        let [channels, height, width] = self.shape;
        let declared = dataset.sample_shape().unwrap_or(self.shape);
        let (expected, found) = (bytes(declared), self.pixels.len());
        let least = bytes([channels, rows.min(height), width]);
        let part = self.order == PixelOrder::Interleaved
            && least.is_some_and(|least| found >= least)
            && expected.is_some_and(|expected| found <= expected)
            && found.is_multiple_of((channels * width).max(1));
        if (part || expected == Some(found)) && found > 0 && declared == self.shape {
            return Ok(());
        }
        let expected = expected.unwrap_or(usize::MAX);
        Err(DataError::SampleSize { dataset: dataset.name().to_owned(), index, expected, found })
    }
}

/// Memory of one reading thread, kept between samples so that decoding allocates nothing once it has grown.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    /// The sample as stored: the bytes of a file.
    pub encoded: Vec<u8>,
    /// The sample as decoded: its pixels.
    pub decoded: Vec<u8>,
    /// The mask as decoded: a class for every pixel.
    pub mask: Vec<u8>,
    /// The path of a file.
    pub path: PathBuf,
    /// What decodes it.
    pub images: ImageDecoder,
}

/// The data sets that can be divided otherwise than they come.
const DIVISIBLE: [&str; 2] = ["folder", "camvid"];

/// What was found damaged when a data set was opened, as an error: all counted, the first listed.
fn refuse_damaged(set: &dyn Dataset, split: Split) -> Result<(), DataError> {
    let damaged = set.damaged();
    if damaged.is_empty() {
        return Ok(());
    }
    let first = damaged.iter().take(LISTED);
    let listed = first.map(|(index, problem)| (set.sample_name(*index as usize), problem.clone())).collect();
    Err(DataError::BadSamples { dataset: set.name().to_owned(), split, count: damaged.len(), listed })
}

/// How a data set is opened. Each takes what concerns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Whether content that is not the published one, or samples whose beginning and end are not those of an
    /// image, are an error. Default: true.
    pub verify: bool,
    /// Whether damaged samples are kept as [`Dataset::damaged`] instead of being an error. Default: false.
    pub skip_damaged: bool,
    /// The shape (C, H, W) of images that are made up. Default: 3×224×224.
    pub shape: [usize; 3],
    /// The seed of what is made up. Default: 1.
    pub seed: u64,
    /// The size of made-up data.
    pub synthetic: synthetic::Size,
    /// A file with the names of the classes to use, one a line; without it all that are there.
    pub class_list: Option<PathBuf>,
    /// Shards whose samples are shuffled among each other, at least 1. Default: 8.
    pub shuffle_shards: usize,
    /// The folder that copies of files that lie elsewhere are kept in.
    pub cache: Option<PathBuf>,
    /// Bytes that these copies take at most. Default: 20 GiB.
    pub cache_bytes: u64,
    /// How long a store may stay away, without a byte coming, before that is an error. Default: five minutes.
    pub patience: Duration,
    /// The most training images of a class that are used, the first by name; without it all.
    pub images_per_class: Option<usize>,
    /// How samples are shared out. Default: as the data set comes.
    pub split_by: SplitBy,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            verify: true,
            skip_damaged: false,
            shape: [3, 224, 224],
            seed: 1,
            synthetic: synthetic::Size::default(),
            class_list: None,
            shuffle_shards: 8,
            cache: None,
            cache_bytes: 20 << 30,
            patience: RetryPolicy::default().give_up_after,
            images_per_class: None,
            split_by: SplitBy::Given,
        }
    }
}

impl OpenOptions {
    /// How stores are waited for.
    #[must_use]
    pub fn retry_policy(&self) -> RetryPolicy {
        let default = RetryPolicy::default();
        RetryPolicy {
            give_up_after: self.patience,
            idle_timeout: default.idle_timeout.min(self.patience),
            ..default
        }
    }
}

/// Opens a part of the data set in `root`.
pub type OpenFunction =
    fn(root: &Path, split: Split, options: &OpenOptions) -> Result<Box<dyn Dataset>, DataError>;

/// What the registry knows about a data set.
#[derive(Debug)]
pub struct DatasetEntry {
    /// The name in configurations and on the command line.
    pub name: &'static str,
    /// One line for people.
    pub summary: &'static str,
    /// Opens it.
    pub open: OpenFunction,
    /// Its published files; empty where it cannot be fetched.
    pub files: &'static [PublishedFile<'static>],
    /// Where they are published, best first: addresses that a file's name is appended to.
    pub mirrors: &'static [&'static str],
}

/// A file as its publishers offer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedFile<'a> {
    /// The name, both on the mirrors and in the data set's directory.
    pub name: &'a str,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its SHA-256 in lower-case hexadecimal.
    pub sha256: &'a str,
    /// The same file unpacked, which serves as well; for files that are gzipped.
    pub unpacked: Option<UnpackedFile<'a>>,
    /// The files to take out of it, for gzipped tar archives; the archive itself is then not kept.
    pub members: &'a [UnpackedFile<'a>],
}

/// What a published file holds once unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnpackedFile<'a> {
    /// The name in the data set's directory; for a member of an archive the path there, `/` between its
    /// parts.
    pub name: &'a str,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its SHA-256 in lower-case hexadecimal.
    pub sha256: &'a str,
}

/// The registry's entry for `name`.
///
/// # Errors
///
/// [`DataError::UnknownDataset`], with the nearest known name.
pub fn entry(name: &str) -> Result<&'static DatasetEntry, DataError> {
    REGISTRY.iter().copied().find(|entry| entry.name == name).ok_or_else(|| DataError::UnknownDataset {
        name: name.to_owned(),
        nearest: nearest(name, REGISTRY.iter().map(|entry| entry.name)).map(str::to_owned),
        known: REGISTRY.iter().map(|entry| entry.name.to_owned()).collect(),
    })
}

/// Opens a part of the data set `name`, whose files lie in the directory `root`.
///
/// # Errors
///
/// [`DataError`]: unknown name, missing or damaged files, and with `options.verify` content that is not the
/// published one.
pub fn open(
    name: &str,
    root: &Path,
    split: Split,
    options: &OpenOptions,
) -> Result<Box<dyn Dataset>, DataError> {
    let entry = entry(name)?;
    let key = match &options.split_by {
        SplitBy::Given => None,
        SplitBy::Seeded(_) => Some("data.split_seed"),
        SplitBy::Listed(_) => Some("data.lists"),
    };
    match key {
        Some(key) if !DIVISIBLE.contains(&name) => Err(DataError::Option {
            key,
            problem: format!("`{name}` comes in parts of its own; leave the key out"),
        }),
        _ => (entry.open)(root, split, options).map_err(|error| match error {
            DataError::Unreadable { path, cause }
                if path == root && cause.kind() == io::ErrorKind::NotFound =>
            {
                DataError::MissingRoot { root: path }
            }
            other => other,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_answered_with_the_nearest() {
        let message = entry("minst").unwrap_err().to_string();
        assert_eq!(
            message,
            "there is no data set `minst`, did you mean `mnist`?; known: mnist, cifar10, cifar100, \
             cifar100_coarse, folder, camvid, cityscapes, coco, coco_labels, shards, synthetic"
        );
        let message = entry("zzz").unwrap_err().to_string();
        assert_eq!(
            message,
            "there is no data set `zzz`; known: mnist, cifar10, cifar100, cifar100_coarse, folder, camvid, \
             cityscapes, coco, coco_labels, shards, synthetic"
        );
        let message = "trian".parse::<Split>().unwrap_err().to_string();
        assert_eq!(
            message,
            "there is no split `trian`, did you mean `train`?; known: train, validation, test"
        );
    }

    #[test]
    fn entries_are_well_formed() {
        for entry in REGISTRY {
            assert_eq!(REGISTRY.iter().filter(|other| other.name == entry.name).count(), 1);
            assert_eq!(entry.files.is_empty(), entry.mirrors.is_empty());
            for mirror in entry.mirrors {
                assert!(mirror.starts_with("https://") && mirror.ends_with('/'), "{mirror}");
            }
            for file in entry.files {
                let unpacked = file.unpacked.map(|unpacked| unpacked.sha256);
                let members = file.members.iter().map(|member| member.sha256);
                for sha256 in [Some(file.sha256), unpacked].into_iter().flatten().chain(members) {
                    assert!(sha256.len() == 64 && sha256.bytes().all(|b| b.is_ascii_hexdigit()), "{sha256}");
                }
            }
        }
    }
}
