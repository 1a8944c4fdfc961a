//! The launches in the folders: what `stratus launch` keeps of them on this machine. No target is ever asked.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use stratus_launch::{
    LaunchEvent, LaunchRecord, LaunchState, RepetitionState, RepetitionStatus, SavedState, read_events,
};
use stratus_run::RunDir;
use stratus_run::remote::RemoteRun;

use crate::index::{Entry, Index, ItemId, RunFigures, ScannedItem, price_in, stamp};

/// The files of a launch.
#[derive(Debug)]
struct LaunchFiles {
    /// The record, or the reason why it cannot be read.
    record: Result<Box<LaunchRecord>, String>,
    saved: SavedState,
    events: Vec<LaunchEvent>,
    /// Files beside the record that cannot be read.
    problems: Vec<String>,
}

impl LaunchFiles {
    fn read(item: &ScannedItem) -> Self {
        let mut problems = Vec::new();
        let record = match &item.refused {
            Some(reason) => Err(reason.clone()),
            None => LaunchRecord::read(item.path()).map(Box::new).map_err(|error| error.to_string()),
        };
        let (mut saved, mut events) = (SavedState::default(), Vec::new());
        if record.is_ok() {
            match SavedState::read(item.path()) {
                Ok(found) => saved = found.unwrap_or_default(),
                Err(error) => problems.push(error.to_string()),
            }
            match read_events(item.path()) {
                Ok(found) => events = found,
                Err(error) => problems.push(error.to_string()),
            }
        }
        Self { record, saved, events, problems }
    }
}

/// The files of the launches that pages have asked for, read again when they change.
#[derive(Debug, Default)]
pub struct Launches {
    kept: Mutex<HashMap<ItemId, (ScannedItem, Arc<LaunchFiles>)>>,
}

impl Launches {
    /// A launch as its files are now. What did not change is not read again.
    pub fn read(&self, index: &Index, item: &ScannedItem) -> ReadLaunch {
        ReadLaunch::new(index, item, self.files(index, item))
    }

    /// The files of a launch. Launches that are no longer in the folders are forgotten.
    fn files(&self, index: &Index, item: &ScannedItem) -> Arc<LaunchFiles> {
        let lock = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, files)) = lock().get(item.id())
            && of == item
        {
            return Arc::clone(files);
        }
        // Other requests do not wait for this one's files.
        let files = Arc::new(LaunchFiles::read(item));
        let items = index.items().launches;
        let mut kept = lock();
        kept.retain(|id, _| items.iter().any(|item| item.id() == id));
        kept.insert(item.id().clone(), (item.clone(), Arc::clone(&files)));
        files
    }
}

/// A launch that was read.
#[derive(Debug)]
pub struct ReadLaunch {
    files: Arc<LaunchFiles>,
    /// The local copies of the runs that are in the folders.
    runs: Vec<Option<Entry>>,
    /// The sweep of the runs, if it is in the folders.
    sweep: Option<ItemId>,
}

impl ReadLaunch {
    fn new(index: &Index, item: &ScannedItem, files: Arc<LaunchFiles>) -> Self {
        let paths: Vec<PathBuf> = match &files.record {
            Ok(record) => record.runs.iter().map(|run| local_path(item.path(), run)).collect(),
            Err(_) => Vec::new(),
        };
        let runs = paths.iter().map(|path| index.entry(&ItemId::of(path))).collect();
        let sweeps = index.items().sweeps;
        let sweep = paths.first().and_then(|run| run.ancestors().nth(3)).map(ItemId::of);
        let sweep = sweep.filter(|id| sweeps.iter().any(|item| item.id() == id));
        Self { files, runs, sweep }
    }
}

/// The path of a run of a record, which is relative to the folder that has the folder of runs. It only makes
/// the id of a run: nothing is opened by this path.
fn local_path(record: &Path, run: &Path) -> PathBuf {
    // FOLDER/runs/.launches/ID.toml
    record.ancestors().nth(3).unwrap_or(record).join(run)
}

/// A launch in the list.
#[derive(Debug, Serialize)]
pub struct LaunchLine<'a> {
    id: &'a str,
    /// The name of the launch.
    name: &'a str,
    /// The reason why its record cannot be read.
    problem: Option<&'a str>,
    target: &'a str,
    /// The time of the launch, in seconds since 1970.
    launched: u64,
    /// The forecast time of a repetition, in seconds.
    expected_s: Option<f64>,
    /// The end of the lease, and the time at which the target was released, in seconds since 1970.
    lease_ends: Option<u64>,
    released: Option<u64>,
    repetitions: usize,
    /// The number of repetitions of each status.
    statuses: BTreeMap<&'static str, usize>,
    /// The time at which the target was last asked, the last time at which it answered, and the reason if it
    /// did not.
    asked: Option<u64>,
    answered: Option<u64>,
    unreachable: Option<&'a str>,
    /// The number of times that something was started again.
    retries: usize,
    /// The sum of the training times of the repetitions in seconds, without those of which neither the target
    /// nor a fetched run told a time.
    elapsed_s: f64,
    /// The price of these seconds, and the budget of all repetitions.
    spent: Option<f64>,
    budget: Option<f64>,
}

