//! How launches stand, what they say, and what comes back of them.

use super::release::release;
use super::{RUNS, now, open, settings};
use crate::errors::{Failure, Result};
use crate::output::{Output, bytes, table};
use crate::progress::clock;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use stratus_launch::{Fetched, Record, State, Status, Target};
use stratus_run::layout::SUMMARY;
use stratus_run::summary::{Status as Trained, Summary};

/// How often a log is asked for.
const LOOK: Duration = Duration::from_secs(2);
/// How often runs are brought as they grow.
const BETWEEN: Duration = Duration::from_secs(10);
/// The share of a processor that this may take; where it would be more, runs are brought more seldom.
const SHARE: f64 = 0.01;
/// How seldom they are brought at the most.
const SELDOMEST: Duration = Duration::from_secs(300);
/// For how long a target that cannot be reached is tried.
const PATIENCE: Duration = Duration::from_secs(900);
/// How often something is started again though nothing gets further.
const MOST_AGAIN: usize = 10;

/// A launch and how it stands.
#[derive(Serialize)]
struct Stands<'a> {
    id: &'a str,
    target: &'a str,
    launched: u64,
    age_s: u64,
    runs: &'a [PathBuf],
    /// Seconds of a repetition.
    forecast_s: Option<f64>,
    /// When the lease ends, in seconds since 1970.
    until: Option<u64>,
    released: Option<u64>,
    /// None where the target cannot be reached.
    state: Option<State>,
    problem: Option<String>,
}

impl<'a> Stands<'a> {
    fn of(record: &'a Record, state: Option<Result<State>>) -> Self {
        let (state, problem) = match state {
            Some(Ok(state)) => (Some(state), None),
            Some(Err(failure)) => (None, Some(failure.error.to_string())),
            None => (None, None),
        };
        let age_s = now().saturating_sub(record.launched);
        let Record { id, target, launched, runs, expected_s, lease, released, .. } = record;
        Self {
            id,
            target,
            launched: *launched,
            age_s,
            runs,
            forecast_s: *expected_s,
            until: lease.map(|lease| lease.until),
            released: *released,
            state,
            problem,
        }
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let dash = || "–".to_owned();
        let time = |seconds: u64| clock(Duration::from_secs(seconds));
        let forecast = self.forecast_s.map_or_else(dash, |seconds| time(seconds.round() as u64));
        (1..)
            .zip(self.runs)
            .map(|(number, run): (usize, _)| {
                let one = self.state.as_ref().and_then(|state| state.repetitions.get(number - 1));
                let (status, epochs, elapsed, last) = match one {
                    Some(one) => {
                        // What is not trained: the queue knows why.
                        let waits = matches!(one.status, Status::Waiting | Status::Interrupted);
                        let queue = one.queue.clone().filter(|_| waits);
                        let epochs = one.epochs.map_or_else(dash, |epochs| epochs.to_string());
                        let elapsed = one.elapsed_s.map_or_else(dash, time);
                        (one.status.name(), epochs, elapsed, queue.unwrap_or_else(|| one.last.clone()))
                    }
                    None if self.released.is_some() => ("released", dash(), dash(), String::new()),
                    None => ("unknown", dash(), dash(), self.problem.clone().unwrap_or_default()),
                };
                let (number, run) = (number.to_string(), run.display().to_string());
                let (id, target, status) = (self.id.to_owned(), self.target.to_owned(), status.to_owned());
                let age = time(self.age_s);
                vec![id, target, number, status, epochs, age, elapsed, forecast.clone(), run, last]
            })
            .collect()
    }
}

fn head() -> Vec<String> {
    ["launch", "target", "n", "status", "epochs", "age", "elapsed", "forecast", "run", "last"]
        .map(str::to_owned)
        .to_vec()
}

fn state(record: &Record) -> Result<State> {
    Ok(open(&settings(&record.target)?).state(record)?)
}

