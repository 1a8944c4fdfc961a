//! Reports on run directories: tables, CSV and HTML pages.
//!
//! All functions read the files of `stratus-run`, even while these are being written, and change nothing.
//!
//! - [`accounting`]: the breakdown of the time of an iteration by layer and phase, with the unattributed
//!   rest;
//! - [`layers`]: the time of every layer in every iteration as `layers.csv`;
//! - [`collect`]: a run as one row: configuration, machine, times, results;
//! - [`tables`]: layers, iterations and runs as CSV or Parquet, of several runs in one file;
//! - [`trace`]: iterations step by step, for Perfetto;
//! - [`run_table`]: a run in a few lines, for its end;
//! - [`variant_table`]: the networks that `stratus optimise` compared;
//! - [`runs`]: the runs in a folder, one line each, and [`query`]: those that match words;
//! - [`report`]: everything about one or several runs as data, which [`page`] renders as HTML and
//!   [`markdown`] as text.

pub mod accounting;
pub mod collect;
mod error;
pub mod layers;
pub mod markdown;
pub mod names;
mod network_label;
pub mod overview;
pub mod page;
pub mod query;
pub mod report;
mod rows;
pub mod run_table;
pub mod runs;
mod samples;
pub mod table;
pub mod tables;
pub mod text;
pub mod trace;
pub mod variant_table;

pub use error::{Error, Result};
pub use network_label::network_label;

/// The number of first iterations that a report skips by default: 5 %, at least two, never all.
///
/// These iterations include one-time costs: page faults, cold caches, rising clocks, thread startup.
#[must_use]
pub fn default_skip(iterations: u64) -> u64 {
    iterations.div_ceil(20).max(2).min(iterations.saturating_sub(1))
}

/// The status of a run; a running one whose writer has ended counts as interrupted. The status of a run that
/// another machine trains is that of the last fetch.
#[must_use]
pub fn status(
    run: &stratus_run::RunDir,
    summary: &stratus_run::summary::Summary,
) -> stratus_run::summary::Status {
    use stratus_run::{lock, summary::Status};
    match (summary.status, lock::lock_state(run.path())) {
        (Status::Running, Ok(lock::LockState::Free)) => {
            remote(run).map_or(Status::Interrupted, |remote| remote.run_status())
        }
        (status, _) => status,
    }
}

/// The machine that trains a run, if it is another one. A damaged file counts as none.
fn remote(run: &stratus_run::RunDir) -> Option<stratus_run::remote::RemoteRun> {
    stratus_run::remote::RemoteRun::read(&run.remote()).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_skip_keeps_at_least_one_iteration() {
        let cases = [(0, 0), (1, 0), (2, 1), (3, 2), (40, 2), (41, 3), (1000, 50)];
        for (iterations, skip) in cases {
            assert_eq!(default_skip(iterations), skip, "{iterations} iterations");
        }
    }
}
