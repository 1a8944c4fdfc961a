//! The parts of a data set, each once.

use std::path::{Path, PathBuf};

use stratus_data::datasets::joined::are_same;
use stratus_data::{DataError, Dataset, OpenOptions, Split, SplitBy, datasets, open};

use super::data_failure;
use crate::errors::Failure;
use crate::output::Output;

/// What a folder that nobody has divided is called.
const WHOLE: &str = "all";

/// A part that is there.
pub(super) struct Part {
    pub name: &'static str,
    pub set: Box<dyn Dataset>,
}

/// The data set that a name or a folder of photographs stands for, and where it lies.
pub(super) fn named(name: &str, path: Option<&Path>) -> (String, PathBuf) {
    if path.is_none() && datasets::entry(name).is_err() && datasets::folder::holds_classes(Path::new(name)) {
        return (datasets::folder::ENTRY.name.to_owned(), PathBuf::from(name));
    }
    (name.to_owned(), path.map_or_else(|| Path::new("data").join(name), Path::to_owned))
}

/// The same options for a folder that nobody has divided into parts: all of it.
pub(super) fn whole(options: &OpenOptions) -> OpenOptions {
    OpenOptions { split_by: SplitBy::Whole, ..options.clone() }
}

/// Opens the training and validation parts, and the test part where it is separate and has labels; all of a
/// folder that is not divided. Looking at images needs no parts.
pub(super) fn parts(
    name: &str,
    folder: &Path,
    options: &OpenOptions,
    output: &Output,
) -> Result<Vec<Part>, Failure> {
    let mut parts: Vec<Part> = Vec::new();
    for split in [Split::Train, Split::Validation, Split::Test] {
        let set = match open(name, folder, split, options) {
            Ok(set) => set,
            Err(DataError::Undivided { .. }) if split == Split::Train => {
                let set = open(name, folder, split, &whole(options)).map_err(data_failure)?;
                return Ok(vec![Part { name: WHOLE, set }]);
            }
            // There is a training part alone.
            Err(error @ DataError::Undivided { .. }) => {
                output.message(&error.to_string());
                continue;
            }
            // Training needs neither.
            Err(error @ (DataError::Unlabelled { .. } | DataError::TooFewToDivide { .. }))
                if split == Split::Test =>
            {
                output.message(&error.to_string());
                continue;
            }
            Err(error) => return Err(data_failure(error)),
        };
        // A data set that comes in two parts gives its second for both.
        let seen = split == Split::Test
            && parts.last().is_some_and(|last| are_same(last.set.as_ref(), set.as_ref()));
        if !seen {
            parts.push(Part { name: split.name(), set });
        }
    }
    Ok(parts)
}

/// The threads that the machine has.
pub(super) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
