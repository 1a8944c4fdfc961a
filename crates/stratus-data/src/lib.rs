//! Data sets, decoding, augmentation, fetching and the prefetching loader.
//!
//! A [`Dataset`] returns the stored pixels and the label of sample `i`. Everything else is shared by all data
//! sets: [`Loader`] transforms samples (see [`transform`]) and collects them in reusable batch buffers on
//! worker threads, [`fetch`](mod@fetch) downloads published files, [`shards`] packs them, [`stats`] computes
//! statistics. A new data set is one file under `datasets/` and one line in [`datasets::REGISTRY`].
//!
//! The content of a batch is a function of (seed, epoch, batch): neither the number of workers nor resuming a
//! run changes it.

mod archive;
pub mod buffer;
pub mod contact_sheet;
mod dataset;
pub mod datasets;
mod decode;
pub mod duplicates;
mod error;
pub mod fetch;
pub mod fingerprint;
#[cfg(fuzzing)]
pub mod fuzzing;
mod geometry;
pub mod idx;
mod ignored_files;
pub mod images;
pub mod loader;
pub mod memory;
mod parallel;
pub mod png_mark;
pub mod shards;
pub mod stats;
pub mod sync;
mod target_stats;
pub mod transform;

pub use buffer::{BatchBuffer, BatchMemory};
pub use dataset::{Dataset, RegionRequest, Sample, Scratch, TargetKind};
pub use datasets::{OpenOptions, Split, SplitMethod, TableOptions, open};
pub use decode::{ImageDecoder, JpegLibrary};
pub use error::DataError;
pub use fetch::{FetchError, FetchReport, FetchedFile, Progress, fetch};
pub use fingerprint::Fingerprint;
pub use geometry::{DctScale, DctScaled, Orientation, Region};
pub use ignored_files::IgnoredFiles;
pub use images::is_image_file;
pub use loader::{
    BatchSlice, BatchStride, Decoding, LastBatch, Loader, LoaderConfig, LoaderError, Order, Position,
    TargetScale,
};
pub use stratus_store as store;
pub use transform::augment::{Augment, Padding, Placement, ResizedCrop, Shift};
pub use transform::colour::ColourJitter;
pub use transform::mix::Mix;
pub use transform::pixels::{Element, Layout, Normalisation, PixelOrder};
pub use transform::view::TtaView;
pub use transform::{augment, colour, frame, mix, pixels};
