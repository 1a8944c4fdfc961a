//! Which folder holds which part of a data set, and what to say where none does.

use std::path::Path;

use super::store::Store;
use crate::datasets::{LISTED_CLASSES, Split};
use crate::error::DataError;

/// What the folder of a split may be called, the likeliest first. Upper and lower case are the same.
fn names(split: Split) -> &'static [&'static str] {
    match split {
        Split::Train => &["train", "training"],
        Split::Validation => &["val", "valid", "validation", "test"],
        Split::Test => &["test", "val", "valid", "validation"],
    }
}

/// Whether a folder is called as one of a part is.
pub(super) fn is_part(folder: &str) -> bool {
    names(Split::Train).iter().chain(names(Split::Validation)).any(|name| folder.eq_ignore_ascii_case(name))
}

/// Whether a folder has a name of the training part.
pub(super) fn is_training(folder: &str) -> bool {
    names(Split::Train).iter().any(|name| folder.eq_ignore_ascii_case(name))
}

/// The folder of a split among these: what is not called by its own name may be by another's.
pub(super) fn folder_of(folders: &[String], split: Split) -> Option<&str> {
    let called = |name: &str| {
        let exactly = folders.iter().find(|folder| *folder == name);
        exactly.or_else(|| folders.iter().filter(|folder| folder.eq_ignore_ascii_case(name)).min())
    };
    names(split).iter().find_map(|name| called(name)).map(String::as_str)
}

/// Why there is no folder of a split, and what to do.
pub(super) fn missing(store: &Store, root: &Path, folders: &[String], split: Split) -> DataError {
    let train = folder_of(folders, Split::Train);
    let mut classes: Vec<&String> = folders.iter().filter(|folder| !is_part(folder)).collect();
    classes.sort_unstable();
    let quoted = |names: &[&str]| format!("`{}`", names.join("`, `"));
    let wanted = match names(split) {
        [one, ..] if split == Split::Train => format!("`{one}`"),
        several => quoted(several),
    };
    let undivided = |found: String| DataError::Undivided { root: root.to_owned(), found };
    let damaged = |problem: String| DataError::Damaged { path: root.to_owned(), problem };
    match train {
        Some(train) => undivided(format!("holds `{train}` and no folder {wanted}")),
        None if classes.len() == folders.len() && classes.iter().any(|class| store.has_images(class)) => {
            let listed: Vec<&str> = classes.iter().take(LISTED_CLASSES).map(|class| class.as_str()).collect();
            let more = if classes.len() > listed.len() { ", …" } else { "" };
            let (count, plural) = (classes.len(), if classes.len() == 1 { "" } else { "es" });
            undivided(format!(
                "holds the folders of {count} class{plural} ({}{more}) and no folder {wanted}",
                listed.join(", ")
            ))
        }
        None if folders.is_empty() && store.has_images("") => damaged(
            "holds images and no folders; the folder that an image lies in is its class: sort them into \
             train/<class>/ and val/<class>/, or into <class>/, which data.split_seed divides"
                .to_owned(),
        ),
        None => {
            let there = match folders.iter().map(String::as_str).collect::<Vec<_>>() {
                none if none.is_empty() => String::new(),
                some => format!(", but {}", quoted(&some[..some.len().min(LISTED_CLASSES)])),
            };
            damaged(format!(
                "holds no folder {wanted}{there}; the layout is train/<class>/<image> and \
                 val/<class>/<image>, or <class>/<image>, which data.split_seed divides"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(folders: &[&str], split: Split) -> Option<String> {
        let folders: Vec<String> = folders.iter().map(|&folder| folder.to_owned()).collect();
        folder_of(&folders, split).map(str::to_owned)
    }

    #[test]
    fn parts_are_known_by_many_names() {
        let (train, validation, test) = (Split::Train, Split::Validation, Split::Test);
        for (folders, split, expected) in [
            (&["Train", "VALID", "Test"][..], train, Some("Train")),
            (&["Train", "VALID", "Test"], validation, Some("VALID")),
            (&["Train", "VALID", "Test"], test, Some("Test")),
            (&["training", "Validation"], train, Some("training")),
            (&["training", "Validation"], test, Some("Validation")),
            // A test part alone is validated on too.
            (&["train", "test"], validation, Some("test")),
            // The plain name wins.
            (&["TRAIN", "Train", "train"], train, Some("train")),
            (&["TRAIN", "Train"], train, Some("TRAIN")),
            (&["trains", "cat", "dog"], train, None),
            (&["train"], validation, None),
        ] {
            assert_eq!(of(folders, split).as_deref(), expected, "{folders:?} {split}");
        }
    }
}
