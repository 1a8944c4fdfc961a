//! A job: a folder on a target, in which repetitions are trained one after the other. Its record stays here.

use crate::shell::clean;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use stratus_base::text::quoted;
use stratus_base::{did_you_mean, nearest, printable};

/// The script that trains the repetitions.
const SCRIPT: &str = concat!(include_str!("scripts/train.sh"), include_str!("scripts/launch.sh"));
/// The folder of records, beside the runs. Searches for runs pass over hidden folders.
const RECORDS: &str = ".launches";

/// What a target is given to train.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its name, the launch's.
    pub id: String,
    /// The program there.
    pub program: String,
    /// Environment variables of the training.
    pub environment: BTreeMap<String, String>,
    /// The experiment file of each repetition.
    pub experiments: Vec<String>,
    /// What a repetition takes.
    pub resources: Resources,
    /// Processes that train a repetition together; none: one.
    pub workers: Option<u64>,
    /// When training has to stop, in seconds since 1970 by the target's clock.
    pub stop: Option<u64>,
    /// A command that is told of what happens.
    pub notify: Option<String>,
    /// Of a list of machines: which has which repetition.
    pub hosts: Vec<String>,
    /// The repetitions that are trained; none: all.
    pub only: Option<Vec<usize>>,
}

/// How long a target may be used.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Lease {
    /// When it ends, in seconds since 1970 by the clock here.
    pub until: u64,
    /// When training has to stop, so that everything has come back by then, by the target's clock.
    pub stop: u64,
}

/// What a repetition takes, where it is known.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Resources {
    /// Seconds from its start to its end, with a margin.
    pub seconds: Option<u64>,
    /// Bytes of the machine's memory, with a margin.
    pub memory_bytes: Option<u64>,
    /// Processors.
    pub cpus: Option<u64>,
}

impl Job {
    /// The script that runs on a machine.
    #[must_use]
    pub fn script(&self) -> String {
        let all = (1..=self.experiments.len()).collect();
        let numbers = self.only.as_ref().unwrap_or(&all);
        let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        format!("#!/bin/sh\n{}repetitions='{}'\n{SCRIPT}", self.preamble(), numbers.join(" "))
    }

    /// What scripts that train begin with: the environment and the program.
    pub(crate) fn preamble(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.environment {
            text.push_str(&format!("export {name}={}\n", quoted(value)));
        }
        let (stop, notify) = (self.stop, self.notify.as_deref().unwrap_or_default());
        let stop = stop.map_or(String::new(), |stop| stop.to_string());
        let (program, launch) = (quoted(&self.program), quoted(&self.id));
        let workers = self.workers.map_or(String::new(), |workers| workers.to_string());
        text.push_str(&format!("program={program}\nlaunch={launch}\nworkers={workers}\n"));
        text.push_str(&format!("stop_at={stop}\nnotify={}\n", quoted(notify)));
        text
    }

    /// Its files on a machine: the script, and the experiment of each repetition.
    #[must_use]
    pub fn files(&self) -> Vec<(String, String)> {
        self.files_with("launch.sh", self.script())
    }

    /// The same with another script.
    pub(crate) fn files_with(&self, script: &str, text: String) -> Vec<(String, String)> {
        let mut files = vec![(script.to_owned(), text)];
        for (number, text) in (1..).zip(&self.experiments) {
            let number: usize = number;
            files.push((format!("{number}/experiment.toml"), text.clone()));
        }
        files
    }
}

/// What was launched where.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Record {
    /// The launch's name.
    pub id: String,
    /// The target's name.
    pub target: String,
    /// The target's folder.
    pub root: String,
    /// When it was launched, in seconds since 1970.
    pub launched: u64,
    /// The program there.
    pub program: String,
    /// Environment variables of the training.
    pub environment: BTreeMap<String, String>,
    /// Where each repetition's run arrives.
    pub runs: Vec<PathBuf>,
    /// The experiment file of each repetition, as it was sent.
    pub experiments: Vec<String>,
    /// What a repetition takes.
    #[serde(default)]
    pub resources: Resources,
    /// Processes that train a repetition together; none: one.
    #[serde(default)]
    pub workers: Option<u64>,
    /// How long the target may be used.
    #[serde(default)]
    pub lease: Option<Lease>,
    /// Bytes that come back of a run, at most.
    #[serde(default)]
    pub run_bytes: u64,
    /// Seconds that a repetition is expected to take.
    #[serde(default)]
    pub expected_s: Option<f64>,
    /// When the target was released, in seconds since 1970.
    #[serde(default)]
    pub released: Option<u64>,
    /// Repetitions that were trained to their end, and of which every file is here as it was there.
    #[serde(default)]
    pub done: Vec<usize>,
    /// Of a list of machines: which has which repetition.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Of a list of machines: those that have the program and the data.
    #[serde(default)]
    pub ready: Vec<String>,
}

