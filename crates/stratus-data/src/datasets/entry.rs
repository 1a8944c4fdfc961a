//! A data set of the registry, and the options for opening it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use stratus_store::RetryPolicy;

use super::split::{Split, SplitMethod};
use crate::dataset::{Dataset, TargetKind};
use crate::error::DataError;

/// A registry entry.
#[derive(Debug)]
pub struct DatasetEntry {
    /// The name in configurations and on the command line.
    pub name: &'static str,
    /// A one-line description.
    pub summary: &'static str,
    /// Opens a split.
    pub open: OpenFunction,
    /// The published files; empty if it cannot be downloaded.
    pub files: &'static [PublishedFile<'static>],
    /// The base URLs of the files, the preferred one first.
    pub mirrors: &'static [&'static str],
}

/// A published file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedFile<'a> {
    /// The name, both on the mirrors and in the data set's directory.
    pub name: &'a str,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its SHA-256 in lower-case hexadecimal.
    pub sha256: &'a str,
    /// The unpacked content of a gzip file, which is accepted instead of it.
    pub unpacked: Option<UnpackedFile<'a>>,
    /// The members to extract from a gzipped tar archive. The archive itself is not kept.
    pub members: &'a [UnpackedFile<'a>],
}

/// The content of a published file once unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnpackedFile<'a> {
    /// The name in the data set's directory; for a member of an archive, its path separated by `/`.
    pub name: &'a str,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its SHA-256 in lower-case hexadecimal.
    pub sha256: &'a str,
}

/// Opens a split of the data set in `root`.
pub type OpenFunction =
    fn(root: &Path, split: Split, options: &OpenOptions) -> Result<Box<dyn Dataset>, DataError>;

/// Options for opening a data set. Each data set uses the relevant ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// True if content that differs from the published one, or files whose first and last bytes are not those
    /// of an image, are an error. Default: true.
    pub verify: bool,
    /// True if damaged samples are listed in [`Dataset::damaged`] instead of being an error. Default: false.
    pub skip_damaged: bool,
    /// The shape (C, H, W) of synthetic images. Default: 3×224×224.
    pub shape: [usize; 3],
    /// The seed of synthetic data. Default: 1.
    pub seed: u64,
    /// Options of synthetic data.
    pub synthetic: SyntheticOptions,
    /// A file with the names of the classes to use, one per line; `None` uses all classes.
    pub class_list: Option<PathBuf>,
    /// The number of shards that are shuffled together, at least 1. Default: 8.
    pub shuffle_shards: usize,
    /// The cache folder for remote files.
    pub cache: Option<PathBuf>,
    /// The maximum size of the cache in bytes. Default: 20 GiB.
    pub cache_bytes: u64,
    /// The time without progress after which requests to a store are not retried. Default: five minutes.
    pub give_up_after: Duration,
    /// The maximum number of training images per class, the first by name; `None` uses all.
    pub images_per_class: Option<usize>,
    /// The method of splitting the data set. Default: as published.
    pub split_method: SplitMethod,
    /// Options of tables.
    pub table: TableOptions,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            verify: true,
            skip_damaged: false,
            shape: [3, 224, 224],
            seed: 1,
            synthetic: SyntheticOptions::default(),
            class_list: None,
            shuffle_shards: 8,
            cache: None,
            cache_bytes: 20 << 30,
            give_up_after: RetryPolicy::default().give_up_after,
            images_per_class: None,
            split_method: SplitMethod::Published,
            table: TableOptions::default(),
        }
    }
}

impl OpenOptions {
    /// The retry policy for stores.
    #[must_use]
    pub fn retry_policy(&self) -> RetryPolicy {
        let default = RetryPolicy::default();
        RetryPolicy {
            give_up_after: self.give_up_after,
            idle_timeout: default.idle_timeout.min(self.give_up_after),
            ..default
        }
    }
}

/// Options of tables of labels or numbers. By default every column except `path`, `split` and the groups is
/// one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableOptions {
    /// The columns of labels or numbers, in this order; all if empty.
    pub columns: Vec<String>,
    /// The separator of names of labels, if a single column has them.
    pub separator: Option<char>,
    /// The content of the columns. By default labels if all cells are 0, 1, true, false, yes, no or empty, or
    /// if there is a separator; else numbers.
    pub kind: Option<TargetKind>,
    /// The column whose equal cells mark images that stay in one split, such as those of a patient.
    pub group_by: Option<String>,
}

/// Options of synthetic data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyntheticOptions {
    /// Training images, at least 1.
    pub images: usize,
    /// Images of each other split, at least 1.
    pub validation_images: usize,
    /// Classes, at least 1.
    pub classes: usize,
    /// The delay before each image is read.
    pub delay: Duration,
}

impl Default for SyntheticOptions {
    fn default() -> Self {
        Self { images: 1280, validation_images: 256, classes: 10, delay: Duration::ZERO }
    }
}
