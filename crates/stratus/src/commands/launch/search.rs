//! Launched sweeps in which results decide which cells are trained: their steps between fetches.

use super::fetch::fetch_runs;
use super::{restart, write_labels};
use crate::commands::data::location::locate;
use crate::errors::{Failure, INTERRUPTED, Result};
use crate::output::Output;
use std::path::Path;
use stratus_base::text::shell_path;
use stratus_launch::{
    Job, LaunchRecord, LaunchState, RepetitionStatus, SearchAdvance, Target, TargetSettings,
};
use stratus_run::labels::RunLabels;
use stratus_run::layout::{LABELS, RUNS};

/// Records fetched results; if `starts_steps`, adds the next steps to the record and writes it. New runs get
/// the labels of the sweep.
///
/// # Errors
/// If the sweep cannot be continued, its labels cannot be read, or the record cannot be written.
pub(super) fn advance(
    record: &mut LaunchRecord,
    target: &dyn Target,
    state: Option<&LaunchState>,
    starts_steps: bool,
) -> Result<SearchAdvance> {
    let known = record.runs.len();
    let advance = record.advance(state, target.slots(), starts_steps, &locate)?;
    if !advance.started.is_empty() {
        if let Some(search) = &record.search {
            write_labels(&record.runs[known..], &RunLabels::read(&search.sweep.join(LABELS))?)?;
        }
        record.write(Path::new(RUNS))?;
    }
    Ok(advance)
}

/// The job of a launch; that of a search has only the repetitions in progress.
pub(super) fn job_in_progress(record: &LaunchRecord, notify: Option<String>) -> Result<Job> {
    let job = record.job(notify);
    Ok(match record.search {
        Some(_) => Job { selected: Some(record.repetitions_in_progress()?), ..job },
        None => job,
    })
}

/// Starts the repetitions of a search that the target does not know, if it does not do so itself.
pub(super) fn start_unknown(
    record: &LaunchRecord,
    target: &dyn Target,
    state: &LaunchState,
    job: &Job,
) -> Result {
    let is_unknown = |number: &usize| {
        let known = state.repetitions.get(number - 1);
        known.is_none_or(|one| one.status == RepetitionStatus::Waiting && one.queue.is_none())
    };
    let selected: Vec<usize> = job.selected.iter().flatten().copied().filter(is_unknown).collect();
    if !selected.is_empty() {
        target.extend(&record.root, &Job { selected: Some(selected), ..job.clone() })?;
    }
    Ok(())
}

/// Resumes a search: records what was fetched, and starts repetitions in progress, failed ones, and the next
/// steps.
///
/// # Errors
/// If the target cannot be reached, the launch is running, or the sweep cannot be continued.
pub(super) fn resume(
    record: &LaunchRecord,
    target: &dyn Target,
    settings: &TargetSettings,
    output: &Output,
) -> Result {
    let runs = Path::new(RUNS);
    // Nothing is there yet if the launch was killed before its first step.
    if let Ok(state) = target.state(record) {
        fetch_runs(target, record, &settings.kind.describe(), &state, None)?;
    }
    let lock = record.lock(runs)?;
    let found = LaunchRecord::find(runs, Some(&record.id))?;
    let mut record = LaunchRecord { lease: record.lease, released: None, ..found };
    record.retry_failed()?;
    let advance = advance(&mut record, target, None, true)?;
    record.write(runs)?;
    advance.messages.iter().for_each(|line| output.message(line));
    let job = job_in_progress(&record, settings.notify.clone())?;
    if advance.is_over {
        output.message(&format!("{}: nothing to resume; {}", record.id, comparison(&record)));
        return Ok(());
    }
    restart(&mut record, target, &job, output)?;
    drop(lock);
    Ok(())
}

/// Reports the end of a search.
///
/// # Errors
/// If rows are not settled.
pub(super) fn check_over(record: &LaunchRecord, output: &Output) -> Result {
    if record.search.is_none() {
        return Ok(());
    }
    if record.has_open_rows()? {
        return Err(Failure {
            code: INTERRUPTED,
            error: format!("{}: the sweep is unfinished", record.id).into(),
            hint: Some(format!("`stratus launch resume {}` resumes it", record.id)),
        });
    }
    output.message(&format!("{}: the sweep has ended; {}", record.id, comparison(record)));
    Ok(())
}

fn comparison(record: &LaunchRecord) -> String {
    let sweep = record.search.as_ref().map_or(String::new(), |search| shell_path(&search.sweep));
    format!("`stratus sweep {sweep}` compares its runs")
}