impl Record {
    /// The job that starts it, and starts it again. `notify` is told of what happens.
    #[must_use]
    pub fn job(&self, notify: Option<String>) -> Job {
        let Self { id, program, environment, experiments, resources, workers, lease, hosts, .. } =
            self.clone();
        let stop = lease.map(|lease| lease.stop);
        Job { id, program, environment, experiments, resources, workers, stop, notify, hosts, only: None }
    }

    /// Waits until nobody else changes what is trained of this launch; until the file is dropped nobody does.
    ///
    /// # Errors
    /// Where the file cannot be made or locked.
    pub fn lock(&self, runs: &Path) -> Result<fs::File> {
        let path = runs.join(RECORDS).join(format!(".{}.lock", self.id));
        let file = fs::File::create(&path).map_err(Error::file("make", &path))?;
        file.lock().map_err(Error::file("lock", &path))?;
        Ok(file)
    }

    /// Keeps it beside the runs.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn write(&self, runs: &Path) -> Result<()> {
        let folder = runs.join(RECORDS);
        fs::create_dir_all(&folder).map_err(Error::file("make", &folder))?;
        let path = folder.join(format!("{}.toml", self.id));
        let text = toml::to_string(self)
            .map_err(|error| Error::usage(format!("the launch cannot be recorded: {error}"), ""))?;
        let temporary = folder.join(format!(".{}.tmp", self.id));
        fs::write(&temporary, text).map_err(Error::file("write", &temporary))?;
        fs::rename(&temporary, &path).map_err(Error::file("write", &path))
    }

    /// Every record beside the runs, the last launched last.
    ///
    /// # Errors
    /// Where one cannot be read.
    pub fn all(runs: &Path) -> Result<Vec<Self>> {
        let folder = runs.join(RECORDS);
        let Ok(entries) = fs::read_dir(&folder) else { return Ok(Vec::new()) };
        let mut records = Vec::new();
        for entry in entries {
            let path = entry.map_err(Error::file("read", &folder))?.path();
            let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            if hidden || path.extension().is_none_or(|ending| ending != "toml") {
                continue;
            }
            let text = fs::read_to_string(&path).map_err(Error::file("read", &path))?;
            let record: Self = toml::from_str(&text).map_err(|error| {
                let problem = format!("{} is no record of a launch: {}", path.display(), error.message());
                Error::usage(problem, "remove the file, if nobody needs what it launched")
            })?;
            if !is_name(&record.id) {
                return Err(Error::usage(format!("{}: `id` is no name", path.display()), ""));
            }
            records.push(record);
        }
        records.sort_by(|a, b| (a.launched, &a.id).cmp(&(b.launched, &b.id)));
        Ok(records)
    }

    /// The record of a name, of a run that it brings, or the last one.
    ///
    /// # Errors
    /// Where there is none.
    pub fn find(runs: &Path, id: Option<&str>) -> Result<Self> {
        let records = Self::all(runs)?;
        let Some(id) = id else {
            let none =
                || Error::usage("nothing was launched from here", "`stratus launch TARGET EXPERIMENT`");
            return records.last().cloned().ok_or_else(none);
        };
        let path = Path::new(id);
        let is_it = |record: &&Self| record.id == id || record.runs.iter().any(|run| run == path);
        if let Some(record) = records.iter().find(is_it) {
            return Ok(record.clone());
        }
        let near = did_you_mean(nearest(id, records.iter().map(|record| record.id.as_str())));
        Err(Error::usage(format!("no launch is named `{id}`{near}"), "`stratus launch list` names them"))
    }
}

/// Whether a text can name a launch: a folder there, a file here.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() < 200
        && !text.starts_with(['.', '-'])
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// How a repetition stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Not begun, or in a queue to be gone on with.
    Waiting,
    /// It is trained.
    Running,
    /// Trained to its end.
    Completed,
    /// Stopped, or whatever trained it is gone: it can be resumed.
    Interrupted,
    /// It failed.
    Failed,
    /// The machine that has it cannot be reached.
    Unknown,
}

impl Status {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

/// A repetition, as its target tells.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Repetition {
    /// Counted from 1.
    pub repetition: usize,
    /// How it stands.
    pub status: Status,
    /// The exit code of its training, once that ended.
    pub exit: Option<i32>,
    /// Epochs that are done.
    pub epochs: Option<u64>,
    /// How the target's queue has it, or what its accounts say became of it.
    pub queue: Option<String>,
    /// Who trains it, or trained it last, where repetitions are trained by themselves.
    pub owner: Option<String>,
    /// The age of that one's heart's last beat, in seconds by the target's clock.
    pub heartbeat_s: Option<u64>,
    /// Seconds that it was trained, without what ended by no signal.
    pub elapsed_s: Option<u64>,
    /// The last line that was said.
    pub last: String,
    /// A number that changes with the files of its run; none where it has none.
    #[serde(skip)]
    pub stamp: Option<u64>,
}

