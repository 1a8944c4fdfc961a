//! The folders of the splits of a data set.

use std::path::Path;

use super::store::FolderStorage;
use crate::datasets::{MAX_LISTED_CLASSES, Split};
use crate::error::DataError;

/// The names that a split's folder may have, the most likely first, ignoring case.
fn folder_names(split: Split) -> &'static [&'static str] {
    match split {
        Split::Train => &["train", "training"],
        Split::Validation => &["val", "valid", "validation", "test"],
        Split::Test => &["test", "val", "valid", "validation"],
    }
}

/// Returns whether a folder has the name of a split folder.
pub(super) fn is_split_folder(folder: &str) -> bool {
    folder_names(Split::Train)
        .iter()
        .chain(folder_names(Split::Validation))
        .any(|name| folder.eq_ignore_ascii_case(name))
}

/// Returns whether a folder has the name of a training folder.
pub(super) fn is_training_folder(folder: &str) -> bool {
    folder_names(Split::Train).iter().any(|name| folder.eq_ignore_ascii_case(name))
}

/// The folder of a split among `folders`, by its own names first, then by those of a split that may replace
/// it.
pub(super) fn find_split_folder(folders: &[String], split: Split) -> Option<&str> {
    let find = |name: &str| {
        let exactly = folders.iter().find(|folder| *folder == name);
        exactly.or_else(|| folders.iter().filter(|folder| folder.eq_ignore_ascii_case(name)).min())
    };
    folder_names(split).iter().find_map(|name| find(name)).map(String::as_str)
}

/// The error for a missing split folder, with a hint.
pub(super) fn missing_split_error(
    store: &FolderStorage,
    root: &Path,
    folders: &[String],
    split: Split,
) -> DataError {
    let train = find_split_folder(folders, Split::Train);
    let mut classes: Vec<&String> = folders.iter().filter(|folder| !is_split_folder(folder)).collect();
    classes.sort_unstable();
    let quoted = |names: &[&str]| format!("`{}`", names.join("`, `"));
    let expected = match folder_names(split) {
        [one, ..] if split == Split::Train => format!("`{one}`"),
        several => quoted(several),
    };
    let missing_splits = |found: String| DataError::MissingSplits { root: root.to_owned(), found };
    let invalid = |problem: String| DataError::Invalid { path: root.to_owned(), problem };
    match train {
        Some(train) => missing_splits(format!("found `{train}`, but no folder {expected}")),
        None if classes.len() == folders.len() && classes.iter().any(|class| store.has_images(class)) => {
            let listed = classes.iter().take(MAX_LISTED_CLASSES).map(|class| class.as_str());
            let listed: Vec<&str> = listed.collect();
            let more = if classes.len() > listed.len() { ", …" } else { "" };
            let (count, plural) = (classes.len(), if classes.len() == 1 { "" } else { "s" });
            missing_splits(format!(
                "found {count} class folder{plural} ({}{more}), but no folder {expected}",
                listed.join(", ")
            ))
        }
        None if folders.is_empty() && store.has_images("") => invalid(
            "found images but no class folders; move them to train/<class>/ and val/<class>/, or to <class>/ \
             with data.split_seed"
                .to_owned(),
        ),
        None => {
            let found = match folders.iter().map(String::as_str).collect::<Vec<_>>() {
                none if none.is_empty() => String::new(),
                some => format!(", found {}", quoted(&some[..some.len().min(MAX_LISTED_CLASSES)])),
            };
            invalid(format!(
                "no folder {expected}{found}; expected train/<class>/<image> and val/<class>/<image>, or \
                 <class>/<image> with data.split_seed"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(folders: &[&str], split: Split) -> Option<String> {
        let folders: Vec<String> = folders.iter().map(|&folder| folder.to_owned()).collect();
        find_split_folder(&folders, split).map(str::to_owned)
    }

    #[test]
    fn finds_split_folders_by_common_names() {
        let (train, validation, test) = (Split::Train, Split::Validation, Split::Test);
        for (folders, split, expected) in [
            (&["Train", "VALID", "Test"][..], train, Some("Train")),
            (&["Train", "VALID", "Test"], validation, Some("VALID")),
            (&["Train", "VALID", "Test"], test, Some("Test")),
            (&["training", "Validation"], train, Some("training")),
            (&["training", "Validation"], test, Some("Validation")),
            // A test split also serves for validation.
            (&["train", "test"], validation, Some("test")),
            // The lower-case name wins.
            (&["TRAIN", "Train", "train"], train, Some("train")),
            (&["TRAIN", "Train"], train, Some("TRAIN")),
            (&["trains", "cat", "dog"], train, None),
            (&["train"], validation, None),
        ] {
            assert_eq!(found(folders, split).as_deref(), expected, "{folders:?} {split}");
        }
    }
}
