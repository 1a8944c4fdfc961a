//! The folders of the splits of a data set.

use crate::datasets::split::Split;

/// The maximum number of classes in a message.
pub(super) const MAX_LISTED_CLASSES: usize = 4;

/// The names that a split's folder may have, the most likely first, ignoring case.
pub(super) fn folder_names(split: Split) -> &'static [&'static str] {
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
