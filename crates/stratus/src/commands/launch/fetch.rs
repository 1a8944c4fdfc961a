//! Fetches the runs of a launch.

use super::now;
use crate::errors::Result;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use stratus_launch::{FetchStats, LaunchRecord, LaunchState, RepetitionStatus, Target};
use stratus_run::RunDir;
use stratus_run::csv::{self, EpochRow};
use stratus_run::layout::{EPOCHS, RUNS, SUMMARY};
use stratus_run::remote::RemoteRun;
use stratus_run::summary::{Status as RunStatus, Summary};

/// The time after which an unchanged record of a fetch is renewed, in seconds.
const MIN_RECORD_INTERVAL_S: u64 = 30;

/// A run, and the files that were fetched.
#[derive(Serialize)]
pub(super) struct FetchedRun {
    pub run: PathBuf,
    #[serde(flatten)]
    pub fetched: FetchStats,
    /// The reason that nothing could be fetched.
    pub problem: Option<String>,
}

/// The stamp of each run at its last complete fetch, by repetition; unchanged runs are skipped.
pub(super) type FetchedStamps = BTreeMap<usize, u64>;

/// Fetches new files of the runs, except those that are unchanged since `seen`. `machine` describes the
/// target in their records.
///
/// # Errors
/// If the target cannot be reached; fetched files stay.
pub(super) fn fetch_runs(
    target: &dyn Target,
    record: &LaunchRecord,
    machine: &str,
    state: &LaunchState,
    mut seen: Option<&mut FetchedStamps>,
) -> Result<Vec<FetchedRun>> {
    let mut fetched_runs = Vec::new();
    for (number, run) in (1_usize..).zip(&record.runs) {
        let one = state.repetitions.get(number - 1);
        // Every file of a completed repetition was verified when it was fetched.
        if record.done.contains(&number) && run.exists() {
            fetched_runs.push(FetchedRun { run: run.clone(), fetched: FetchStats::default(), problem: None });
            continue;
        }
        // The host of the repetition cannot be reached.
        if let Some(one) =
            one.filter(|one| one.status == RepetitionStatus::Unknown && !record.host_by_repetition.is_empty())
        {
            let (run, problem) = (run.clone(), Some(one.last_line.clone()));
            fetched_runs.push(FetchedRun { run, fetched: FetchStats::default(), problem });
            continue;
        }
        let stamp = one.and_then(|one| one.stamp);
        let before = seen.as_ref().map(|seen| seen.get(&number).copied());
        let is_seen = match (one.map(|one| one.status), before) {
            // A completed run must be fetched once more to mark it as done.
            (Some(RepetitionStatus::Completed) | None, _) | (_, None) => false,
            (Some(RepetitionStatus::Waiting), Some(before)) => stamp == before,
            (Some(_), Some(before)) => stamp.is_some() && stamp == before,
        };
        if is_seen {
            record_remote(record, machine, state, number)?;
            fetched_runs.push(FetchedRun { run: run.clone(), fetched: FetchStats::default(), problem: None });
            continue;
        }
        let mut fetched = target.fetch(record, number, run)?;
        // Files that changed during the fetch are fetched once more.
        if fetched.changing > 0 {
            let second = target.fetch(record, number, run)?;
            fetched.files += second.files;
            fetched.bytes += second.bytes;
            fetched.changing = second.changing;
        }
        // The stamp was taken before the fetch, so that changes since then are fetched next time.
        if let (Some(stamp), Some(seen)) = (stamp.filter(|_| fetched.changing == 0), &mut seen) {
            seen.insert(number, stamp);
        }
        record_remote(record, machine, state, number)?;
        let is_completed = one.is_some_and(|one| one.status == RepetitionStatus::Completed);
        if fetched.changing == 0 && is_completed && is_completed_here(record, number, run) {
            mark_done(record, number)?;
        }
        fetched_runs.push(FetchedRun { run: run.clone(), fetched, problem: None });
    }
    Ok(fetched_runs)
}

/// Records in the local copy of a run where it is trained, and that it is up to date.
///
/// # Errors
/// If the file cannot be written.
fn record_remote(record: &LaunchRecord, machine: &str, state: &LaunchState, repetition: usize) -> Result {
    let (Some(one), Some(run)) = (state.repetitions.get(repetition - 1), record.runs.get(repetition - 1))
    else {
        return Ok(());
    };
    // A repetition that was not started yet has no files.
    let Ok(run) = RunDir::open(run) else { return Ok(()) };
    let owner = one.owner.as_deref().unwrap_or(&state.owner);
    let owner = owner.split(',').next().filter(|host| !host.is_empty());
    let host = record.host_by_repetition.get(repetition - 1).map(String::as_str).or(owner);
    let now = RemoteRun {
        launch: record.id.clone(),
        target: record.target.clone(),
        machine: machine.to_owned(),
        host: host.map(str::to_owned),
        status: one.status.name().to_owned(),
        fetched: now(),
    };
    let is_recorded = RemoteRun::read(&run.remote()).ok().flatten().is_some_and(|before| {
        let is_recent = now.fetched.saturating_sub(before.fetched) < MIN_RECORD_INTERVAL_S;
        is_recent && RemoteRun { fetched: now.fetched, ..before } == now
    });
    if is_recorded { Ok(()) } else { Ok(now.write(&run.remote())?) }
}

/// Returns whether the files of the fetched run say that the run is completed, or, in a search, that it has
/// reached its goal.
fn is_completed_here(record: &LaunchRecord, repetition: usize, run: &Path) -> bool {
    let Ok(summary) = Summary::read(&run.join(SUMMARY)) else { return false };
    if summary.status == RunStatus::Completed {
        return true;
    }
    let Some(until_epoch) = record.goals().get(repetition - 1).and_then(|goal| goal.parse::<u32>().ok())
    else {
        return false;
    };
    let last =
        csv::read::<EpochRow>(&run.join(EPOCHS)).ok().and_then(|rows| rows.last().map(|row| row.epoch));
    last.is_some_and(|epoch| epoch >= until_epoch)
}

/// Records that a repetition is completely fetched.
fn mark_done(record: &LaunchRecord, repetition: usize) -> Result {
    let runs = Path::new(RUNS);
    let lock = record.lock(runs)?;
    // Another process may have changed the record meanwhile.
    let mut record = LaunchRecord::find(runs, Some(&record.id))?;
    if !record.done.contains(&repetition) {
        record.done.push(repetition);
        record.write(runs)?;
    }
    drop(lock);
    Ok(())
}
