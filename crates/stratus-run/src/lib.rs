//! The run directory: its files, their formats, their readers and writers.
//!
//! `runs/<experiment>/<n>/` contains everything that a training run writes. This crate guarantees:
//!
//! - **A run can always be resumed.** Files that are replaced are written to a temporary file, synced and
//!   renamed ([`atomic`]). Files that grow ([`csv`], [`timeline`], [`events`]) report their length, which a
//!   checkpoint records; on resume they are truncated to it. A checkpoint that does not verify is skipped in
//!   favour of the previous one ([`checkpoint`]).
//! - **A run can always be read**, by another process while it is written and after its writer was killed:
//!   readers return the complete records of a file and report the number of bytes of a torn one.
//!
//! One process at a time writes a run directory; [`lock`] enforces that. This crate handles files, not
//! training: it does not interpret the numbers.

mod append;
pub mod atomic;
pub mod checkpoint;
pub mod classes;
mod copy;
pub mod csv;
pub mod data;
mod data_label;
mod error;
pub mod events;
pub mod forecast;
pub mod git;
pub mod labels;
pub mod layout;
pub mod lock;
pub mod log;
pub mod machine;
pub mod optimised;
pub mod owner;
pub mod quantisation;
pub mod rate;
pub mod remote;
mod run_dir;
pub mod sources;
pub mod summary;
pub mod timeline;
pub mod validation;
pub mod variants;

pub use data_label::data_label;
pub use error::{Error, Result};
pub use run_dir::{RunDir, SEARCH_DEPTH, searched_folders};
