//! What can be wrong with a data set. Every message names the file, what was expected and found, and what to
//! do.

use std::path::PathBuf;
use std::sync::Arc;

use stratus_base::did_you_mean;
use stratus_store::StoreError;
use thiserror::Error;

use crate::datasets::Split;
use crate::idx::IdxError;

/// A data set cannot be opened or a sample of it cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DataError {
    /// No data set has this name.
    #[error(
        "there is no data set `{name}`{}; known: {}",
        did_you_mean(.nearest.as_deref()), .known.join(", ")
    )]
    UnknownDataset {
        /// The name that was asked for.
        name: String,
        /// The known name that looks most like it, if one does.
        nearest: Option<String>,
        /// Every known name.
        known: Vec<String>,
    },
    /// No part of a data set has this name.
    #[error(
        "there is no split `{name}`{}; known: train, validation, test",
        did_you_mean(.nearest.as_deref())
    )]
    UnknownSplit {
        /// The name that was asked for.
        name: String,
        /// The known name that looks most like it, if one does.
        nearest: Option<String>,
    },
    /// The folder, or the archive, that should hold the data set is not there.
    #[error("{}: nothing is there; name the folder that holds the data set", .root.display())]
    MissingRoot {
        /// What was named.
        root: PathBuf,
    },
    /// A file that the data set needs is not there.
    #[error(
        "{}: neither `{file}` nor `{file}.gz` is there, and the {split} split of `{dataset}` needs it; \
         name the directory that holds the files, or fetch `{dataset}` into this one", .root.display()
    )]
    MissingFile {
        /// The data set's name.
        dataset: String,
        /// The part that was asked for.
        split: Split,
        /// The directory that was searched.
        root: PathBuf,
        /// The file's name, without `.gz`.
        file: String,
    },
    /// A file of an archive that the data set needs is not there.
    #[error(
        "{}: `{file}` is not there, and the {split} split of `{dataset}` needs it; \
         name the directory that holds the files, or fetch `{dataset}` into this one", .root.display()
    )]
    MissingPart {
        /// The data set's name.
        dataset: String,
        /// The part that was asked for.
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
        /// Why.
        cause: std::io::Error,
    },
    /// No image files, or more than can be counted.
    #[error("{count} image files were named; name some, JPEG or PNG, or a folder that has some")]
    NoImages {
        /// How many.
        count: usize,
    },
    /// A file cannot be written.
    #[error("{}: it cannot be written: {cause}", .path.display())]
    Unwritable {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// A place that something is to be written to is not free.
    #[error("{}: {found}; name another folder, or replace what is there with --overwrite", .path.display())]
    Occupied {
        /// The folder.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// A file that is to be written exists.
    #[error("{} exists; replace it with --overwrite", .path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// What lies elsewhere cannot be reached, read or written.
    #[error("{cause}")]
    Store {
        /// Why.
        cause: Arc<StoreError>,
    },
    /// A file is not what it should be.
    #[error("{}: {problem}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// An idx file is not what it should be.
    #[error(transparent)]
    Idx(#[from] IdxError),
    /// The file is well formed but its content is not the published one.
    #[error(
        "{}: the content is not the one published for `{dataset}`: its SHA-256 is {found}, expected \
         {expected}; fetch the data set again, or set data.verify = false if this file is \
         meant", .path.display()
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
    /// Images and labels do not belong together.
    #[error(
        "{} holds {images} images but {} holds {labels} labels; both must come from the same split of the \
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
    /// A label names no class.
    #[error(
        "{origin}: sample {index} has label {label}, but labels go from 0 to {}; the file is damaged or not \
         of this data set",
        .classes.saturating_sub(1)
    )]
    LabelOutOfRange {
        /// The file, or the data set's name where the label comes from no single file.
        origin: String,
        /// The sample's index, from 0.
        index: usize,
        /// The label found.
        label: u32,
        /// The number of classes.
        classes: usize,
    },
    /// A part of a data set has no labels.
    #[error("`{dataset}` has no labels in its {split} split: {problem}")]
    Unlabelled {
        /// The data set's name.
        dataset: String,
        /// The part that was asked for.
        split: Split,
        /// Why, and what to do.
        problem: String,
    },
    /// There is nothing to train on.
    #[error("{origin}: no samples; a data set needs at least one")]
    Empty {
        /// The file, or the data set's name.
        origin: String,
    },
    /// A sample was asked for that the data set does not have.
    #[error("`{dataset}` has no sample {index}: it has {len}, counted from 0")]
    NoSuchSample {
        /// The data set's name.
        dataset: String,
        /// The index that was asked for.
        index: usize,
        /// The number of samples.
        len: usize,
    },
    /// A sample was read with another size than the data set declares.
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
        /// What is wrong with it.
        problem: String,
    },
    /// Samples that cannot be decoded, found when the data set was opened.
    #[error(
        "`{dataset}`: damaged samples in the {split} split ({count}):{}\nreplace or remove them, or set \
         data.on_bad_sample = \"skip\" to train without them", list_of(.listed, *.count)
    )]
    BadSamples {
        /// The data set's name.
        dataset: String,
        /// The part.
        split: Split,
        /// How many there are.
        count: usize,
        /// The first of them: name and problem.
        listed: Vec<(String, String)>,
    },
    /// Shards, or samples in them, that are not what they should be.
    #[error(
        "{}: damaged shards ({count}):{}\npack or copy them \
         again", .path.display(), list_of(.listed, *.count)
    )]
    BadShards {
        /// The folder.
        path: PathBuf,
        /// How many problems there are.
        count: usize,
        /// The first of them: shard or sample, and problem.
        listed: Vec<(String, String)>,
    },
    /// A class that was asked for is not there.
    #[error("{origin}: there is no class `{class}` to train on{hint}")]
    NoSuchClass {
        /// Where it was looked for.
        origin: String,
        /// The class.
        class: String,
        /// The nearest that is there, as a question; or nothing.
        hint: String,
    },
    /// A folder of classes without the parts of a data set.
    #[error(
        "{}: {found}; add `--set data.split_seed=0`, which divides each class into 60 % training, 20 % \
         validation and 20 % test images, or sort the images into train/<class>/ and val/<class>/",
        .root.display()
    )]
    Undivided {
        /// The data set.
        root: PathBuf,
        /// What there is, and what is missing.
        found: String,
    },
    /// Classes have too few images to be divided.
    #[error(
        "{}: has {images} images of {classes} classes; data.split_seed divides each class by itself, and one \
         needs at least {least} images to have any in the {split} part, which classes have not ({count}): \
         {}{}; add images, name the classes to use with data.classes, or divide the images with data.lists",
        .root.display(), counted(.listed), if *count > .listed.len() { ", …" } else { "" }
    )]
    TooFewToDivide {
        /// The data set.
        root: PathBuf,
        /// The part that would be empty.
        split: Split,
        /// The fewest images of a class.
        least: usize,
        /// Images in all.
        images: usize,
        /// Classes in all.
        classes: usize,
        /// Classes that have too few.
        count: usize,
        /// The first of them, and how many images they have.
        listed: Vec<(String, usize)>,
    },
    /// Classes have no image.
    #[error(
        "{}: classes without an image ({count}): {}{}; remove them, or name the classes to use with \
         data.classes",
        .path.display(), .listed.join(", "), if *count > .listed.len() { ", …" } else { "" }
    )]
    EmptyClasses {
        /// The split's folder.
        path: PathBuf,
        /// How many there are.
        count: usize,
        /// The first of them.
        listed: Vec<String>,
    },
    /// Images cannot be given other channels.
    #[error("an image of {found} channels cannot be given {wanted}; set data.shape to 1 or 3 channels")]
    Channels {
        /// Channels of the image.
        found: usize,
        /// Channels asked for.
        wanted: usize,
    },
    /// An image cannot be resized.
    #[error("an image cannot be resized: {problem}")]
    Resize {
        /// What the library says.
        problem: String,
    },
    /// An option that cannot be.
    #[error("{key}: {problem}")]
    Option {
        /// The configuration key.
        key: &'static str,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// A batch buffer came back with other memory than it was lent with.
    #[error(
        "a batch buffer was recycled with {found} bytes of images, expected {expected}, or other labels; \
         recycle buffers as they were lent"
    )]
    Buffer {
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

/// Names with their counts.
fn counted(classes: &[(String, usize)]) -> String {
    classes.iter().map(|(name, count)| format!("{name} ({count})")).collect::<Vec<_>>().join(", ")
}

/// One line each, and how many more there are.
fn list_of(samples: &[(String, String)], count: usize) -> String {
    let mut text: String = samples.iter().map(|(name, problem)| format!("\n  {name}: {problem}")).collect();
    if count > samples.len() {
        text.push_str(&format!("\n  and {} more; `stratus data check` lists all", count - samples.len()));
    }
    text
}