/// A launch, as its target tells.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct State {
    /// Whether something trains it.
    pub alive: bool,
    /// Whether it was asked to stop.
    pub stopped: bool,
    /// Who has it, or had it last: the machine, the process.
    pub owner: String,
    /// The age of its heart's last beat, in seconds by the target's clock.
    pub heartbeat_s: Option<u64>,
    /// Its repetitions.
    pub repetitions: Vec<Repetition>,
}

impl State {
    /// Of what the script of a machine says.
    pub(crate) fn parse(text: &str) -> Self {
        let (mut state, begun) = Self::facts(text);
        // Repetitions are trained in turn: the one without an end is the one that is trained.
        let mut free = state.alive;
        for (repetition, begun) in state.repetitions.iter_mut().zip(begun) {
            let trained = repetition.exit.is_none() && begun && std::mem::take(&mut free);
            repetition.status = repetition.stands(begun, trained);
        }
        state
    }

    /// Of a launch of which nothing was begun.
    pub(crate) fn waiting(repetitions: usize) -> Self {
        let waiting = (1..=repetitions).map(|number| Repetition::new(number, Status::Waiting));
        Self {
            alive: false,
            stopped: false,
            owner: String::new(),
            heartbeat_s: None,
            repetitions: waiting.collect(),
        }
    }

    /// What a target's script says, and which repetitions were begun. How they stand, it does not say yet.
    pub(crate) fn facts(text: &str) -> (Self, Vec<bool>) {
        let mut state = Self::waiting(0);
        let mut begun = Vec::new();
        for line in text.lines() {
            let Some((key, value)) = line.split_once('=') else { continue };
            let last = state.repetitions.last_mut();
            match (key, last) {
                ("alive", _) => state.alive = value == "1",
                ("stopped", _) => state.stopped = value == "1",
                ("owner", Some(last)) => last.owner = Some(owner(value)).filter(|owner| !owner.is_empty()),
                ("owner", None) => state.owner = owner(value),
                ("heartbeat_s", Some(last)) => last.heartbeat_s = value.parse().ok(),
                ("heartbeat_s", None) => state.heartbeat_s = value.parse().ok(),
                ("repetition", _) => {
                    let number = state.repetitions.len() + 1;
                    state.repetitions.push(Repetition::new(number, Status::Waiting));
                    begun.push(false);
                }
                ("exit", Some(last)) => last.exit = value.trim().parse().ok(),
                ("elapsed_s", Some(last)) => last.elapsed_s = value.trim().parse().ok(),
                ("stamp", Some(last)) => last.stamp = value.trim().parse().ok(),
                ("epochs", Some(last)) => last.epochs = value.trim().parse().ok(),
                ("last", Some(last)) => last.last = printable(clean(value).trim()),
                ("begun", Some(_)) => begun.iter_mut().last().into_iter().for_each(|begun| *begun = true),
                _ => {}
            }
        }
        (state, begun)
    }
}

impl Repetition {
    /// One of which nothing else is known.
    pub(crate) fn new(repetition: usize, status: Status) -> Self {
        Self {
            repetition,
            status,
            exit: None,
            epochs: None,
            queue: None,
            owner: None,
            heartbeat_s: None,
            elapsed_s: None,
            last: String::new(),
            stamp: None,
        }
    }

    /// Whether it is to be gone on with: what was stopped, or failed, only where that is asked for.
    pub(crate) fn is_open(&self, is_stopped: bool, again: bool) -> bool {
        match self.status {
            Status::Completed | Status::Running | Status::Unknown => false,
            Status::Failed => again,
            Status::Interrupted => again || self.exit != Some(75) && !is_stopped,
            Status::Waiting => again || !is_stopped,
        }
    }

    /// How it stands, by whether it was begun and is being trained.
    pub(crate) fn stands(&self, begun: bool, trained: bool) -> Status {
        match self.exit {
            Some(0) => Status::Completed,
            // By its own checkpoint, or by a signal that left none.
            Some(75 | 129..) => Status::Interrupted,
            Some(_) => Status::Failed,
            None if trained => Status::Running,
            None if begun => Status::Interrupted,
            None => Status::Waiting,
        }
    }
}

/// Who has a job, as its file says: a token, the machine, the process, since when.
pub(crate) fn owner(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        [_, host, process, ..] => printable(&format!("{host}, process {process}")),
        _ => String::new(),
    }
}

