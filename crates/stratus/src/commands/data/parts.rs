//! The splits of a data set.

use std::path::{Path, PathBuf};

use stratus_data::datasets::concat::have_same_samples;
use stratus_data::{DataError, Dataset, IgnoredFiles, OpenOptions, Split, SplitMethod, datasets, open};

use super::to_failure;
use crate::errors::Failure;
use crate::output::Output;

/// The name of the only split of an undivided folder.
const UNDIVIDED_NAME: &str = "all";

/// A split of a data set.
pub(super) struct DatasetPart {
    pub name: &'static str,
    pub set: Box<dyn Dataset>,
}

/// Resolves the name of a data set, or a folder, an archive or a table of images, to the name and the folder
/// of a data set. What exists is opened even if it does not look like images, so that the error names its
/// problem.
pub(super) fn resolve_dataset(name: &str, path: Option<&Path>) -> (String, PathBuf) {
    if path.is_none() && datasets::entry(name).is_err() && Path::new(name).exists() {
        let path = PathBuf::from(name);
        let entry = if datasets::table::looks_like_table(&path) {
            &datasets::table::ENTRY
        } else {
            &datasets::folder::ENTRY
        };
        return (entry.name.to_owned(), path);
    }
    (name.to_owned(), path.map_or_else(|| Path::new("data").join(name), Path::to_owned))
}

/// The same options, with all images of an undivided folder in one split.
pub(super) fn undivided_options(options: &OpenOptions) -> OpenOptions {
    OpenOptions { split_method: SplitMethod::Unsplit, ..options.clone() }
}

/// Opens the training and validation splits, and the test split if it is separate and labelled; of an
/// undivided folder, all images as one split.
pub(super) fn open_parts(
    name: &str,
    folder: &Path,
    options: &OpenOptions,
    output: &Output,
) -> Result<Vec<DatasetPart>, Failure> {
    let mut parts: Vec<DatasetPart> = Vec::new();
    for split in [Split::Train, Split::Validation, Split::Test] {
        let set = match open(name, folder, split, options) {
            Ok(set) => set,
            Err(DataError::MissingSplits { .. }) if split == Split::Train => {
                let set = open(name, folder, split, &undivided_options(options)).map_err(to_failure)?;
                return Ok(vec![DatasetPart { name: UNDIVIDED_NAME, set }]);
            }
            // The data set has only a training split.
            Err(error @ DataError::MissingSplits { .. }) => {
                output.message(&error.to_string());
                continue;
            }
            // Training does not need a test split.
            Err(
                error @ (DataError::Unlabelled { .. }
                | DataError::TooFewToSplit { .. }
                | DataError::TooFewRows { .. }),
            ) if split == Split::Test => {
                output.message(&error.to_string());
                continue;
            }
            Err(error) => return Err(to_failure(error)),
        };
        // A data set with two splits uses the second for both validation and test; it is listed once.
        let seen = split == Split::Test
            && parts.last().is_some_and(|last| have_same_samples(last.set.as_ref(), set.as_ref()));
        if !seen {
            parts.push(DatasetPart { name: split.name(), set });
        }
    }
    Ok(parts)
}

/// Warns of files between the images that are no images, and of what is unusual.
pub(super) fn print_warnings<'a>(sets: impl IntoIterator<Item = &'a dyn Dataset> + Clone, output: &Output) {
    print_unusual(sets.clone(), output);
    let mut ignored_files = IgnoredFiles::default();
    sets.into_iter().for_each(|set| ignored_files.extend(&set.ignored_files()));
    ignored_files.warning().iter().for_each(|warning| output.warning(warning));
}

/// Warns of what is unusual about the splits of a data set, once if they have it in common.
pub(super) fn print_unusual<'a>(sets: impl IntoIterator<Item = &'a dyn Dataset>, output: &Output) {
    let mut warnings = Vec::new();
    for set in sets {
        warnings.extend(set.warnings());
    }
    warnings.dedup();
    warnings.iter().for_each(|warning| output.warning(warning));
}

/// The number of threads that this process may use.
pub(super) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
