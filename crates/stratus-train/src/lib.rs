//! The experiment: configuration, loop, schedules, metrics, checkpointing, resuming.
//!
//! [`Experiment`] says what is asked for, [`compile`] turns it into a session with its programs, [`run`] trains it in a run directory,
//! [`evaluate`] measures weights, [`weights`] come from other programs. Who watches is an [`Observer`].

pub mod bench;
pub mod compile;
pub mod device;
mod error;
pub mod evaluate;
pub mod experiment;
pub mod feed;
pub mod fit;
mod initialise;
pub mod network;
mod observe;
mod plan_cache;
pub mod run;
pub mod schedule;
mod state;
pub mod trained;
mod views;
pub mod weights;
mod whiten;

pub use error::TrainError;
pub use experiment::{Experiment, ExperimentError};
pub use observe::{EpochResult, Observer, Silent, Standing};
pub use schedule::Schedule;
