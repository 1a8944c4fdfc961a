//! The status and the logs of launches; fetching while they train.

use super::fetch::{FetchedRun, FetchedStamps, fetch_runs};
use super::release::release;
use super::search;
use super::{find_target, now, open_target};
use crate::errors::{FAILED, Failure, INTERRUPTED, Result};
use crate::output::{Output, table};
use crate::progress::clock;
use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use stratus_base::text::{bytes, counted};
use stratus_launch::{LaunchEventKind, LaunchRecord, LaunchState, RepetitionStatus, Target};
use stratus_run::layout::RUNS;

/// The time between two requests for a log, and the minimum between two fetches of a search.
const LOG_POLL_INTERVAL: Duration = Duration::from_secs(2);
/// The minimum time between two fetches.
const MIN_FETCH_INTERVAL: Duration = Duration::from_secs(10);
/// The maximum fraction of a CPU to spend on fetching; the interval is lengthened to stay below it.
const MAX_CPU_SHARE: f64 = 0.01;
/// The same for a search, whose machines wait for the next pass, and are paid for.
const MAX_SEARCH_CPU_SHARE: f64 = 0.1;
/// The maximum time between two fetches.
const MAX_FETCH_INTERVAL: Duration = Duration::from_secs(300);
/// The time after which fetching from an unreachable target is given up.
const UNREACHABLE_TIMEOUT: Duration = Duration::from_secs(900);
/// The maximum number of restarts without a finished epoch.
const MAX_RESTARTS: usize = 10;

/// The status of a launch.
#[derive(Serialize)]
struct LaunchStatus<'a> {
    id: &'a str,
    target: &'a str,
    launched: u64,
    age_s: u64,
    runs: &'a [PathBuf],
    /// The names of a sweep's runs by their values.
    #[serde(skip_serializing_if = "are_unnamed")]
    names: Vec<Option<String>>,
    /// The forecast time of a repetition in seconds.
    forecast_s: Option<f64>,
    /// The end of the lease, in seconds since 1970.
    until: Option<u64>,
    released: Option<u64>,
    /// The state of the repetitions; `None` if the target was not or cannot be reached.
    state: Option<LaunchState>,
    problem: Option<String>,
}

