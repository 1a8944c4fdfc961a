//! Sweeps: one experiment per combination of key values, each repetition a separate run.
//!
//! ```text
//! sweep.toml ──▶ Definition   the experiment, the swept keys and their values, the repetitions
//!            ──▶ cells        one validated Experiment per combination, or per draw of a search
//!            ──▶ Sweep        sweeps/<name>/: one row per cell and repetition, with its status and run
//!            ──▶ runs         trained row by row by a Trainer
//! ```
//!
//! The state of a sweep is `cells.csv`, rewritten whole after every change, and the run directories. A killed
//! sweep resumes from them: a settled row stays as it is, a started run is resumed. Since resumed runs are
//! bit-identical, the table equals that of a sweep that was never killed. A settled row whose run was removed
//! is trained again.
//!
//! Several machines train a sweep step by step ([`Sweep::next_step`]): each step follows from the results of
//! those that have ended.
//!
//! This crate neither trains nor prints, and does not depend on networks: a row is trained by a process of
//! the program ([`train_in_process`]).

mod definition;
mod directory;
mod error;
mod halving;
mod lost;
mod naming;
mod process;
mod results;
mod schedule;
mod search;
mod value;

pub use definition::{BUILTIN, Builtin, Cell, Definition, builtin, is_sweep, read_definition};
pub use directory::{Row, Status, Sweep};
pub use error::{Error, Result};
pub use halving::Halving;
pub use lost::{Loss, LostRun};
pub use naming::run_names;
pub use process::{OUT_OF_MEMORY_PREFIX, train_in_process};
pub use results::{Round, RoundCell, RoundOutcome, SweepResults, SweepSnapshot};
pub use schedule::{RowOutcome, Step, Trainer};
pub use search::{Search, SearchMethod};
