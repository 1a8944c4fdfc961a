//! Data sets, decoding, augmentation, fetching and the prefetching loader.
//!
//! A [`Dataset`] answers one question: what are the pixels and the label of sample `i`, as they are stored?
//! Everything else is built on that, for every data set alike: [`Loader`] cuts samples to size, changes them
//! at random and gathers them into reusable batch buffers on worker threads, [`fetch`](mod@fetch) brings
//! published files to a directory, [`stats`] counts. A new data set is one file under `datasets/` and one
//! line in [`datasets::REGISTRY`].
//!
//! What a batch holds is a function of (seed, epoch, batch), never of the number of workers or of where a run
//! was resumed.

mod affine;
pub mod augment;
pub mod buffer;
pub mod colour;
pub mod contact_sheet;
pub mod datasets;
mod decode;
mod error;
pub mod fetch;
pub mod frame;
pub mod idx;
pub mod loader;
mod mask;
pub mod mix;
mod parallel;
pub mod pixels;
pub mod shards;
pub mod stats;
pub mod sync;
#[cfg(test)]
mod torchvision_tests;
mod view;

pub use augment::{Augment, Padding, Placement, ResizedCrop, Shift};
pub use buffer::BatchBuffer;
pub use colour::ColourJitter;
pub use datasets::{Dataset, OpenOptions, RegionRequest, Sample, Scratch, Split, SplitBy, open};
pub use decode::{ImageDecoder, JpegLibrary};
pub use error::DataError;
pub use fetch::{FetchError, FetchReport, FetchedFile, Progress, fetch};
pub use frame::{Orientation, Region};
pub use loader::{LastBatch, Loader, LoaderConfig, LoaderError, Order, Position};
pub use mix::Mix;
pub use pixels::{Element, Layout, Normalisation, PixelOrder};
pub use stratus_store as store;
pub use view::View;
