//! Splitting a folder that comes as a whole.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use super::index::Index;
use super::is_plain;
use crate::datasets::{LISTED_CLASSES, Split, files, split};
use crate::error::DataError;

/// A seeded split of each class, by the names of class and file.
pub(super) fn seeded_part(index: &Index, seed: u64, split: Split) -> Vec<u32> {
    let of_class = |class: usize| {
        let samples = index.samples(class);
        let first = samples.start as u32;
        let name = |sample| Cow::Owned(format!("{}/{}", index.classes()[class], index.name(sample)));
        split::part_of(seed, split, samples.map(name)).into_iter().map(move |sample| first + sample)
    };
    (0..index.classes().len()).flat_map(of_class).collect()
}

/// Checks that each class that has images has some in this part of a seeded split; where `some` may have
/// none, that any has.
///
/// # Errors
///
/// [`DataError::TooFewToDivide`].
pub(super) fn expect_classes(
    root: &Path,
    index: &Index,
    part: &[u32],
    split: Split,
    some: bool,
) -> Result<(), DataError> {
    let divided = index.part(part, usize::MAX);
    // Classes without any image are another mistake, which is found later.
    let few: Vec<usize> = (0..index.classes().len())
        .filter(|&class| divided.samples(class).is_empty() && !index.samples(class).is_empty())
        .collect();
    if few.is_empty() || some && !part.is_empty() {
        return Ok(());
    }
    let listed = few.iter().take(LISTED_CLASSES);
    Err(DataError::TooFewToDivide {
        root: root.to_owned(),
        split,
        least: split::least_images(split),
        images: index.len(),
        classes: index.classes().len(),
        count: few.len(),
        listed: listed.map(|&class| (index.classes()[class].clone(), index.samples(class).len())).collect(),
    })
}

/// The samples in a list file: one path per line, whose last two components are class and file. All must
/// exist. Lines of unused classes are skipped where only some classes are used.
pub(super) fn listed_part(index: &Index, list: &Path, some_classes: bool) -> Result<Vec<u32>, DataError> {
    let text = files::read_list(list)?;
    let classes: HashMap<&str, usize> = index.classes().iter().map(String::as_str).zip(0..).collect();
    let mut part = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let wrong = |problem: String| DataError::Damaged {
            path: list.to_owned(),
            problem: format!("line {}: {problem}", number + 1),
        };
        let mut parts = line.rsplit('/');
        let (Some(name), Some(class)) = (parts.next(), parts.next()) else {
            return Err(wrong(format!("`{line}` is no path of a class and a file")));
        };
        if !is_plain(class) || !is_plain(name) {
            return Err(wrong(format!("`{line}` leads out of the data set's folder")));
        }
        let Some(&class) = classes.get(class) else {
            if some_classes {
                continue;
            }
            return Err(wrong(format!("`{line}`: there is no class `{class}`")));
        };
        let samples = index.samples(class);
        let (mut first, mut end) = (samples.start, samples.end);
        while first < end {
            let middle = first.midpoint(end);
            if index.name(middle) < name { first = middle + 1 } else { end = middle }
        }
        if first == samples.end || index.name(first) != name {
            return Err(wrong(format!("`{line}`: there is no such image")));
        }
        part.push(first as u32);
    }
    part.sort_unstable();
    let count = part.len();
    part.dedup();
    if part.len() < count {
        let problem = format!("names {} images twice", count - part.len());
        return Err(DataError::Damaged { path: list.to_owned(), problem });
    }
    Ok(part)
}