/// The page of a launch.
#[derive(Debug, Serialize)]
pub struct LaunchDocument<'a> {
    #[serde(flatten)]
    line: LaunchLine<'a>,
    version: String,
    problems: &'a [String],
    sweep: Option<&'a str>,
    /// True if a process was training when the target was last asked, and if a stop was requested.
    is_running: bool,
    is_stopping: bool,
    owner: &'a str,
    heartbeat_s: Option<u64>,
    hosts: Vec<HostFacts>,
    rows: Vec<RepetitionFacts<'a>>,
    events: Vec<EventFacts<'a>>,
}

/// A host of a target that has several.
#[derive(Debug, Default, Serialize)]
struct HostFacts {
    name: String,
    assigned: usize,
    running: Vec<usize>,
    completed: usize,
    waiting: usize,
    /// The reason why it could not be reached.
    lost: Option<String>,
}

/// A repetition.
#[derive(Debug, Serialize)]
struct RepetitionFacts<'a> {
    repetition: usize,
    status: &'static str,
    host: Option<&'a str>,
    /// Its state in the queue of the target.
    queue: Option<&'a str>,
    /// The epoch until which it is trained, or `end`, in a search.
    goal: Option<String>,
    /// The figures of the fetched run; epochs and time are those that the target reported last, if it did.
    #[serde(flatten)]
    figures: RunFigures<'a>,
    exit: Option<i32>,
    last_line: &'a str,
    /// The local run directory, and when it was fetched.
    path: String,
    fetched: Option<u64>,
    is_done: bool,
    spent: Option<f64>,
    budget: Option<f64>,
}

#[derive(Debug, Serialize)]
struct EventFacts<'a> {
    at: u64,
    kind: &'static str,
    text: &'a str,
}

impl<'a> LaunchLine<'a> {
    /// The line of a launch.
    pub fn new(item: &'a ScannedItem, read: &'a ReadLaunch, roots: &[PathBuf]) -> Self {
        Self::of(item, read, &repetitions(read, roots))
    }

    fn of(item: &'a ScannedItem, read: &'a ReadLaunch, rows: &[RepetitionFacts<'_>]) -> Self {
        let unknown = LaunchRecord::default();
        let record = read.files.record.as_deref().unwrap_or(&unknown);
        let mut statuses = BTreeMap::new();
        for row in rows {
            *statuses.entry(row.status).or_insert(0) += 1;
        }
        let sum = |value: &dyn Fn(&RepetitionFacts<'_>) -> Option<f64>| {
            let known: Vec<f64> = rows.iter().filter_map(value).collect();
            (!known.is_empty()).then(|| known.iter().sum())
        };
        let LaunchRecord { launched, expected_s, lease, released, .. } = *record;
        Self {
            id: item.id().as_str(),
            name: &item.found.label,
            problem: read.files.record.as_ref().err().map(String::as_str),
            target: read.files.record.as_ref().map_or("", |record| &record.target),
            launched,
            expected_s,
            lease_ends: lease.map(|lease| lease.ends_at),
            released,
            repetitions: rows.len(),
            statuses,
            asked: Some(read.files.saved.asked).filter(|asked| *asked > 0),
            answered: read.files.saved.answered,
            unreachable: read.files.saved.problem.as_deref(),
            retries: read.files.events.iter().filter(|event| event.kind.is_retry()).count(),
            elapsed_s: sum(&|row| row.figures.elapsed_s).unwrap_or(0.0),
            spent: sum(&|row| row.spent),
            budget: sum(&|row| row.budget),
        }
    }
}

impl<'a> LaunchDocument<'a> {
    /// The document of a launch.
    pub fn new(item: &'a ScannedItem, read: &'a ReadLaunch, version: String, roots: &[PathBuf]) -> Self {
        let rows = repetitions(read, roots);
        let none = LaunchState::default();
        let state = read.files.saved.state.as_ref();
        let (is_running, is_stopping, heartbeat_s) = {
            let state = state.unwrap_or(&none);
            (state.is_running, state.stopped, state.heartbeat_s)
        };
        Self {
            line: LaunchLine::of(item, read, &rows),
            version,
            problems: &read.files.problems,
            sweep: read.sweep.as_ref().map(ItemId::as_str),
            is_running,
            is_stopping,
            owner: state.map_or("", |state| &state.owner),
            heartbeat_s,
            hosts: hosts(read, &rows),
            events: read.files.events.iter().map(EventFacts::new).collect(),
            rows,
        }
    }
}

impl<'a> EventFacts<'a> {
    fn new(event: &'a LaunchEvent) -> Self {
        Self { at: event.at, kind: event.kind.name(), text: &event.text }
    }
}

/// The repetitions of a launch, as of the last answer of the target, or else by their local copies.
fn repetitions<'a>(read: &'a ReadLaunch, roots: &[PathBuf]) -> Vec<RepetitionFacts<'a>> {
    let Ok(record) = &read.files.record else { return Vec::new() };
    let goals = record.goals();
    let states = read.files.saved.state.as_ref().map_or(&[][..], |state| &state.repetitions);
    let row = |(number, (path, run)): (usize, (&PathBuf, &'a Option<Entry>))| {
        let state: Option<&'a RepetitionState> = states.get(number - 1);
        let remote = run.as_ref().and_then(|run| read_remote(&run.path, roots));
        let mut figures = RunFigures::of(run.as_ref().map(|run| run.row.as_ref()));
        figures.epochs = state.and_then(|state| state.epochs).or(figures.epochs);
        let seconds = state.and_then(|state| state.elapsed_s).map(|seconds| seconds as f64);
        figures.elapsed_s = seconds.or(figures.elapsed_s);
        let is_done = record.done.contains(&number);
        let known = state.map(|state| state.status.name());
        let fetched = remote.as_ref().map(|remote| remote.run_status().name());
        let status = if is_done && goals.is_empty() {
            RepetitionStatus::Completed.name()
        } else {
            known.or(fetched).unwrap_or(RepetitionStatus::Unknown.name())
        };
        let (per_hour, budget) = record.price_and_budget(number);
        let of_settings = || price_in(run.as_ref()?.settings.as_deref()?);
        let per_hour = per_hour.or_else(|| of_settings().map(|price| price.per_hour));
        let host = record.host_by_repetition.get(number - 1).map(String::as_str);
        RepetitionFacts {
            repetition: number,
            status,
            host: host.or(state.and_then(|state| state.owner.as_deref())),
            queue: state.and_then(|state| state.queue.as_deref()).filter(|queue| Some(*queue) != host),
            goal: goals.get(number - 1).cloned(),
            figures,
            exit: state.and_then(|state| state.exit),
            last_line: state.map_or("", |state| &state.last_line),
            path: path.display().to_string(),
            fetched: remote.map(|remote| remote.fetched),
            is_done,
            spent: per_hour.zip(figures.elapsed_s).map(|(price, seconds)| price * seconds / 3600.0),
            budget,
        }
    };
    (1..).zip(record.runs.iter().zip(&read.runs)).map(row).collect()
}

