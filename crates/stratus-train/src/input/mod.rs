//! The data sets of an experiment, and the pipeline that makes batches of them.
//!
//! ```text
//! data.path ──open──▶ Dataset ──InputPipeline──▶ LoaderConfig ──▶ batches
//! ```

mod class_weights;
mod datasets;
mod fingerprint;
mod host_memory;
mod pipeline;
mod placeholder;
mod read_ahead;

pub(crate) use class_weights::with_class_weights;
pub(crate) use datasets::open_split;
pub use datasets::{Datasets, open_dataset, open_datasets, open_options};
pub(crate) use fingerprint::data_record;
pub use host_memory::HostMemory;
pub(crate) use host_memory::gathered_bytes;
pub use pipeline::{BatchFormat, InputPipeline, ScaleShifts};
pub(crate) use pipeline::{annotation, dataset_facts, image_shape};
pub(crate) use placeholder::PlaceholderDataset;
pub use placeholder::open_datasets_or_placeholders;
pub use read_ahead::usable_cores;
