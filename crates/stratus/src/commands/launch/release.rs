//! Giving a machine back, once everything of it is here.

use super::watch::bring;
use super::{RUNS, now, open, settings};
use crate::errors::{Failure, Result};
use crate::output::Output;
use std::path::Path;
use std::time::Duration;
use stratus_launch::{Fetched, Record, State, Status, hook};

/// How long the command may take that gives a machine back.
const LIMIT: Duration = Duration::from_secs(600);
/// How often what changes is brought again.
const PASSES: usize = 4;

/// Brings what is not here yet, compares all of it, and runs the target's command.
///
/// # Errors
/// Where something is trained, or is not done and not given up; where what is there and here differs; where
/// the command fails.
pub(super) fn release(record: &Record, anyway: bool, output: &Output) -> Result {
    let settings = settings(&record.target)?;
    let target = open(&settings);
    let state = target.state(record)?;
    if let Some(problem) = unfinished(record, &state, anyway) {
        return Err(Failure::failed(problem).hint(format!(
            "`stratus launch resume {0}` goes on, `stratus launch stop {0}` stops it; --anyway releases \
             what is not trained to its end",
            record.id
        )));
    }
    // A pass that brings nothing has compared every file by its hash.
    let mut record = record.clone();
    let mut is_checked = false;
    for _ in 0..PASSES {
        let brought = bring(target.as_ref(), &record, &state, None)?;
        // What came whole is not asked for again.
        record = Record::find(Path::new(RUNS), Some(&record.id))?;
        is_checked = brought.iter().all(|one| one.fetched == Fetched::default() && one.problem.is_none());
        if is_checked {
            break;
        }
    }
    if !is_checked {
        return Err(Failure::failed(format!("{}: the runs change while they come", record.id))
            .hint("see who writes them there"));
    }
    target.release();
    if let Some(command) = &settings.release {
        let variables = [("STRATUS_LAUNCH", record.id.as_str()), ("STRATUS_TARGET", record.target.as_str())];
        hook(&format!("{}: release", settings.name), command, &variables, LIMIT)?;
    }
    let lock = record.lock(Path::new(RUNS))?;
    let record = Record::find(Path::new(RUNS), Some(&record.id))?;
    Record { released: Some(now()), ..record.clone() }.write(Path::new(RUNS))?;
    drop(lock);
    let ran = if settings.release.is_some() { "its command ran" } else { "it has no command for that" };
    let Record { id, target, .. } = &record;
    output.message(&format!("{id}: everything is here, checked; {target} is released: {ran}"));
    Ok(())
}

/// Why it cannot be released.
fn unfinished(record: &Record, state: &State, anyway: bool) -> Option<String> {
    if state.alive {
        return Some(format!("{} is being trained", record.id));
    }
    let open = state.repetitions.iter().find(|one| one.status != Status::Completed)?;
    (!anyway).then(|| format!("{}: repetition {} is {}", record.id, open.repetition, open.status.name()))
}