/// The file that tells where a run is trained, unless it is a link out of the folders, or damaged.
fn read_remote(run: &Path, roots: &[PathBuf]) -> Option<RemoteRun> {
    let path = RunDir::open(run).ok()?.remote();
    stamp(&path, roots).ok()??;
    RemoteRun::read(&path).ok()?
}

/// The hosts of a target that has several, with what they train.
fn hosts(read: &ReadLaunch, rows: &[RepetitionFacts<'_>]) -> Vec<HostFacts> {
    let Ok(record) = &read.files.record else { return Vec::new() };
    let mut hosts: Vec<HostFacts> = Vec::new();
    for name in record.prepared_hosts.iter().chain(&record.host_by_repetition) {
        if hosts.iter().all(|host| host.name != *name) {
            hosts.push(HostFacts { name: name.clone(), ..HostFacts::default() });
        }
    }
    for (row, name) in rows.iter().zip(&record.host_by_repetition) {
        let Some(host) = hosts.iter_mut().find(|host| host.name == *name) else { continue };
        host.assigned += 1;
        match row.status {
            "running" => host.running.push(row.repetition),
            "completed" => host.completed += 1,
            "waiting" => host.waiting += 1,
            // A repetition is unknown if its host did not answer.
            "unknown" if read.files.saved.state.is_some() => {
                host.lost.get_or_insert_with(|| row.last_line.to_owned());
            }
            _ => {}
        }
    }
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn files_are_read_again_only_if_they_changed() {
        let project = tempfile::tempdir().unwrap();
        let runs = project.path().join("runs");
        let record = LaunchRecord { id: "one".to_owned(), target: "a".to_owned(), ..LaunchRecord::default() };
        record.write(&runs).unwrap();
        let index = Index::new(vec![runs.clone()]);
        let launches = Launches::default();
        let read = || {
            index.scan();
            let item = index.items().launches[0].clone();
            launches.files(&index, &item)
        };
        let first = read();
        assert!(Arc::ptr_eq(&first, &read()), "nothing changed");
        // A file beside the record changes too.
        let path = index.items().launches[0].path().to_owned();
        fs::write(stratus_launch::state_file(&path), "{").unwrap();
        let second = read();
        assert!(!Arc::ptr_eq(&first, &second));
        assert_eq!((first.problems.len(), second.problems.len()), (0, 1));
        LaunchRecord { target: "another".to_owned(), ..record }.write(&runs).unwrap();
        assert_eq!(read().record.as_ref().unwrap().target, "another");
        // A launch that was removed is forgotten with the next that is read.
        LaunchRecord { id: "two".to_owned(), ..LaunchRecord::default() }.write(&runs).unwrap();
        fs::remove_file(&path).unwrap();
        read();
        assert_eq!(launches.kept.lock().unwrap().len(), 1);
    }
}
