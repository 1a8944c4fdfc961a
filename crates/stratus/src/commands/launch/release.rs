//! Releases a target after all files were fetched and verified.

use super::fetch::fetch_runs;
use super::{find_target, now, open_target};
use crate::errors::{Failure, Result};
use crate::output::Output;
use std::path::Path;
use std::time::Duration;
use stratus_launch::{FetchStats, LaunchRecord, LaunchState, RepetitionStatus, run_hook};
use stratus_run::layout::RUNS;

/// The time limit of the release command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(600);
/// The maximum number of passes to fetch files that change.
const MAX_FETCH_PASSES: usize = 4;

/// Fetches missing files, verifies all of them, and runs the target's release command.
///
/// # Errors
/// If a repetition is running, or unfinished and the release is not forced; if files keep changing; if the
/// command fails.
pub(super) fn release(record: &LaunchRecord, force: bool, output: &Output) -> Result {
    let settings = find_target(&record.target)?;
    let target = open_target(&settings);
    let state = target.state(record)?;
    let has_open_rows = record.has_open_rows()?;
    if let Some(problem) = release_blocker(record, &state, has_open_rows, force) {
        return Err(Failure::failed(problem).with_hint(format!(
            "resume with `stratus launch resume {0}`, or stop with `stratus launch stop {0}`; --force \
             releases unfinished repetitions",
            record.id
        )));
    }
    // A pass that fetches nothing has compared every file by its hash.
    let mut record = record.clone();
    let mut is_checked = false;
    for _ in 0..MAX_FETCH_PASSES {
        let fetched_runs = fetch_runs(target.as_ref(), &record, &settings.kind.describe(), &state, None)?;
        // Completely fetched repetitions are not fetched again.
        record = LaunchRecord::find(Path::new(RUNS), Some(&record.id))?;
        is_checked =
            fetched_runs.iter().all(|one| one.fetched == FetchStats::default() && one.problem.is_none());
        if is_checked {
            break;
        }
    }
    if !is_checked {
        return Err(Failure::failed(format!("{}: files keep changing during the fetch", record.id))
            .with_hint("check which process on the target writes to the runs"));
    }
    target.release();
    if let Some(command) = &settings.release {
        let variables = [("STRATUS_LAUNCH", record.id.as_str()), ("STRATUS_TARGET", record.target.as_str())];
        run_hook(&format!("{}: release", settings.name), command, &variables, COMMAND_TIMEOUT)?;
    }
    let lock = record.lock(Path::new(RUNS))?;
    let record = LaunchRecord::find(Path::new(RUNS), Some(&record.id))?;
    LaunchRecord { released: Some(now()), ..record.clone() }.write(Path::new(RUNS))?;
    drop(lock);
    let ran = if settings.release.is_some() { "ran its release command" } else { "no release command" };
    let LaunchRecord { id, target, .. } = &record;
    output.message(&format!("{id}: all files fetched and verified; released {target}: {ran}"));
    Ok(())
}

/// The reason that a launch cannot be released; `None` if it can.
fn release_blocker(
    record: &LaunchRecord,
    state: &LaunchState,
    has_open_rows: bool,
    force: bool,
) -> Option<String> {
    if state.is_running {
        return Some(format!("{} is running", record.id));
    }
    let open = state.repetitions.iter().find(|one| one.status != RepetitionStatus::Completed);
    if open.is_none() && has_open_rows && !force {
        return Some(format!("{}: the sweep is unfinished", record.id));
    }
    let open = open?;
    (!force).then(|| format!("{}: repetition {} is {}", record.id, open.repetition, open.status.name()))
}