impl<'a> LaunchStatus<'a> {
    fn of(record: &'a LaunchRecord, state: Option<Result<LaunchState>>) -> Self {
        let (state, problem) = match state {
            Some(Ok(state)) => (Some(state), None),
            Some(Err(failure)) => (None, Some(failure.error.to_string())),
            None => (None, None),
        };
        let age_s = now().saturating_sub(record.launched);
        let LaunchRecord { id, target, launched, runs, expected_s, lease, released, .. } = record;
        Self {
            id,
            target,
            launched: *launched,
            age_s,
            runs,
            names: stratus_sweep::run_names(runs),
            forecast_s: *expected_s,
            until: lease.map(|lease| lease.ends_at),
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
            .zip(self.runs.iter().zip(&self.names))
            .map(|(number, (run, name)): (usize, _)| {
                let repetition = self.state.as_ref().and_then(|state| state.repetitions.get(number - 1));
                let (status, epochs, elapsed, last) = match repetition {
                    Some(one) => {
                        // The queue knows why a repetition does not run.
                        let waits =
                            matches!(one.status, RepetitionStatus::Waiting | RepetitionStatus::Interrupted);
                        let queue = one.queue.clone().filter(|_| waits);
                        let epochs = one.epochs.map_or_else(dash, |epochs| epochs.to_string());
                        let elapsed = one.elapsed_s.map_or_else(dash, time);
                        (one.status.name(), epochs, elapsed, queue.unwrap_or_else(|| one.last_line.clone()))
                    }
                    None if self.released.is_some() => ("released", dash(), dash(), String::new()),
                    None => ("unknown", dash(), dash(), self.problem.clone().unwrap_or_default()),
                };
                let name = name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
                let (number, run) = (number.to_string(), format!("{}{name}", run.display()));
                let (id, target, status) = (self.id.to_owned(), self.target.to_owned(), status.to_owned());
                let age = time(self.age_s);
                vec![id, target, number, status, epochs, age, elapsed, forecast.clone(), run, last]
            })
            .collect()
    }
}

/// Returns whether no run belongs to a sweep.
fn are_unnamed(names: &[Option<String>]) -> bool {
    names.iter().all(Option::is_none)
}

fn heading() -> Vec<String> {
    ["launch", "target", "rep.", "status", "epochs", "age", "elapsed", "forecast", "run", "last line"]
        .map(str::to_owned)
        .to_vec()
}

/// Asks the target for the state of a launch, and saves the answer beside the record, for programs that do
/// not contact the target, such as `stratus ui`. If it cannot be saved, there is a warning. A failure of this
/// machine says nothing about the target, and is not saved.
fn query_state(target: &dyn Target, record: &LaunchRecord, output: &Output) -> Result<LaunchState> {
    let answer = target.state(record);
    if answer.as_ref().err().is_none_or(stratus_launch::Error::is_of_target) {
        let saved = answer.as_ref().map_err(ToString::to_string);
        if let Err(error) = record.save_state(Path::new(RUNS), saved) {
            output.warning(&format!("the state of {} is not saved: {error}", record.id));
        }
    }
    Ok(answer?)
}

/// Opens the target of a launch, and asks it for the state.
fn query_target(record: &LaunchRecord, output: &Output) -> Result<LaunchState> {
    query_state(open_target(&find_target(&record.target)?).as_ref(), record, output)
}

/// Adds events to those of the launch; if they cannot be written, there is a warning.
pub(super) fn add_events<T: AsRef<str>>(
    record: &LaunchRecord,
    kind: LaunchEventKind,
    texts: &[T],
    output: &Output,
) {
    if let Err(error) = record.add_events(Path::new(RUNS), kind, texts) {
        output.warning(&format!("the events of {} are not written: {error}", record.id));
    }
}

/// Prints the status of a launch.
pub(super) fn status(record: &LaunchRecord, output: &Output) -> Result {
    let status = LaunchStatus::of(record, Some(Ok(query_target(record, output)?)));
    output.print_wrapped(&status, || {
        let rows = [vec![heading()], status.rows()].concat();
        let mut text = table(&rows);
        if let Some(state) = status.state.as_ref().filter(|state| state.is_running) {
            let beat = state.heartbeat_s.map_or("–".to_owned(), |age| format!("{age} s ago"));
            text.push_str(&format!("\nrunning on {}, heartbeat {beat}\n", state.owner));
        }
        text
    })
}

/// Prints the status of all launches.
pub(super) fn list(records: &[LaunchRecord], output: &Output) -> Result {
    // A released machine is not queried: it may be gone, or used by others.
    let state = |record: &LaunchRecord| record.released.is_none().then(|| query_target(record, output));
    let all: Vec<LaunchStatus<'_>> =
        records.iter().map(|record| LaunchStatus::of(record, state(record))).collect();
    output.print_wrapped(&all, || {
        if all.is_empty() {
            return "no launches\n".to_owned();
        }
        let mut rows = vec![heading()];
        rows.extend(all.iter().flat_map(LaunchStatus::rows));
        table(&rows)
    })
}

/// Prints the log of a repetition.
pub(super) fn logs(record: &LaunchRecord, repetition: Option<usize>, follow: bool) -> Result {
    let target = open_target(&find_target(&record.target)?);
    if let Some(number) = repetition.filter(|number| !(1..=record.runs.len()).contains(number)) {
        return Err(Failure::usage(format!(
            "{} has {}, not {number}",
            record.id,
            counted(record.runs.len() as u64, "repetition")
        )));
    }
    let mut out = io::stdout().lock();
    let (mut current, mut offset) = (0, 0);
    loop {
        let state = target.state(record)?;
        let trained = state.repetitions.iter().rfind(|one| one.status != RepetitionStatus::Waiting);
        let now = repetition.or(trained.map(|one| one.repetition)).unwrap_or(1);
        if current != 0 && current != now {
            // The rest of the log of the previous repetition.
            target.logs(record, current, offset, &mut out)?;
            offset = 0;
        }
        current = now;
        offset = target.logs(record, current, offset, &mut out)?;
        // A closed pipe is not an error.
        if out.flush().is_err() || !follow || !state.is_running {
            return Ok(());
        }
        std::thread::sleep(LOG_POLL_INTERVAL);
    }
}

fn print_fetched(fetched_runs: &[FetchedRun], output: &Output) -> Result {
    output.print_wrapped(fetched_runs, || {
        let line = |one: &FetchedRun| {
            if let Some(problem) = &one.problem {
                return format!("{}: {problem}\n", one.run.display());
            }
            let changing = match one.fetched.changing {
                0 => String::new(),
                count => {
                    format!("; {} changed during the fetch: fetch again", counted(count as u64, "file"))
                }
            };
            let (files, size) = (counted(one.fetched.files as u64, "file"), bytes(one.fetched.bytes));
            format!("{}: {size} in {files}{changing}\n", one.run.display())
        };
        fetched_runs.iter().map(line).collect()
    })
}

/// Fetches the runs once.
pub(super) fn fetch(record: &LaunchRecord, output: &Output) -> Result {
    let settings = find_target(&record.target)?;
    let target = open_target(&settings);
    let state = query_state(target.as_ref(), record, output)?;
    let machine = settings.kind.describe();
    let fetched_runs = fetch_runs(target.as_ref(), record, &machine, &state, None)?;
    if record.search.is_some() {
        let lock = record.lock(Path::new(RUNS))?;
        let mut record = LaunchRecord::find(Path::new(RUNS), Some(&record.id))?;
        search::advance(&mut record, target.as_ref(), Some(&state), false)?;
        drop(lock);
    }
    if fetched_runs.iter().all(|one| one.fetched.changing == 0) && !state.is_running {
        target.release();
    }
    print_fetched(&fetched_runs, output)
}

/// Fetches runs as they grow, and reschedules lost repetitions, until all are completed or stopped.
pub(super) fn follow(record: &LaunchRecord, output: &Output) -> Result {
    let settings = find_target(&record.target)?;
    let target = open_target(&settings);
    let machine = settings.kind.describe();
    let mut record = record.clone();
    let mut all: Vec<FetchedRun> = Vec::new();
    let mut failing: Option<FailingPasses> = None;
    // Restarts since the last finished epoch.
    let (mut restarts, mut last_epochs) = (0, None);
    let mut seen = FetchedStamps::new();
    let state = loop {
        let spent = cpu_seconds();
        let pass = (|| -> Result<_> {
            let state = query_state(target.as_ref(), &record, output)?;
            // The state is queried first, so that a run that has ended by then is fetched completely.
            let fetched_runs = fetch_runs(target.as_ref(), &record, &machine, &state, Some(&mut seen))?;
            let lock = record.lock(Path::new(RUNS))?;
            record = LaunchRecord::find(Path::new(RUNS), Some(&record.id))?;
            let advance = search::advance(&mut record, target.as_ref(), Some(&state), !state.stopped)?;
            let job = search::job_in_progress(&record, settings.notify.clone())?;
            let done =
                target.reschedule(&mut record, &job, false, &mut |record| record.write(Path::new(RUNS)))?;
            if !state.stopped {
                search::start_unknown(&record, target.as_ref(), &state, &job)?;
            }
            drop(lock);
            Ok((state, fetched_runs, advance, done))
        })();
        match pass {
            Ok((state, fetched_runs, advance, done)) => {
                if let Some(ended) = failing.take() {
                    ended.report_end(&record, output);
                }
                add_events(&record, LaunchEventKind::Step, &advance.messages, output);
                add_events(&record, LaunchEventKind::Rescheduled, &done, output);
                advance.messages.iter().chain(&done).for_each(|line| output.message(line));
                let epochs: u64 = state.repetitions.iter().filter_map(|one| one.epochs).sum();
                if last_epochs.replace(epochs) != Some(epochs) || !advance.started.is_empty() {
                    restarts = 0;
                }
                restarts += done.len();
                if restarts > MAX_RESTARTS {
                    return Err(Failure::failed(format!(
                        "{}: restarted {MAX_RESTARTS} times without finishing an epoch",
                        record.id
                    ))
                    .with_hint(format!("`stratus launch logs {}` shows the log", record.id)));
                }
                let is_whole = fetched_runs.iter().all(|one| one.fetched.changing == 0);
                merge(&mut all, fetched_runs);
                if !state.is_running && is_whole && done.is_empty() && advance.started.is_empty() {
                    break state;
                }
            }
            Err(failure) => {
                let now = FailingPasses::after(failing.take(), &failure, &record, output);
                if now.since.elapsed() > UNREACHABLE_TIMEOUT {
                    return Err(failure);
                }
                failing = Some(now);
            }
        }
        let spent = spent.zip(cpu_seconds()).map_or(0.0, |(before, now)| now - before);
        std::thread::sleep(if failing.is_some() {
            LOG_POLL_INTERVAL
        } else {
            fetch_interval(spent, record.search.is_some())
        });
    };
    target.release();
    let is_done = state.repetitions.iter().all(|one| one.status == RepetitionStatus::Completed);
    if is_done && !record.has_open_rows()? && settings.release.is_some() {
        release(&record, false, output)?;
    }
    print_fetched(&all, output)?;
    check_finished(&record, &state, output)?;
    search::check_over(&record, output)
}

/// Passes of fetching that have failed, one after the other.
struct FailingPasses {
    /// The time of the first one.
    since: Instant,
    /// The kind of the last failure: of the target, or of this machine.
    kind: LaunchEventKind,
}

impl FailingPasses {
    /// The passes after one more failure, which is reported unless the failures `before` were of its kind.
    fn after(before: Option<Self>, failure: &Failure, record: &LaunchRecord, output: &Output) -> Self {
        let kind = failure_kind(failure);
        if before.as_ref().is_none_or(|before| before.kind != kind) {
            output.message(&format!("{}; retrying", failure.error));
            add_events(record, kind, &[failure.error.to_string()], output);
        }
        Self { since: before.map_or_else(Instant::now, |before| before.since), kind }
    }

