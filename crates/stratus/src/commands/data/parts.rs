//! The parts of a data set, each once.

use std::path::Path;

use stratus_data::datasets::joined::are_same;
use stratus_data::{DataError, Dataset, OpenOptions, Split, open};

use super::data_failure;
use crate::errors::Failure;
use crate::output::Output;

/// A part that is there.
pub(super) struct Part {
    pub split: Split,
    pub set: Box<dyn Dataset>,
}

/// Opens the training and validation parts, and the test part where it is separate and has labels.
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
            parts.push(Part { split, set });
        }
    }
    Ok(parts)
}

/// The threads that the machine has.
pub(super) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
