//! Errors of data sets. Every message names the file, what was expected and found, and what to do.

use std::path::PathBuf;
use std::sync::Arc;

use stratus_base::did_you_mean;
use stratus_base::library::LibraryNotFound;
use stratus_store::StoreError;
use thiserror::Error;

use crate::datasets::split::{Split, UnknownSplit};
use crate::idx::IdxError;

/// A data set that cannot be opened, or a sample of it that cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DataError {
    /// No data set has this name.
    #[error(
        "unknown data set `{name}`{}; available: {}",
        did_you_mean(.nearest.as_deref()), .known.join(", ")
    )]
    UnknownDataset {
        /// The requested name.
        name: String,
        /// The most similar known name, if any.
        nearest: Option<String>,
        /// Every known name.
        known: Vec<String>,
    },
    /// No split has this name.
    #[error(transparent)]
    UnknownSplit(#[from] UnknownSplit),
    /// The targets of the samples do not fit the limit.
    #[error("data set `{dataset}`: its images have more than {max} different labels or numbers in all")]
    TooManyTargets {
        /// The data set.
        dataset: String,
        /// The limit.
        max: usize,
    },
    /// The folder or archive of the data set does not exist.
    #[error("{}: no such file or folder; pass the data set's root folder", .root.display())]
    MissingRoot {
        /// The path that was given.
        root: PathBuf,
    },
    /// A file of the data set is missing, packed and unpacked.
    #[error(
        "{}: neither `{file}` nor `{file}.gz` found, which the {split} split of `{dataset}` needs; \
         pass the folder of the files, or fetch `{dataset}` into this one", .root.display()
    )]
    MissingFile {
        /// The data set's name.
        dataset: String,
        /// The requested split.
        split: Split,
        /// The directory that was searched.
        root: PathBuf,
        /// The file's name, without `.gz`.
        file: String,
    },
    /// A file of an unpacked archive is missing.
    #[error(
        "{}: `{file}` not found, which the {split} split of `{dataset}` needs; \
         pass the folder of the files, or fetch `{dataset}` into this one", .root.display()
    )]
    MissingMember {
        /// The data set's name.
        dataset: String,
        /// The requested split.
        split: Split,
        /// The directory that was searched.
        root: PathBuf,
        /// The file's name in the directory.
        file: String,
    },
    /// A file cannot be read.
    #[error("{}: {cause}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: std::io::Error,
    },
    /// No image files, or more than `u32::MAX`.
    #[error("{count} images given; expected 1 to 4294967295 image files, or a folder of them")]
    NoImages {
        /// Their number.
        count: usize,
    },
    /// A file cannot be written.
    #[error("{}: cannot write: {cause}", .path.display())]
    Unwritable {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        cause: std::io::Error,
    },
    /// The destination holds other data.
    #[error("{}: {found}; choose another folder or pass --overwrite", .path.display())]
    DestinationInUse {
        /// The folder.
        path: PathBuf,
        /// The content that was found.
        found: String,
    },
    /// The library that a variable names for decoding images cannot be used.
    #[error(transparent)]
    Library(#[from] LibraryNotFound),
    /// The output file exists.
    #[error("{} already exists; pass --overwrite to replace it", .path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A remote store cannot be reached, read or written.
    #[error("{cause}")]
    Store {
        /// The cause.
        cause: Arc<StoreError>,
    },
    /// A file or a folder has an invalid content or layout.
    #[error("{}: {problem}", .path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The cause, and what to do.
        problem: String,
    },
    /// An idx file is invalid.
    #[error(transparent)]
    Idx(#[from] IdxError),
    /// A well-formed file differs from the published one.
    #[error(
        "{}: not the file published for `{dataset}`: its SHA-256 is {found}, expected \
         {expected}; fetch the data set again, or set data.verify = false to use this file", .path.display()
    )]
    Checksum {
        /// The data set's name.
        dataset: String,
        /// The file.
        path: PathBuf,
        /// SHA-256 of the published content, hexadecimal.
        expected: String,
        /// SHA-256 of the content found, hexadecimal.
        found: String,
    },
    /// The numbers of images and labels differ.
    #[error(
        "{} holds {images} images, but {} holds {labels} labels; both must belong to the same split of the \
         same data set",
        .images_path.display(), .labels_path.display()
    )]
    CountMismatch {
        /// The file of images.
        images_path: PathBuf,
        /// Images in it.
        images: usize,
        /// The file of labels.
        labels_path: PathBuf,
        /// Labels in it.
        labels: usize,
    },
    /// A label is not below the number of classes.
    #[error(
        "{origin}: sample {index} has label {label}, but labels go from 0 to {}; the file is damaged or \
         belongs to another data set",
        .classes.saturating_sub(1)
    )]
    LabelOutOfRange {
        /// The file, or the data set's name if the label does not come from a single file.
        origin: String,
        /// The sample's index, from 0.
        index: usize,
        /// The label found.
        label: u32,
        /// The number of classes.
        classes: usize,
    },
    /// A split has no labels.
    #[error("`{dataset}` has no labels in its {split} split: {problem}")]
    Unlabelled {
        /// The data set's name.
        dataset: String,
        /// The requested split.
        split: Split,
        /// The cause, and what to do.
        problem: String,
    },
    /// The data set has no samples.
    #[error("{origin}: no samples; expected at least one")]
    Empty {
        /// The file, or the data set's name.
        origin: String,
    },
    /// A sample index is not below the number of samples.
    #[error("sample {index} is out of range: `{dataset}` has {len} samples")]
    SampleOutOfRange {
        /// The data set's name.
        dataset: String,
        /// The requested index.
        index: usize,
        /// The number of samples.
        len: usize,
    },
    /// The number of pixel bytes of a sample differs from the declared shape.
    #[error("`{dataset}`: sample {index} has {found} bytes of pixels, expected {expected}")]
    SampleSize {
        /// The data set's name.
        dataset: String,
        /// The sample's index, from 0.
        index: usize,
        /// Channels × height × width of the data set.
        expected: usize,
        /// Bytes found.
        found: usize,
    },
    /// A sample cannot be decoded.
    #[error("{sample}: {problem}; replace it, or set data.on_bad_sample = \"skip\" to train without it")]
    BadSample {
        /// Its file, or the data set's name and its index.
        sample: String,
        /// The cause.
        problem: String,
    },
    /// Samples that were found to be damaged when the data set was opened.
    #[error(
        "`{dataset}`: damaged samples in the {split} split ({count}):{}\nreplace or remove them, or set \
         data.on_bad_sample = \"skip\" to train without them", list_of(.listed, *.count)
    )]
    BadSamples {
        /// The data set's name.
        dataset: String,
        /// The split.
        split: Split,
        /// Their number.
        count: usize,
        /// The first of them: name and problem.
        listed: Vec<(String, String)>,
    },
    /// Damaged shards, or damaged samples in shards.
    #[error(
        "{}: damaged shards ({count}):{}\npack or copy them \
         again", .path.display(), list_of(.listed, *.count)
    )]
    BadShards {
        /// The folder.
        path: PathBuf,
        /// The number of problems.
        count: usize,
        /// The first of them: shard or sample, and problem.
        listed: Vec<(String, String)>,
    },
    /// A requested class does not exist.
    #[error("{origin}: unknown class `{class}`{hint}")]
    UnknownClass {
        /// The searched data set.
        origin: String,
        /// The class.
        class: String,
        /// A suggestion of the most similar name, or empty.
        hint: String,
    },
    /// A data set that is not divided into splits.
    #[error(
        "{}: {found}; add `--set data.split_seed=0` to split {divided} into 60 % training, 20 % \
         validation and 20 % test images, or {remedy}",
        .root.display()
    )]
    MissingSplits {
        /// The data set.
        root: PathBuf,
        /// The found and the missing folders.
        found: String,
        /// The images or rows that a seed divides.
        divided: &'static str,
        /// Another way to divide them.
        remedy: &'static str,
    },
    /// A table with too few rows for a split.
    #[error(
        "{}: too few rows ({rows}) to split: the {split} split would be empty; add images, or a column \
         `split`",
        .path.display()
    )]
    TooFewRows {
        /// The table.
        path: PathBuf,
        /// The split.
        split: Split,
        /// The number of rows of the table.
        rows: usize,
    },
    /// Classes with too few images for a seeded split.
    #[error(
        "{}: too few images to split: the {split} split needs {min_images} per class, but {count} classes \
         have fewer ({images} images of {classes} classes): {}{}; add images, select classes with \
         data.classes, or split the images with data.lists",
        .root.display(), counted(.examples), if *count > .examples.len() { ", …" } else { "" }
    )]
    TooFewToSplit {
        /// The data set.
        root: PathBuf,
        /// The split that would be empty.
        split: Split,
        /// The minimum number of images per class.
        min_images: usize,
        /// Total number of images.
        images: usize,
        /// Total number of classes.
        classes: usize,
        /// The number of classes with too few images.
        count: usize,
        /// The first of them, with their numbers of images.
        examples: Vec<(String, usize)>,
    },
    /// Classes without an image.
    #[error(
        "{}: classes without images ({count}): {}{}; remove them, or select classes with data.classes",
        .path.display(), .listed.join(", "), if *count > .listed.len() { ", …" } else { "" }
    )]
    EmptyClasses {
        /// The split's folder.
        path: PathBuf,
        /// Their number.
        count: usize,
        /// The first of them.
        listed: Vec<String>,
    },
    /// The channels of an image cannot be converted.
    #[error("cannot convert {found} channels to {requested}; set data.shape to 1 or 3 channels")]
    Channels {
        /// Channels of the image.
        found: usize,
        /// Channels requested.
        requested: usize,
    },
    /// An image cannot be resized.
    #[error("cannot resize an image: {problem}")]
    Resize {
        /// The cause.
        problem: String,
    },
    /// An option has an invalid value.
    #[error("{key}: {problem}")]
    InvalidOption {
        /// The configuration key.
        key: &'static str,
        /// The cause, and what to do.
        problem: String,
    },
    /// A recycled batch buffer has other memory than it was lent with.
    #[error(
        "recycled batch buffer has {found} bytes of images, expected {expected}, or another number of labels"
    )]
    ReplacedBuffer {
        /// Bytes of images it was lent with.
        expected: usize,
        /// Bytes of images it has.
        found: usize,
    },
}

impl From<StoreError> for DataError {
    fn from(cause: StoreError) -> Self {
        Self::Store { cause: Arc::new(cause) }
    }
}

/// Formats names with their counts.
fn counted(classes: &[(String, usize)]) -> String {
    classes.iter().map(|(name, count)| format!("{name} ({count})")).collect::<Vec<_>>().join(", ")
}

/// Formats one line per problem, and the number of further ones.
fn list_of(samples: &[(String, String)], count: usize) -> String {
    let mut text: String = samples.iter().map(|(name, problem)| format!("\n  {name}: {problem}")).collect();
    if count > samples.len() {
        text.push_str(&format!("\n  and {} more; `stratus data check` lists all", count - samples.len()));
    }
    text
}
