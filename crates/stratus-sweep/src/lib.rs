//! Sweeps: an experiment for every combination of keys, repeated, each a run of its own.
//!
//! ```text
//! sweep.toml ──▶ Definition   the experiment, the keys and their values, repetitions
//!            ──▶ cells        one for every combination: an Experiment, checked
//!            ──▶ Sweep        sweeps/<name>/: a row for every cell and repetition, its status and its run
//!            ──▶ run          row by row by a Trainer, which knows how one is trained
//! ```
//!
//! What has been decided is in `cells.csv`, rewritten whole after every change, and in the run directories. A
//! sweep that was killed goes on from these: a row that is settled stays as it is, a run that was begun is
//! continued. Since continuing a run keeps its bits, the table is that of a sweep that was never killed. A
//! settled row whose run was removed waits again.
//!
//! This crate trains nothing, prints nothing and knows no network.

mod definition;
mod directory;
mod error;
mod halving;
mod lost;
mod schedule;

pub use definition::{BUILTIN, Builtin, Cell, Definition, builtin, is_sweep};
pub use directory::{CELLS, DEFINITION, REPORT, RUNS, Row, Status, Sweep};
pub use error::{Error, Result};
pub use halving::Halving;
pub use lost::{Loss, Lost};
pub use schedule::{Ended, Trainer};