    /// Reports that a pass succeeded again.
    fn report_end(&self, record: &LaunchRecord, output: &Output) {
        let (text, kind) = match self.kind {
            LaunchEventKind::Unreachable => ("reachable again", LaunchEventKind::Reachable),
            _ => ("fetched again", LaunchEventKind::Recovered),
        };
        let text = format!("{}: {text}", record.target);
        output.message(&text);
        add_events(record, kind, &[text], output);
    }
}

/// The event of a failed pass.
fn failure_kind(failure: &Failure) -> LaunchEventKind {
    let error = failure.error.downcast_ref::<stratus_launch::Error>();
    match error.is_some_and(stratus_launch::Error::is_of_target) {
        true => LaunchEventKind::Unreachable,
        false => LaunchEventKind::LocalFailure,
    }
}

/// Reports the repetitions that ended without being completed, with their last messages.
///
/// # Errors
/// If there is one.
fn check_finished(record: &LaunchRecord, state: &LaunchState, output: &Output) -> Result {
    let with = |status: RepetitionStatus| state.repetitions.iter().filter(move |one| one.status == status);
    let failed = with(RepetitionStatus::Failed).count();
    let interrupted = with(RepetitionStatus::Interrupted).count();
    for one in with(RepetitionStatus::Failed).chain(with(RepetitionStatus::Interrupted)) {
        let run =
            record.runs.get(one.repetition - 1).map_or(record.id.clone(), |run| run.display().to_string());
        let last = if one.last_line.is_empty() { String::new() } else { format!(": {}", one.last_line) };
        output.message(&format!("{run}: {}{last}", one.status.name()));
    }
    let (code, count, what) = match (failed, interrupted) {
        (0, 0) => return Ok(()),
        (0, count) => (INTERRUPTED, count, "interrupted"),
        (count, _) => (FAILED, count, "failed"),
    };
    Err(Failure {
        code,
        error: format!(
            "{}: {count} of {} {what}",
            record.id,
            counted(record.runs.len() as u64, "repetition")
        )
        .into(),
        hint: Some(format!("`stratus launch resume {}` resumes what is unfinished", record.id)),
    })
}

/// The time to wait after a pass that took `spent_s` seconds of CPU time. In a search, a free machine waits
/// for the next pass.
fn fetch_interval(spent_s: f64, is_search: bool) -> Duration {
    let (min, share) = match is_search {
        true => (LOG_POLL_INTERVAL, MAX_SEARCH_CPU_SHARE),
        false => (MIN_FETCH_INTERVAL, MAX_CPU_SHARE),
    };
    Duration::try_from_secs_f64(spent_s / share).unwrap_or(MAX_FETCH_INTERVAL).clamp(min, MAX_FETCH_INTERVAL)
}

/// The CPU time of this process and its finished children in seconds; `None` if unknown.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name may contain anything. Later fields are the user and system times of the process and of its
    // children, in 1/100 s.
    let (_, rest) = stat.rsplit_once(')')?;
    let times = rest.split_whitespace().skip(11).take(4).map(str::parse::<u64>);
    Some(times.sum::<std::result::Result<u64, _>>().ok()? as f64 / 100.0)
}

