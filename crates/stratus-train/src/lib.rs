//! Training: from a configuration to a trained network in a run directory.
//!
//! ```text
//! Experiment ──resolve──▶ Resolved ──compile──▶ CompiledRun ──run──▶ run directory
//! what was asked          what will be done     session, plans       weights, CSV, timeline
//! ```
//!
//! - [`experiment`]: the configuration. [`resolve`]: what it comes to on this data set, network and device.
//! - [`input`]: data sets and the batches made of them. [`network`]: the graph. [`device`]: the backend.
//! - [`compile`]: programs, plans and the session. [`weights`]: first, pretrained and saved values.
//! - [`run`]: the training loop. [`evaluate`]: measures weights. [`mod@bench`]: measures speed.
//! - [`Schedule`]: the learning rate. [`Observer`]: who is told how training goes.

mod allowance;
pub mod bench;
mod cache;
pub mod compile;
pub mod device;
mod error;
pub mod evaluate;
pub mod experiment;
pub mod infer;
pub mod input;
pub mod network;
mod observe;
pub mod resolve;
pub mod run;
pub mod schedule;
pub mod weights;

pub use allowance::Deadline;
pub use cache::cache_folder;
pub use error::TrainError;
pub use experiment::{Experiment, ExperimentError};
pub use observe::{EpochResult, Observer, Silent, TrainingProgress, Validated};
pub use resolve::Resolved;
pub use schedule::{Schedule, ScheduleShape};
