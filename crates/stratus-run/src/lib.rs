//! The run directory: its files, their formats, their readers and writers.
//!
//! `runs/<experiment>/<n>/` holds everything that a training run writes. Two promises shape this crate:
//!
//! - **It can always be continued.** Files that are replaced are written beside their old version, synced and
//!   renamed ([`atomic`]). Files that grow ([`csv`], [`timeline`], [`events`]) report their length, which a
//!   checkpoint records; continuing cuts them back to it. A checkpoint that does not verify is passed over
//!   for the one before it ([`checkpoint`]).
//! - **It can always be read**, by another process while it is written and after its writer was killed:
//!   readers take the whole records of a file and say how many bytes of a torn one follow.
//!
//! One process at a time writes a run directory; [`lock`] sees to it. This crate knows files, not training:
//! what the numbers mean is decided above it.

mod append;
pub mod atomic;
pub mod checkpoint;
pub mod classes;
pub mod csv;
pub mod data;
mod error;
pub mod events;
pub mod layout;
pub mod lock;
pub mod log;
pub mod machine;
pub mod rate;
pub mod sources;
pub mod summary;
pub mod timeline;

pub use error::{Error, Result};
pub use layout::RunDir;
