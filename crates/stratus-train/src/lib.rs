//! The experiment: configuration, loop, schedules, metrics, checkpointing, resuming.

pub mod experiment;
pub mod schedule;

pub use experiment::{Experiment, ExperimentError};
pub use schedule::Schedule;
