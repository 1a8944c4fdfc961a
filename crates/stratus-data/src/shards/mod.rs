//! Tar shards, the WebDataset layout: a data set in a few large files that are read from front to back, or
//! from far away.
//!
//! A shard is a plain tar archive. A sample is its consecutive members of one name up to the first dot:
//! `000123.jpg` or `000123.png`, the image; `000123.cls`, the class as a number in decimal digits; or in
//! place of it `000123.seg.png`, a class for every pixel. The splits are told apart by the shards' names:
//! `train-000000.tar`, `val-000000.tar`.
//!
//! [`pack`] writes shards and `index.json` beside them: checksums, labels, and where each sample lies, so
//! that a data set of a million samples opens without a look into any shard. Shards without an index are read
//! through once, header by header. The layout: <https://github.com/webdataset/webdataset>.

mod archive;
mod index;
mod png;
mod remote;
mod scan;
mod source;
mod target;
mod writer;

pub use self::index::{INDEX_FILE, Index, MemberRange, Shard};
pub use self::scan::index_folder;
pub use self::writer::{PackOptions, PackProgress, PackedPart, Part, open_parts, pack};

pub(crate) use self::scan::{LISTED, Problem, scan};
pub(crate) use self::source::{ShardLocation, Source};

use crate::datasets::Split;

/// The name of a shard's file ends so.
const EXTENSION: &str = ".tar";
/// The file that says that packing has begun and not ended; shards beside it are not all there are.
const UNFINISHED: &str = "packing.unfinished";
/// The most classes that labels without an index can speak of.
const MOST_CLASSES: u32 = 1_000_000;

/// What a split's shards are called, best first: what is not called by its own name may be by another's.
pub(crate) fn split_names(split: Split) -> &'static [&'static str] {
    match split {
        Split::Train => &["train"],
        Split::Validation => &["val", "validation", "test"],
        Split::Test => &["test", "val", "validation"],
    }
}

/// The split that a shard's name speaks of: the first of its words that is one, `train` of
/// `imagenet1k-train-0000.tar`.
fn split_of(shard: &str) -> Option<&'static str> {
    let words = shard.strip_suffix(EXTENSION)?.split(['-', '_', '.']);
    let known = ["train", "val", "validation", "test"];
    words.into_iter().find_map(|word| known.into_iter().find(|known| *known == word))
}

/// Whether a name is that of a file in the shards' folder, and leads nowhere else.
fn is_shard_name(name: &str) -> bool {
    name.len() > EXTENSION.len()
        && name.len() <= 255
        && name.ends_with(EXTENSION)
        && !name.starts_with('.')
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