fn merge(all: &mut Vec<FetchedRun>, fetched_runs: Vec<FetchedRun>) {
    for one in fetched_runs {
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
pub(super) fn stop(record: &LaunchRecord, output: &Output) -> Result {
    let is_stopping = open_target(&find_target(&record.target)?).stop(record)?;
    if is_stopping {
        add_events(record, LaunchEventKind::Stopped, &["stopped on request, with a checkpoint"], output);
    }
    output.message(&match is_stopping {
        true => format!("stopping {0} with a checkpoint; resume with `stratus launch resume {0}`", record.id),
        false => format!("{}: nothing is running", record.id),
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{
        Failure, LOG_POLL_INTERVAL, LaunchEventKind, MAX_FETCH_INTERVAL, MIN_FETCH_INTERVAL, cpu_seconds,
        failure_kind, fetch_interval,
    };
    use std::time::Duration;
    use stratus_launch::Error;

    #[test]
    fn a_failure_of_this_machine_is_not_one_of_the_target() {
        let (problem, hint) = ("no route to host".to_owned(), String::new());
        let target = Error::Target { problem: problem.clone(), hint: hint.clone() };
        assert_eq!(failure_kind(&target.into()), LaunchEventKind::Unreachable);
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        let file = Error::File { what: "write", path: "runs/1/log.txt".into(), source: full };
        for failure in [
            Error::Client { problem: problem.clone(), hint: hint.clone() }.into(),
            Error::Usage { problem: problem.clone(), hint }.into(),
            file.into(),
            Failure::failed(problem),
        ] {
            assert_eq!(failure_kind(&failure), LaunchEventKind::LocalFailure, "{failure:?}");
        }
    }

    #[test]
    fn fetch_interval_grows_with_cpu_time() {
        assert_eq!(fetch_interval(0.0, false), MIN_FETCH_INTERVAL);
        assert_eq!(fetch_interval(0.0, true), LOG_POLL_INTERVAL);
        assert_eq!(fetch_interval(0.5, false), Duration::from_secs(50));
        assert_eq!(fetch_interval(0.5, true), Duration::from_secs(5));
        let long = [fetch_interval(1e9, false), fetch_interval(f64::INFINITY, true)];
        assert_eq!(long, [MAX_FETCH_INTERVAL; 2]);
        #[cfg(target_os = "linux")]
        assert!(cpu_seconds().is_some());
    }
}