/// How a launch stands.
pub(super) fn status(record: &Record, output: &Output) -> Result {
    let stands = Stands::of(record, Some(Ok(state(record)?)));
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
    // A machine that was given back is not asked: it may be gone, or another's.
    let state = |record: &Record| record.released.is_none().then(|| state(record));
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

/// A run, and what came of it.
#[derive(Serialize)]
pub(super) struct Brought {
    run: PathBuf,
    #[serde(flatten)]
    pub fetched: Fetched,
    /// Why nothing could come.
    pub problem: Option<String>,
}

/// What the runs were when all of them had come, by their numbers: one that is the same still is not asked
/// for.
pub(super) type Seen = BTreeMap<usize, u64>;

/// Brings what is new of the runs; without `seen` every one is asked for.
///
/// # Errors
/// Where the target cannot be reached; what has come stays.
pub(super) fn bring(
    target: &dyn Target,
    record: &Record,
    state: &State,
    mut seen: Option<&mut Seen>,
) -> Result<Vec<Brought>> {
    let mut brought = Vec::new();
    for (number, run) in (1..).zip(&record.runs) {
        let number: usize = number;
        let one = state.repetitions.get(number - 1);
        // Every file of it was compared when it came.
        if record.done.contains(&number) && run.exists() {
            brought.push(Brought { run: run.clone(), fetched: Fetched::default(), problem: None });
            continue;
        }
        // Its machine is not there to give it.
        if let Some(one) = one.filter(|one| one.status == Status::Unknown && !record.hosts.is_empty()) {
            let (run, problem) = (run.clone(), Some(one.last.clone()));
            brought.push(Brought { run, fetched: Fetched::default(), problem });
            continue;
        }
        let stamp = one.and_then(|one| one.stamp);
        let before = seen.as_ref().map(|seen| seen.get(&number).copied());
        let is_seen = match (one.map(|one| one.status), before) {
            // That it is done has to be found out.
            (Some(Status::Completed) | None, _) | (_, None) => false,
            (Some(Status::Waiting), Some(before)) => stamp == before,
            (Some(_), Some(before)) => stamp.is_some() && stamp == before,
        };
        if is_seen {
            brought.push(Brought { run: run.clone(), fetched: Fetched::default(), problem: None });
            continue;
        }
        let mut fetched = target.fetch(record, number, run)?;
        // What changed while it came is asked for once more.
        if fetched.changing > 0 {
            let again = target.fetch(record, number, run)?;
            fetched.files += again.files;
            fetched.bytes += again.bytes;
            fetched.changing = again.changing;
        }
        // As it was before it was fetched: what came meanwhile has another stamp.
        if let (Some(stamp), Some(seen)) = (stamp.filter(|_| fetched.changing == 0), &mut seen) {
            seen.insert(number, stamp);
        }
        let is_completed = one.is_some_and(|one| one.status == Status::Completed);
        if fetched.changing == 0 && is_completed && is_whole(run) {
            done(record, number)?;
        }
        brought.push(Brought { run: run.clone(), fetched, problem: None });
    }
    Ok(brought)
}

/// Whether what is here of a run says that it was trained to its end. A target that says so of a run that it
/// does not give has not brought it.
fn is_whole(run: &Path) -> bool {
    Summary::read(&run.join(SUMMARY)).is_ok_and(|summary| summary.status == Trained::Completed)
}

/// Keeps that everything of a repetition is here.
fn done(record: &Record, repetition: usize) -> Result {
    let runs = Path::new(RUNS);
    let lock = record.lock(runs)?;
    // Others may have changed the record meanwhile.
    let mut record = Record::find(runs, Some(&record.id))?;
    if !record.done.contains(&repetition) {
        record.done.push(repetition);
        record.write(runs)?;
    }
    drop(lock);
    Ok(())
}

fn show(brought: &[Brought], output: &Output) -> Result {
    output.result(brought, || {
        let line = |one: &Brought| {
            if let Some(problem) = &one.problem {
                return format!("{}: {problem}\n", one.run.display());
            }
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

/// Brings the runs.
pub(super) fn fetch(record: &Record, output: &Output) -> Result {
    let target = open(&settings(&record.target)?);
    let state = target.state(record)?;
    let brought = bring(target.as_ref(), record, &state, None)?;
    if brought.iter().all(|one| one.fetched.changing == 0) && !state.alive {
        target.release();
    }
    show(&brought, output)
}

/// Brings the runs as they grow, and goes on with what nobody trains though nobody stopped it, until all is
/// done or stopped.
pub(super) fn follow(record: &Record, output: &Output) -> Result {
    let settings = settings(&record.target)?;
    let target = open(&settings);
    let mut record = record.clone();
    let mut all: Vec<Brought> = Vec::new();
    let mut lost: Option<Instant> = None;
    // How often something was started again since anything got further.
    let (mut again, mut further) = (0, None);
    let mut seen = Seen::new();
    let state = loop {
        let spent = processor_s();
        let pass = (|| -> Result<_> {
            let state = target.state(&record)?;
            // What ended before this is whole in what comes behind it.
            let brought = bring(target.as_ref(), &record, &state, Some(&mut seen))?;
            let lock = record.lock(Path::new(RUNS))?;
            record = Record::find(Path::new(RUNS), Some(&record.id))?;
            let job = record.job(settings.notify.clone());
            let done = target.tend(&mut record, &job, false, &mut |record| record.write(Path::new(RUNS)))?;
            drop(lock);
            Ok((state, brought, done))
        })();
        match pass {
            Ok((state, brought, done)) => {
                if lost.take().is_some() {
                    output.message(&format!("{}: back again", record.target));
                }
                done.iter().for_each(|line| output.message(line));
                let epochs: u64 = state.repetitions.iter().filter_map(|one| one.epochs).sum();
                if further.replace(epochs) != Some(epochs) {
                    again = 0;
                }
                again += done.len();
                if again > MOST_AGAIN {
                    return Err(Failure::failed(format!(
                        "{}: it was started {MOST_AGAIN} times, and no epoch was done",
                        record.id
                    ))
                    .hint(format!("`stratus launch logs {}` shows what it says", record.id)));
                }
                let is_whole = brought.iter().all(|one| one.fetched.changing == 0);
                add(&mut all, brought);
                if !state.alive && is_whole && done.is_empty() {
                    break state;
                }
            }
            Err(failure) => {
                let since = *lost.get_or_insert_with(|| {
                    output.message(&format!("{}; trying again", failure.error));
                    Instant::now()
                });
                if since.elapsed() > PATIENCE {
                    return Err(failure);
                }
            }
        }
        let spent = spent.zip(processor_s()).map_or(0.0, |(before, now)| now - before);
        std::thread::sleep(if lost.is_some() { LOOK } else { pause(spent) });
    };
    target.release();
    let is_done = state.repetitions.iter().all(|one| one.status == Status::Completed);
    if is_done && settings.release.is_some() {
        release(&record, false, output)?;
    }
    show(&all, output)
}

/// How long nothing is asked after a pass that took so many seconds of a processor.
fn pause(spent_s: f64) -> Duration {
    Duration::try_from_secs_f64(spent_s / SHARE).unwrap_or(SELDOMEST).clamp(BETWEEN, SELDOMEST)
}

/// Seconds of a processor that this process and those that it waited for have taken; none where the system
/// does not say it.
fn processor_s() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the name, which may hold anything: user and system time, and those of children, in hundredths.
    let (_, rest) = stat.rsplit_once(')')?;
    let times = rest.split_whitespace().skip(11).take(4).map(str::parse::<u64>);
    Some(times.sum::<std::result::Result<u64, _>>().ok()? as f64 / 100.0)
}

fn add(all: &mut Vec<Brought>, brought: Vec<Brought>) {
    for one in brought {
        match all.iter_mut().find(|other| other.run == one.run) {
            Some(other) => {
                other.fetched.files += one.fetched.files;
                other.fetched.bytes += one.fetched.bytes;
                other.fetched.changing = one.fetched.changing;
                other.problem = one.problem;
            }
            None => all.push(one),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::{BETWEEN, SELDOMEST, pause, processor_s};
    use std::time::Duration;

    #[test]
    fn what_takes_long_is_done_seldom() {
        assert_eq!(pause(0.0), BETWEEN);
        assert_eq!(pause(0.5), Duration::from_secs(50));
        assert_eq!([pause(1e9), pause(f64::INFINITY)], [SELDOMEST; 2]);
        #[cfg(target_os = "linux")]
        assert!(processor_s().is_some());
    }
}
