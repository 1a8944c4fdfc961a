//! Tar shards in the WebDataset layout: a data set in a few large files that are read sequentially, possibly
//! from a remote store.
//!
//! A shard is a plain tar archive. A sample consists of consecutive members with the same name up to the
//! first dot:
//!
//! ```text
//!   000123.jpg, .png or .webp   the image
//!   000123.cls                  the class, in decimal digits; or instead
//!   000123.seg.png              a mask with the class of every pixel
//!   000123.json                 an object with the labels or numbers by name, null if missing
//! ```
//!
//! Shard names begin with their split: `train-000000.tar`, `val-000000.tar`.
//!
//! [`pack`] writes shards and an `index.json` with checksums, labels and the position of each sample. So a
//! data set of a million samples opens without reading any shard. Shards without an index are scanned once,
//! header by header. The layout: <https://github.com/webdataset/webdataset>.

mod index;
mod names;
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

pub(crate) use self::names::split_names;
pub(crate) use self::scan::{DamagedSample, MAX_LISTED_PROBLEMS, scan};
pub(crate) use self::source::{ShardLocation, ShardSource};
