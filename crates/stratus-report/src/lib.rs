//! Run directories to tables, CSV and pages.
//!
//! Everything here reads what `stratus-run` wrote, also while it is being written, and changes nothing.
//!
//! - [`accounting`]: where an iteration's time goes, by layer and phase, down to what nothing accounts for;
//! - [`layers`]: the time of every layer in every iteration as `layers.csv`;
//! - [`collect`]: a run as one row: configuration, machine, times, results;
//! - [`tables`]: layers, iterations and runs as CSV or Parquet, of several runs in one file;
//! - [`trace`]: iterations step by step, for Perfetto;
//! - [`run_table`]: a run in a few lines, for its end;
//! - [`runs`]: the runs under a folder, a line each;
//! - [`report`]: everything about one or several runs as data, which [`page`] makes HTML of and [`markdown`]
//!   text.

pub mod accounting;
pub mod brief;
pub mod collect;
mod error;
pub mod layers;
pub mod markdown;
pub mod names;
pub mod page;
pub mod report;
mod rows;
pub mod run_table;
pub mod runs;
mod samples;
pub mod table;
pub mod tables;
mod text;
pub mod trace;

pub use error::{Error, Result};

/// How many first iterations a report skips by default: 5 %, at least two, never all.
///
/// They pay for what happens once: pages touched first, caches, frequencies, threads that start.
#[must_use]
pub fn default_skip(iterations: u64) -> u64 {
    iterations.div_ceil(20).max(2).min(iterations.saturating_sub(1))
}

/// The run's status, where one that says it is running but whose writer is gone counts as interrupted.
fn status(
    run: &stratus_run::RunDir,
    summary: &stratus_run::summary::Summary,
) -> stratus_run::summary::Status {
    use stratus_run::{lock, summary::Status};
    match (summary.status, lock::holder(run.path())) {
        (Status::Running, Ok(lock::Holder::Nobody)) => Status::Interrupted,
        (status, _) => status,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_skip_leaves_something() {
        let cases = [(0, 0), (1, 0), (2, 1), (3, 2), (40, 2), (41, 3), (1000, 50)];
        for (iterations, skip) in cases {
            assert_eq!(default_skip(iterations), skip, "of {iterations}");
        }
    }
}
