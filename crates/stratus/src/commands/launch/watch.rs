//! How launches stand, what they say, and what comes back of them.

use super::{open, settings};
use crate::errors::{Failure, Result};
use crate::output::{Output, bytes, table};
use crate::progress::clock;
use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stratus_launch::{Record, State, Status};

/// How often a log is asked for.
const LOOK: Duration = Duration::from_secs(2);

/// A launch and how it stands.
#[derive(Serialize)]
struct Stands<'a> {
    id: &'a str,
    target: &'a str,
    launched: u64,
    age_s: u64,
    runs: &'a [PathBuf],
    /// None where the target cannot be reached.
    state: Option<State>,
    problem: Option<String>,
}

impl<'a> Stands<'a> {
    fn of(record: &'a Record, state: Result<State>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let (state, problem) = match state {
            Ok(state) => (Some(state), None),
            Err(failure) => (None, Some(failure.error.to_string())),
        };
        let age_s = now.saturating_sub(record.launched);
        let Record { id, target, launched, runs, .. } = record;
        Self { id, target, launched: *launched, age_s, runs, state, problem }
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let row = |number: usize, run: &Path, status: String, epochs: String, last: String| {
            let age = clock(Duration::from_secs(self.age_s));
            let (id, target) = (self.id.to_owned(), self.target.to_owned());
            vec![id, target, number.to_string(), status, epochs, age, run.display().to_string(), last]
        };
        let dash = || "–".to_owned();
        (1..)
            .zip(self.runs)
            .map(|(number, run): (usize, _)| {
                let one = self.state.as_ref().and_then(|state| state.repetitions.get(number - 1));
                match one {
                    Some(one) => {
                        let epochs = one.epochs.map_or_else(dash, |epochs| epochs.to_string());
                        row(number, run, one.status.name().to_owned(), epochs, one.last.clone())
                    }
                    None => row(
                        number,
                        run,
                        "unknown".to_owned(),
                        dash(),
                        self.problem.clone().unwrap_or_default(),
                    ),
                }
            })
            .collect()
    }
}

fn head() -> Vec<String> {
    ["launch", "target", "n", "status", "epochs", "age", "run", "last"].map(str::to_owned).to_vec()
}

fn state(record: &Record) -> Result<State> {
    Ok(open(&settings(&record.target)?).state(record)?)
}

/// How a launch stands.
pub(super) fn status(record: &Record, output: &Output) -> Result {
    let stands = Stands::of(record, Ok(state(record)?));
    output.result(&stands, || {
        let rows = [vec![head()], stands.rows()].concat();
        let mut text = table(&rows);
        if let Some(state) = stands.state.as_ref().filter(|state| state.alive) {
            let beat = state.heartbeat_s.map_or("–".to_owned(), |age| format!("{age} s ago"));
            text.push_str(&format!("\ntrained by {}, heartbeat {beat}\n", state.owner));
        }
        text
    })
}

/// How all launches stand.
pub(super) fn list(records: &[Record], output: &Output) -> Result {
    let all: Vec<Stands<'_>> = records.iter().map(|record| Stands::of(record, state(record))).collect();
    output.result(&all, || {
        if all.is_empty() {
            return "nothing was launched from here\n".to_owned();
        }
        let mut rows = vec![head()];
        rows.extend(all.iter().flat_map(Stands::rows));
        table(&rows)
    })
}

/// What a repetition says.
pub(super) fn logs(record: &Record, repetition: Option<usize>, follow: bool) -> Result {
    let target = open(&settings(&record.target)?);
    if let Some(number) = repetition.filter(|number| !(1..=record.runs.len()).contains(number)) {
        return Err(Failure::usage(format!(
            "{} has {} repetitions, not {number}",
            record.id,
            record.runs.len()
        )));
    }
    let mut out = io::stdout().lock();
    let (mut shown, mut offset) = (0, 0);
    loop {
        let state = target.state(record)?;
        let trained = state.repetitions.iter().rfind(|one| one.status != Status::Waiting);
        let now = repetition.or(trained.map(|one| one.repetition)).unwrap_or(1);
        if shown != 0 && shown != now {
            // What the one before said at its end.
            target.logs(record, shown, offset, &mut out)?;
            offset = 0;
        }
        shown = now;
        offset = target.logs(record, shown, offset, &mut out)?;
        // A reader that went away is no error.
        if out.flush().is_err() || !follow || !state.alive {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
}

/// Brings the runs.
pub(super) fn fetch(record: &Record, output: &Output) -> Result {
    #[derive(Serialize)]
    struct Brought<'a> {
        run: &'a Path,
        #[serde(flatten)]
        fetched: stratus_launch::Fetched,
    }
    let target = open(&settings(&record.target)?);
    let mut brought = Vec::new();
    for (number, run) in (1..).zip(&record.runs) {
        let number: usize = number;
        let mut fetched = target.fetch(record, number, run)?;
        // What changed while it came is asked for once more.
        if fetched.changing > 0 {
            let again = target.fetch(record, number, run)?;
            fetched.files += again.files;
            fetched.bytes += again.bytes;
            fetched.changing = again.changing;
        }
        brought.push(Brought { run, fetched });
    }
    if brought.iter().all(|one| one.fetched.changing == 0) && !target.state(record)?.alive {
        target.release();
    }
    output.result(&brought, || {
        let line = |one: &Brought<'_>| {
            let changing = match one.fetched.changing {
                0 => String::new(),
                count => format!("; {count} changed meanwhile: fetch again"),
            };
            let (files, size) = (one.fetched.files, bytes(one.fetched.bytes));
            format!("{}: {size} in {files} files{changing}\n", one.run.display())
        };
        brought.iter().map(line).collect()
    })
}

/// Stops the training.
pub(super) fn stop(record: &Record, output: &Output) -> Result {
    let asked = open(&settings(&record.target)?).stop(record)?;
    output.message(&match asked {
        true => format!("{} stops, with a checkpoint; `stratus launch resume {0}` goes on", record.id),
        false => format!("{}: nothing is trained", record.id),
    });
    Ok(())
}
