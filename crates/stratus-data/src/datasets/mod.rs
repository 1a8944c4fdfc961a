//! The data sets, and the code that several of them share.
//!
//! A new data set is a file in this folder with a [`DatasetEntry`], and a line in [`REGISTRY`]
//! (`registry.rs`). Data sets do not know each other, nor the registry.

pub mod camvid;
pub mod cifar;
pub mod cityscapes;
pub mod class_targets;
pub mod coco;
pub mod concat;
pub(crate) mod entry;
pub(crate) mod files;
pub mod folder;
mod label_encoding;
pub mod mnist;
pub(crate) mod packed;
mod pairs;
pub(crate) mod registry;
pub mod selection;
pub mod shards;
pub(crate) mod split;
pub mod synthetic;
pub mod table;
pub(crate) mod target_rows;
mod upright;

pub use self::entry::{
    DatasetEntry, OpenFunction, OpenOptions, PublishedFile, SyntheticOptions, TableOptions, UnpackedFile,
};
pub use self::registry::{REGISTRY, entry, open};
pub use self::split::{Split, SplitMethod, UnknownSplit};
pub use crate::dataset::{
    Dataset, FileDetail, Groups, IGNORED, IGNORED_PIXEL, RegionRequest, Sample, Scratch, StoredFile,
    TargetKind,
};
