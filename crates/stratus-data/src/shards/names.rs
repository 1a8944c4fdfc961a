//! The names of shards.

use crate::datasets::files::is_hidden;
use crate::datasets::split::Split;

/// The file name extension of shards.
pub(super) const EXTENSION: &str = ".tar";
/// Marks a folder in which packing is unfinished: the shards in it are incomplete.
pub(super) const UNFINISHED_MARKER: &str = "packing.unfinished";

/// The names of a split's shards, preferred ones first, including those of a split that may replace it.
pub(crate) fn split_names(split: Split) -> &'static [&'static str] {
    match split {
        Split::Train => &["train"],
        Split::Validation => &["val", "valid", "validation", "test"],
        Split::Test => &["test", "val", "valid", "validation"],
    }
}

/// The split in a shard's name: the first word that is a split, such as `train` in
/// `imagenet1k-train-0000.tar`.
pub(super) fn split_in_name(shard: &str) -> Option<&'static str> {
    let words = shard.strip_suffix(EXTENSION)?.split(['-', '_', '.']);
    let known = ["train", "val", "valid", "validation", "test"];
    words.into_iter().find_map(|word| known.into_iter().find(|known| known.eq_ignore_ascii_case(word)))
}

/// Returns whether a word of a file name is the name of a split, for any file type.
pub(super) fn names_a_split(name: &str) -> bool {
    split_in_name(&format!("{name}{EXTENSION}")).is_some()
}

/// Returns whether a name is that of a shard directly in the folder.
pub(super) fn is_shard_name(name: &str) -> bool {
    name.len() > EXTENSION.len()
        && name.len() <= 255
        && name.ends_with(EXTENSION)
        && !is_hidden(name)
        && !name.contains(['/', '\\', ':', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_names_give_the_split_and_stay_in_the_folder() {
        assert_eq!(split_in_name("train-000000.tar"), Some("train"));
        assert_eq!(split_in_name("imagenet1k-validation-07.tar"), Some("validation"));
        assert_eq!(split_in_name("test_3.tar"), Some("test"));
        assert_eq!(split_in_name("training-000000.tar"), None);
        assert_eq!(split_in_name("train-000000.tgz"), None);
        assert!(is_shard_name("train-000000.tar"));
        for name in
            ["", ".tar", "../train-0.tar", "a/train-0.tar", "C:train.tar", ".train.tar", "train-0.zip"]
        {
            assert!(!is_shard_name(name), "{name}");
        }
    }
}
