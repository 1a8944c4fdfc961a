//! Tar shards in the WebDataset layout: a data set in a few large files that are read sequentially, possibly
//! from a remote store.
//!
//! A shard is a plain tar archive. A sample consists of consecutive members with the same name up to the
//! first dot:
//!
//! ```text
//!   000123.jpg or 000123.png   the image
//!   000123.cls                 the class, in decimal digits; or instead
//!   000123.seg.png             a mask with the class of every pixel
//! ```
//!
//! Shard names begin with their split: `train-000000.tar`, `val-000000.tar`.
//!
//! [`pack`] writes shards and an `index.json` with checksums, labels and the position of each sample. So a
//! data set of a million samples opens without reading any shard. Shards without an index are scanned once,
//! header by header. The layout: <https://github.com/webdataset/webdataset>.

mod index;
mod png;
mod remote;
mod resize;
mod scan;
mod source;
mod target;
mod writer;

pub use self::index::{INDEX_FILE, MemberRange, Shard, ShardIndex};
pub use self::resize::{PackResize, PackResizeReport};
pub use self::scan::index_folder;
pub use self::writer::{PackOptions, PackProgress, PackSplit, PackedSplit, open_splits, pack};

pub(crate) use self::scan::{DamagedSample, MAX_LISTED_PROBLEMS, scan};
pub(crate) use self::source::{ShardLocation, ShardSource};

use crate::datasets::{Split, files};

/// The file name extension of shards.
const EXTENSION: &str = ".tar";
/// Marks a folder in which packing is unfinished: the shards in it are incomplete.
const UNFINISHED_MARKER: &str = "packing.unfinished";
/// The maximum number of classes that can be inferred from labels without an index.
const MAX_CLASSES: u32 = 1_000_000;

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
fn split_in_name(shard: &str) -> Option<&'static str> {
    let words = shard.strip_suffix(EXTENSION)?.split(['-', '_', '.']);
    let known = ["train", "val", "valid", "validation", "test"];
    words.into_iter().find_map(|word| known.into_iter().find(|known| known.eq_ignore_ascii_case(word)))
}

/// Returns whether a word of a file name is the name of a split, for any file type.
fn names_a_split(name: &str) -> bool {
    split_in_name(&format!("{name}{EXTENSION}")).is_some()
}

/// Returns whether a name is that of a shard directly in the folder.
fn is_shard_name(name: &str) -> bool {
    name.len() > EXTENSION.len()
        && name.len() <= 255
        && name.ends_with(EXTENSION)
        && !files::is_hidden(name)
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