#[cfg(test)]
impl Record {
    /// One of no repetition.
    pub(crate) fn of_a_test(id: &str, target: &str) -> Self {
        Self {
            id: id.to_owned(),
            target: target.to_owned(),
            root: String::new(),
            launched: 0,
            program: String::new(),
            environment: BTreeMap::new(),
            runs: Vec::new(),
            experiments: Vec::new(),
            resources: Resources::default(),
            workers: None,
            lease: None,
            run_bytes: 0,
            expected_s: None,
            released: None,
            done: Vec::new(),
            hosts: Vec::new(),
            ready: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Job, Lease, Record, Resources, State, Status};
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    #[test]
    fn a_state_is_what_the_script_says_and_nothing_else_of_it() {
        let text = "alive=1\nowner=t box 12 99\nheartbeat_s=3\nrepetition=1\nexit=0\nbegun=1\nepochs=4\n\
                    last=ok\n\
                    repetition=2\nbegun=1\nlast=\u{1b}[2Jepoch\nrepetition=3\nlast=\n";
        let state = State::parse(text);
        assert_eq!((state.owner.as_str(), state.heartbeat_s), ("box, process 12", Some(3)));
        let statuses: Vec<Status> = state.repetitions.iter().map(|one| one.status).collect();
        assert_eq!(statuses, [Status::Completed, Status::Running, Status::Waiting]);
        assert!(!state.repetitions[1].last.contains('\u{1b}'));
        let dead = State::parse(&text.replace("alive=1", "alive=0"));
        assert_eq!(dead.repetitions[1].status, Status::Interrupted);
    }

    #[test]
    fn records_are_found_by_name_by_run_and_the_last_without() {
        let runs = tempfile::tempdir().unwrap();
        let record = |id: &str, launched| Record {
            id: id.to_owned(),
            target: "lab".to_owned(),
            root: "/x".to_owned(),
            launched,
            program: "/x/p".to_owned(),
            environment: BTreeMap::from([("A".to_owned(), "b c".to_owned())]),
            runs: vec![PathBuf::from(format!("runs/{id}/1"))],
            experiments: vec!["[model]\nname = \"digits\"\n".to_owned()],
            resources: Resources { seconds: Some(60), ..Resources::default() },
            workers: Some(2),
            lease: Some(Lease { until: 9, stop: 8 }),
            run_bytes: 3,
            expected_s: Some(1.5),
            released: None,
            done: vec![1],
            hosts: vec!["a".to_owned()],
            ready: Vec::new(),
        };
        assert!(Record::find(runs.path(), None).is_err());
        for (id, launched) in [("b-1", 1), ("a-2", 2)] {
            record(id, launched).write(runs.path()).unwrap();
        }
        assert_eq!(Record::find(runs.path(), None).unwrap(), record("a-2", 2));
        assert_eq!(Record::find(runs.path(), Some("runs/b-1/1")).unwrap().id, "b-1");
        let error = Record::find(runs.path(), Some("b-2")).unwrap_err().to_string();
        assert!(error.contains("did you mean"), "{error}");
    }

    #[test]
    fn scripts_know_the_names_of_a_run() {
        use stratus_run::layout::{CHECKPOINTS, EPOCHS, EXPERIMENT, ITERATIONS};
        for (script, name) in [
            (include_str!("scripts/repetition.sh"), format!("/run/{EPOCHS}\"")),
            (include_str!("scripts/train.sh"), format!("/run/{EXPERIMENT}\"")),
            (include_str!("scripts/restore.sh"), format!(".run/{EXPERIMENT} ")),
            (include_str!("scripts/slurm.sh"), format!("/run/{ITERATIONS}\"")),
            (include_str!("scripts/list.sh"), format!("./{CHECKPOINTS} ")),
        ] {
            assert!(script.contains(&name), "{name}");
        }
    }

    #[test]
    fn a_script_quotes_what_it_is_given() {
        let job = Job {
            id: "a".to_owned(),
            program: "/it's/p".to_owned(),
            environment: BTreeMap::from([("A".to_owned(), "$(x)".to_owned())]),
            experiments: vec![String::new(); 2],
            resources: Resources::default(),
            workers: Some(4),
            stop: Some(7),
            notify: Some("it's".to_owned()),
            hosts: Vec::new(),
            only: None,
        };
        let script = job.script();
        let head = "export A='$(x)'\nprogram='/it'\\''s/p'\nlaunch='a'\nworkers=4\nstop_at=7\n\
                    notify='it'\\''s'\nrepetitions='1 2'\n";
        assert!(script.contains(head), "{script}");
    }
}
