//! Training: from a configuration to a trained network in a run directory.
//!
//! ```text
//! Experiment ──resolve──▶ ResolvedProcess ──compile──▶ CompiledRun ──run──▶ run directory
//! configuration           every key settled            session, plans       weights, CSV, timeline
//! ```
//!
//! - [`resolve`]: settles an experiment for a data set, network and device, with the share of this process.
//! - [`input`]: data sets and their batches. [`network`]: the graph. [`device`]: the backend.
//! - [`compile`]: programs, plans and the session. [`weights`]: initial, pretrained and saved values.
//! - [`run`]: the training loop. [`evaluate`]: evaluates weights. [`mod@bench`]: measures speed.
//! - [`mod@infer`]: predicts classes of images. [`sizing`]: the memory of an experiment, the largest batch.
//! - [`mod@optimise`]: makes a run's network smaller. [`teacher`]: a network that teaches another.
//! - [`mod@forecast`]: forecasts training on this and other machines. [`workers`]: worker processes.
//! - [`libraries`]: the libraries on this machine. [`Observer`]: receives progress reports.

mod agreement;
pub mod bench;
mod cache;
pub mod compile;
pub mod device;
mod error;
pub mod evaluate;
pub mod exchange;
pub mod forecast;
pub mod infer;
pub mod input;
mod layer_file;
pub mod libraries;
pub mod network;
mod observe;
pub mod optimise;
pub mod plan_summary;
pub mod resolve;
pub mod run;
mod run_limits;
pub mod sizing;
pub mod teacher;
pub mod weights;
pub mod workers;

pub use cache::cache_folder;
pub use error::TrainError;
pub use layer_file::LayerFile;
pub use observe::{EpochResult, NullObserver, Observer, TrainingProgress, ValidationResult};
pub use resolve::ResolvedProcess;
