//! Splitting a folder without split folders.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use super::index::SampleIndex;
use super::split_folders::MAX_LISTED_CLASSES;
use crate::datasets::split::Split;
use crate::datasets::{files, split};
use crate::error::DataError;

/// A seeded split of each class, by the names of class and file.
pub(super) fn seeded_split(index: &SampleIndex, seed: u64, split: Split) -> Vec<u32> {
    let of_class = |class: usize| {
        let samples = index.samples(class);
        let first = samples.start as u32;
        let name = |sample| Cow::Owned(format!("{}/{}", index.classes()[class], index.name(sample)));
        split::seeded_split(seed, split, samples.map(name)).into_iter().map(move |sample| first + sample)
    };
    (0..index.classes().len()).flat_map(of_class).collect()
}

/// Checks that every class with images has some in this split; with `allow_missing`, that the split is not
/// empty.
///
/// # Errors
///
/// [`DataError::TooFewToSplit`].
pub(super) fn require_every_class(
    root: &Path,
    index: &SampleIndex,
    samples: &[u32],
    split: Split,
    allow_missing: bool,
) -> Result<(), DataError> {
    let subset = index.subset(samples, usize::MAX);
    // Classes without any image are reported later.
    let few: Vec<usize> = (0..index.classes().len())
        .filter(|&class| subset.samples(class).is_empty() && !index.samples(class).is_empty())
        .collect();
    if few.is_empty() || allow_missing && !samples.is_empty() {
        return Ok(());
    }
    let listed = few.iter().take(MAX_LISTED_CLASSES);
    Err(DataError::TooFewToSplit {
        root: root.to_owned(),
        split,
        min_images: split::min_images_per_class(split),
        images: index.len(),
        classes: index.classes().len(),
        count: few.len(),
        examples: listed.map(|&class| (index.classes()[class].clone(), index.samples(class).len())).collect(),
    })
}

/// Reads the samples of a list file: one path per line, whose last two components are class and file. All
/// must exist. If only `some_classes` are used, lines of other classes are skipped.
pub(super) fn listed_split(
    index: &SampleIndex,
    list: &Path,
    some_classes: bool,
) -> Result<Vec<u32>, DataError> {
    let text = files::read_list(list)?;
    let classes: HashMap<&str, usize> = index.classes().iter().map(String::as_str).zip(0..).collect();
    let mut part = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let invalid = |problem: String| DataError::Invalid {
            path: list.to_owned(),
            problem: format!("line {}: {problem}", number + 1),
        };
        let mut parts = line.rsplit('/');
        let (Some(name), Some(class)) = (parts.next(), parts.next()) else {
            return Err(invalid(format!("expected `<class>/<file>`, found `{line}`")));
        };
        if !files::is_single_component(class) || !files::is_single_component(name) {
            return Err(invalid(format!("path `{line}` is outside the data set folder")));
        }
        let Some(&class) = classes.get(class) else {
            if some_classes {
                continue;
            }
            return Err(invalid(format!("`{line}`: unknown class `{class}`")));
        };
        let samples = index.samples(class);
        let (mut first, mut end) = (samples.start, samples.end);
        while first < end {
            let middle = first.midpoint(end);
            if index.name(middle) < name { first = middle + 1 } else { end = middle }
        }
        if first == samples.end || index.name(first) != name {
            return Err(invalid(format!("`{line}`: no such image")));
        }
        part.push(first as u32);
    }
    part.sort_unstable();
    let count = part.len();
    part.dedup();
    if part.len() < count {
        let problem = format!("{} duplicate images", count - part.len());
        return Err(DataError::Invalid { path: list.to_owned(), problem });
    }
    Ok(part)
}
