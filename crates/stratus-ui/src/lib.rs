//! The live page over run directories: `stratus ui`.
//!
//! The files of the runs are the database: nothing is imported, and nothing is written into a run. The page
//! of a run and the comparison of runs are the sections of `stratus-report`'s pages, with the same script.
//!
//! - `server`: the listener, its limits, and the guards of every request;
//! - `index`: the runs in the folders, with a small record of each, refreshed once a second by a thread
//!   that compares the lengths and modification times of files;
//! - `tail`: rows appended to a file since the last read;
//! - `series`: curves with a bounded number of points, to which rows are appended;
//! - `sweeps`: the sweeps in the folders, read by `stratus-sweep`, with the rows of their runs;
//! - `launches`: the files that `stratus launch` keeps here, read by `stratus-launch`;
//! - `forecasts`: the answers of the command line's forecaster;
//! - `log`, `files`: the end of a run's log, and its files;
//! - `reports`: the reports of opened runs, kept until their files change;
//! - `actions`: stopping and continuing runs, by their processes;
//! - `api`: JSON documents and the stream of changes; `pages`: the HTML around them.
//!
//! tokio stays inside this crate. Files are read outside its thread.

mod actions;
mod api;
mod error;
mod files;
mod forecasts;
mod index;
mod launches;
mod log;
mod pages;
mod reports;
mod series;
mod server;
mod sweeps;
mod tail;

pub use error::{Error, Result};
pub use forecasts::{ForecastExperiment, ForecastRequest, Forecaster};
pub use index::{Index, ReadCount};
pub use server::{DEFAULT_PORT, Options, Server};
