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
//! Shard names tell the splits apart: `train-000000.tar`, `val-000000.tar`.
//!
//! [`pack`] writes shards and beside them `index.json`: checksums, labels, and the position of each sample.
//! So a data set of a million samples opens without reading any shard. Shards without an index are scanned
//! once, header by header. The layout: <https://github.com/webdataset/webdataset>.

mod index;
mod png;
mod remote;
mod scan;
mod smaller;
mod source;
mod target;
mod writer;

pub use self::index::{INDEX_FILE, Index, MemberRange, Shard};
pub use self::scan::index_folder;
pub use self::smaller::{Resized, Smaller};
pub use self::writer::{PackOptions, PackProgress, PackedPart, Part, open_parts, pack};

pub(crate) use self::scan::{LISTED, Problem, scan};
pub(crate) use self::source::{ShardLocation, Source};

use crate::datasets::{Split, files};

/// The file name extension of shards.
const EXTENSION: &str = ".tar";
/// Marks a folder in which packing is unfinished: the shards in it are incomplete.
const UNFINISHED: &str = "packing.unfinished";
/// The most classes that can be inferred from labels without an index.
const MOST_CLASSES: u32 = 1_000_000;

/// What a split's shards are called, best first: what is not called by its own name may be by another's.
pub(crate) fn split_names(split: Split) -> &'static [&'static str] {
    match split {
        Split::Train => &["train"],
        Split::Validation => &["val", "valid", "validation", "test"],
        Split::Test => &["test", "val", "valid", "validation"],
    }
}

/// The split that a shard's name speaks of: the first of its words that is one, `train` of
/// `imagenet1k-train-0000.tar`.
fn split_of(shard: &str) -> Option<&'static str> {
    let words = shard.strip_suffix(EXTENSION)?.split(['-', '_', '.']);
    let known = ["train", "val", "valid", "validation", "test"];
    words.into_iter().find_map(|word| known.into_iter().find(|known| known.eq_ignore_ascii_case(word)))
}

/// Whether one of a name's words is a split, whatever the file is.
fn speaks_of_a_split(name: &str) -> bool {
    split_of(&format!("{name}{EXTENSION}")).is_some()
}

/// Whether a name is that of a file in the shards' folder, and leads nowhere else.
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
    fn names_say_the_split_and_lead_nowhere() {
        assert_eq!(split_of("train-000000.tar"), Some("train"));
        assert_eq!(split_of("imagenet1k-validation-07.tar"), Some("validation"));
        assert_eq!(split_of("test_3.tar"), Some("test"));
        assert_eq!(split_of("training-000000.tar"), None);
        assert_eq!(split_of("train-000000.tgz"), None);
        assert!(is_shard_name("train-000000.tar"));
        for name in
            ["", ".tar", "../train-0.tar", "a/train-0.tar", "C:train.tar", ".train.tar", "train-0.zip"]
        {
            assert!(!is_shard_name(name), "{name}");
        }
    }
}
