//! Jobs, their local records and their states. A job is a folder on a target that holds the repetitions.

use crate::shell::escape_control_characters;
use crate::{Error, Lease, Result, SearchRecord};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use stratus_base::exit_code::INTERRUPTED;
use stratus_base::text::shell_quoted;
use stratus_base::{did_you_mean, nearest, printable, read_text_at_most};
use stratus_run::layout::{EXPERIMENT, LAUNCHES};

/// The exit code of a training that was stopped with a checkpoint.
const INTERRUPTED_EXIT: i32 = INTERRUPTED as i32;

/// The script that trains the repetitions.
const SCRIPT: &str = concat!(include_str!("scripts/train.sh"), include_str!("scripts/launch.sh"));

/// The file with the goal of a repetition.
const GOAL: &str = "goal";
/// The maximum number of owners that are named in a message.
const MAX_NAMED_OWNERS: usize = 8;
/// The maximum size of a record.
const MAX_RECORD_BYTES: u64 = 4 << 20;

/// The training that a target receives.
#[derive(Clone, Debug)]
pub struct Job {
    /// The name of the launch.
    pub id: String,
    /// The path of the executable on the target.
    pub program: String,
    /// Environment variables of the training processes.
    pub environment: BTreeMap<String, String>,
    /// The experiment file of each repetition.
    pub experiments: Vec<String>,
    /// The resources of a repetition.
    pub resources: Resources,
    /// The number of workers of a repetition; `None` means one process.
    pub workers: Option<u64>,
    /// The time at which training must stop, in seconds since 1970 by the target's clock.
    pub stop_at: Option<u64>,
    /// A shell command that is run on every event.
    pub notify: Option<String>,
    /// The host of each repetition, for targets with several hosts.
    pub host_by_repetition: Vec<String>,
    /// The goal of each repetition, see [`LaunchRecord::goals`]; empty if all are trained to their end.
    pub goals: Vec<String>,
    /// The repetitions to train; `None` means all.
    pub selected: Option<Vec<usize>>,
}

/// The resources of a repetition; `None` for those that are unknown.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Resources {
    /// The duration in seconds, with a margin.
    pub seconds: Option<u64>,
    /// The host memory in bytes, with a margin.
    pub memory_bytes: Option<u64>,
    /// The number of CPUs.
    pub cpus: Option<u64>,
}

impl Job {
    /// The script that runs on a host.
    #[must_use]
    pub fn script(&self) -> String {
        let all = (1..=self.experiments.len()).collect();
        let numbers = self.selected.as_ref().unwrap_or(&all);
        let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        format!("#!/bin/sh\n{}repetitions='{}'\n{SCRIPT}", self.preamble(), numbers.join(" "))
    }

    /// The first lines of every training script: the environment and the variables.
    pub(crate) fn preamble(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.environment {
            text.push_str(&format!("export {name}={}\n", shell_quoted(value)));
        }
        let (stop, notify) = (self.stop_at, self.notify.as_deref().unwrap_or_default());
        let stop = stop.map_or(String::new(), |stop| stop.to_string());
        let (program, launch) = (shell_quoted(&self.program), shell_quoted(&self.id));
        let workers = self.workers.map_or(String::new(), |workers| workers.to_string());
        text.push_str(&format!("program={program}\nlaunch={launch}\nworkers={workers}\n"));
        text.push_str(&format!("stop_at={stop}\nnotify={}\n", shell_quoted(notify)));
        text
    }

    /// The files of the job on a host: the script, and the experiment of each repetition.
    #[must_use]
    pub fn files(&self) -> Vec<(String, String)> {
        self.files_with("launch.sh", self.script())
    }

    /// The files of the job with another script.
    pub(crate) fn files_with(&self, script: &str, text: String) -> Vec<(String, String)> {
        let mut files = vec![(script.to_owned(), text)];
        for (number, text) in (1..).zip(&self.experiments) {
            let number: usize = number;
            files.push((format!("{number}/{EXPERIMENT}"), text.clone()));
            if let Some(goal) = self.goals.get(number - 1) {
                files.push((format!("{number}/{GOAL}"), format!("{goal}\n")));
            }
        }
        files
    }
}

/// The local record of a launch.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct LaunchRecord {
    /// The name of the launch.
    pub id: String,
    /// The name of the target.
    pub target: String,
    /// The folder of the target.
    pub root: String,
    /// The time of the launch, in seconds since 1970.
    pub launched: u64,
    /// The path of the executable on the target.
    pub program: String,
    /// Environment variables of the training processes.
    pub environment: BTreeMap<String, String>,
    /// The local run directory of each repetition.
    pub runs: Vec<PathBuf>,
    /// The experiment file of each repetition, as uploaded.
    pub experiments: Vec<String>,
    /// The resources of a repetition.
    pub resources: Resources,
    /// The number of workers of a repetition; `None` means one process.
    pub workers: Option<u64>,
    /// The time until which the target may be used.
    pub lease: Option<Lease>,
    /// The maximum size of a fetched run in bytes.
    pub run_bytes: u64,
    /// The forecast duration of a repetition in seconds.
    pub expected_s: Option<f64>,
    /// The time at which the target was released, in seconds since 1970.
    pub released: Option<u64>,
    /// Completed repetitions whose files have all been fetched.
    pub done: Vec<usize>,
    /// The host of each repetition, for targets with several hosts.
    #[serde(rename = "hosts")]
    pub host_by_repetition: Vec<String>,
    /// The hosts that have the executable and the data, for targets with several hosts.
    #[serde(rename = "ready")]
    pub prepared_hosts: Vec<String>,
    /// The search of a sweep in which results decide which cells are trained, and for how long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<SearchRecord>,
}

impl LaunchRecord {
    /// Returns the job that starts or restarts the launch. `notify` is run on every event.
    #[must_use]
    pub fn job(&self, notify: Option<String>) -> Job {
        Job {
            id: self.id.clone(),
            program: self.program.clone(),
            environment: self.environment.clone(),
            experiments: self.experiments.clone(),
            resources: self.resources,
            workers: self.workers,
            stop_at: self.lease.map(|lease| lease.stop_at),
            notify,
            host_by_repetition: self.host_by_repetition.clone(),
            goals: self.goals(),
            selected: None,
        }
    }

    /// The goal of each repetition: the epoch until which it is trained, or `end`. Empty if all are trained
    /// to their end.
    #[must_use]
    pub fn goals(&self) -> Vec<String> {
        self.search.as_ref().map_or(Vec::new(), SearchRecord::goals)
    }

    /// Locks the launch until the file is dropped.
    ///
    /// # Errors
    /// If the lock file cannot be created or locked.
    pub fn lock(&self, runs: &Path) -> Result<fs::File> {
        let path = runs.join(LAUNCHES).join(format!(".{}.lock", self.id));
        let file = fs::File::create(&path).map_err(Error::file("create", &path))?;
        file.lock().map_err(Error::file("lock", &path))?;
        Ok(file)
    }

    /// Writes the record next to the runs.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, runs: &Path) -> Result<()> {
        let folder = runs.join(LAUNCHES);
        fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
        let path = self.file(runs);
        let text = toml::to_string(self)
            .map_err(|error| Error::usage(format!("cannot record the launch: {error}"), ""))?;
        let temporary = folder.join(format!(".{}.tmp", self.id));
        fs::write(&temporary, text).map_err(Error::file("write", &temporary))?;
        fs::rename(&temporary, &path).map_err(Error::file("write", &path))
    }

    /// Reads all records, ordered by the time of the launch.
    ///
    /// # Errors
    /// If a record cannot be read.
    pub fn all(runs: &Path) -> Result<Vec<Self>> {
        let folder = runs.join(LAUNCHES);
        let Ok(entries) = fs::read_dir(&folder) else { return Ok(Vec::new()) };
        let mut records = Vec::new();
        for entry in entries {
            let path = entry.map_err(Error::file("read", &folder))?.path();
            let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            if hidden || path.extension().is_none_or(|extension| extension != "toml") {
                continue;
            }
            records.push(Self::read(&path)?);
        }
        records.sort_by(|a, b| (a.launched, &a.id).cmp(&(b.launched, &b.id)));
        Ok(records)
    }

    /// Reads the record in a file.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged.
    pub fn read(path: &Path) -> Result<Self> {
        let text = read_text_at_most(path, MAX_RECORD_BYTES).map_err(Error::file("read", path))?;
        let record: Self = toml::from_str(&text).map_err(|error| {
            let problem = format!("{}: invalid launch record: {}", path.display(), error.message());
            Error::usage(problem, "remove the file if its launch is not needed")
        })?;
        if !is_valid_id(&record.id) {
            return Err(Error::usage(format!("{}: `id` is not a valid name", path.display()), ""));
        }
        Ok(record)
    }

    /// Finds the record with this name or run directory; without `id`, the last one.
    ///
    /// # Errors
    /// If there is no such record.
    pub fn find(runs: &Path, id: Option<&str>) -> Result<Self> {
        let records = Self::all(runs)?;
        let Some(id) = id else {
            let no_launches = || {
                Error::usage(
                    "no launches in this folder",
                    "start one with `stratus launch TARGET EXPERIMENT`",
                )
            };
            return records.last().cloned().ok_or_else(no_launches);
        };
        let path = Path::new(id);
        let matches = |record: &&Self| record.id == id || record.runs.iter().any(|run| run == path);
        if let Some(record) = records.iter().find(matches) {
            return Ok(record.clone());
        }
        let suggestion = did_you_mean(nearest(id, records.iter().map(|record| record.id.as_str())));
        Err(Error::usage(
            format!("no launch is named `{id}`{suggestion}"),
            "list them with `stratus launch list`",
        ))
    }
}

/// Returns whether a text is a valid launch name: it names a folder on the target and a local file.
#[must_use]
pub fn is_valid_id(text: &str) -> bool {
    !text.is_empty()
        && text.len() < 200
        && !text.starts_with(['.', '-'])
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// The status of a repetition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepetitionStatus {
    /// Not started, or queued to be resumed.
    #[default]
    Waiting,
    /// Being trained.
    Running,
    /// Trained to its end.
    Completed,
    /// Stopped, or its process was lost: it can be resumed.
    Interrupted,
    /// Training failed.
    Failed,
    /// Its host cannot be reached.
    Unknown,
}

impl RepetitionStatus {
    /// The name in output and JSON.
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

/// The state of a repetition on its target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RepetitionState {
    /// The number, counted from 1.
    pub repetition: usize,
    /// The status.
    pub status: RepetitionStatus,
    /// The exit code of its training process, once it has ended.
    pub exit: Option<i32>,
    /// The number of completed epochs.
    pub epochs: Option<u64>,
    /// Its state in the target's queue or in Slurm's accounting; for several hosts, the name of its host.
    pub queue: Option<String>,
    /// The current or last owner, if each repetition has its own.
    pub owner: Option<String>,
    /// The age of its heartbeat in seconds, by the target's clock.
    pub heartbeat_s: Option<u64>,
    /// The training time in seconds, without processes that were killed.
    pub elapsed_s: Option<u64>,
    /// The last line of its log.
    #[serde(rename = "last")]
    pub last_line: String,
    /// A checksum that changes with the files of its run; `None` if there is no run.
    #[serde(skip)]
    pub stamp: Option<u64>,
    /// The goal to which it was last trained.
    #[serde(skip)]
    pub reached: Option<String>,
}

/// The state of a launch on its target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LaunchState {
    /// True if a process is training the launch.
    #[serde(rename = "alive")]
    pub is_running: bool,
    /// True if a stop was requested.
    pub stopped: bool,
    /// The current or last owner: host and process.
    pub owner: String,
    /// The age of its heartbeat in seconds, by the target's clock.
    pub heartbeat_s: Option<u64>,
    /// The repetitions.
    pub repetitions: Vec<RepetitionState>,
}

impl LaunchState {
    /// Parses the output of the state script of a host, whose repetitions have these goals.
    pub(crate) fn from_script_output(text: &str, goals: &[String]) -> Self {
        let (mut state, started) = Self::parse_fields(text, goals);
        let head = text.lines().take_while(|line| !line.starts_with("repetition="));
        let current = head.filter_map(|line| line.strip_prefix("current=")?.trim().parse().ok()).next();
        // Scripts of older launches do not name it. They train repetitions in order: the first started one
        // without an exit code is running.
        let mut has_process = state.is_running;
        for (repetition, started) in state.repetitions.iter_mut().zip(started) {
            let is_current = current.is_none_or(|current: usize| current == repetition.repetition);
            let can_run = repetition.exit.is_none() && started && is_current;
            let running = can_run && std::mem::take(&mut has_process);
            repetition.status = repetition.derive_status(started, running);
        }
        state
    }

    /// The state of a launch without started repetitions.
    pub(crate) fn all_waiting(repetitions: usize) -> Self {
        let waiting = (1..=repetitions).map(|number| RepetitionState::new(number, RepetitionStatus::Waiting));
        Self { repetitions: waiting.collect(), ..Self::default() }
    }

    /// Parses the output of a state script. Also returns, for each repetition, whether it was started; the
    /// statuses are not set yet. A repetition that reached another goal than that in `goals` counts as not
    /// started.
    pub(crate) fn parse_fields(text: &str, goals: &[String]) -> (Self, Vec<bool>) {
        let mut state = Self::all_waiting(0);
        let mut started = Vec::new();
        for line in text.lines() {
            let Some((key, value)) = line.split_once('=') else { continue };
            let last = state.repetitions.last_mut();
            match (key, last) {
                ("alive", _) => state.is_running = value == "1",
                ("stopped", _) => state.stopped = value == "1",
                ("owner", Some(last)) => {
                    last.owner = Some(describe_owner(value)).filter(|owner| !owner.is_empty());
                }
                ("owner", None) => state.owner = describe_owner(value),
                ("heartbeat_s", Some(last)) => last.heartbeat_s = value.parse().ok(),
                ("heartbeat_s", None) => state.heartbeat_s = value.parse().ok(),
                ("repetition", _) => {
                    let number = state.repetitions.len() + 1;
                    state.repetitions.push(RepetitionState::new(number, RepetitionStatus::Waiting));
                    started.push(false);
                }
                ("exit", Some(last)) => last.exit = value.trim().parse().ok(),
                ("elapsed_s", Some(last)) => last.elapsed_s = value.trim().parse().ok(),
                ("reached", Some(last)) => last.reached = Some(printable(value.trim())),
                ("stamp", Some(last)) => last.stamp = value.trim().parse().ok(),
                ("epochs", Some(last)) => last.epochs = value.trim().parse().ok(),
                ("last", Some(last)) => last.last_line = printable(escape_control_characters(value).trim()),
                ("begun", Some(_)) => started.iter_mut().last().into_iter().for_each(|last| *last = true),
                _ => {}
            }
        }
        for ((one, started), goal) in state.repetitions.iter_mut().zip(&mut started).zip(goals) {
            if one.exit == Some(0) && one.reached.as_ref() != Some(goal) {
                (one.exit, *started) = (None, false);
            }
        }
        (state, started)
    }
}

impl RepetitionState {
    /// A repetition with only its status known.
    pub(crate) fn new(repetition: usize, status: RepetitionStatus) -> Self {
        Self { repetition, status, ..Self::default() }
    }

    /// Returns whether the repetition must be trained; stopped or failed ones only with `retry_stopped`.
    pub(crate) fn needs_training(&self, is_stopped: bool, retry_stopped: bool) -> bool {
        match self.status {
            RepetitionStatus::Completed | RepetitionStatus::Running | RepetitionStatus::Unknown => false,
            RepetitionStatus::Failed => retry_stopped,
            RepetitionStatus::Interrupted => {
                retry_stopped || self.exit != Some(INTERRUPTED_EXIT) && !is_stopped
            }
            RepetitionStatus::Waiting => retry_stopped || !is_stopped,
        }
    }

    /// Derives the status from the exit code, and from whether the repetition was started and is running.
    pub(crate) fn derive_status(&self, started: bool, running: bool) -> RepetitionStatus {
        match self.exit {
            Some(0) => RepetitionStatus::Completed,
            // Stopped with a checkpoint, or killed.
            Some(INTERRUPTED_EXIT | 129..) => RepetitionStatus::Interrupted,
            Some(_) => RepetitionStatus::Failed,
            None if running => RepetitionStatus::Running,
            None if started => RepetitionStatus::Interrupted,
            None => RepetitionStatus::Waiting,
        }
    }
}

/// The owners of running repetitions, a few if there are many; `queue` if a job runs without a known owner.
pub(crate) fn describe_owners(state: &LaunchState, queue: &str) -> String {
    let running = state.repetitions.iter().filter(|one| one.status == RepetitionStatus::Running);
    let owners: Vec<&str> = running.filter_map(|one| one.owner.as_deref()).take(MAX_NAMED_OWNERS).collect();
    if owners.is_empty() && state.is_running { queue.to_owned() } else { owners.join("; ") }
}

/// Formats the owner of a job from its file: a token, the host, the process, the start time.
pub(crate) fn describe_owner(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        [_, host, process, ..] => printable(&format!("{host}, process {process}")),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Job, LaunchRecord, LaunchState, Lease, RepetitionStatus, Resources};
    use crate::{SearchRecord, UploadedPaths};
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    #[test]
    fn state_is_parsed_from_script_output() {
        let text = "alive=1\nowner=t box 12 99\nheartbeat_s=3\nrepetition=1\nexit=0\nbegun=1\nepochs=4\n\
                    last=ok\n\
                    repetition=2\nbegun=1\nlast=\u{1b}[2Jepoch\nrepetition=3\nlast=\n";
        let state = LaunchState::from_script_output(text, &[]);
        assert_eq!((state.owner.as_str(), state.heartbeat_s), ("box, process 12", Some(3)));
        let statuses: Vec<RepetitionStatus> = state.repetitions.iter().map(|one| one.status).collect();
        assert_eq!(
            statuses,
            [RepetitionStatus::Completed, RepetitionStatus::Running, RepetitionStatus::Waiting]
        );
        assert!(!state.repetitions[1].last_line.contains('\u{1b}'));
        let dead = LaunchState::from_script_output(&text.replace("alive=1", "alive=0"), &[]);
        assert_eq!(dead.repetitions[1].status, RepetitionStatus::Interrupted);
    }

    #[test]
    fn repetition_is_completed_if_it_reached_its_goal() {
        use RepetitionStatus::{Completed, Interrupted, Running, Waiting};
        let text = "alive=1\ncurrent=3\nrepetition=1\nexit=0\nreached=2\nbegun=1\nlast=current=1\n\
                    repetition=2\nbegun=1\nrepetition=3\nreached=2\nbegun=1\n\
                    repetition=4\nexit=0\nreached=end\nbegun=1\n";
        let statuses = |goals: &[&str]| -> Vec<RepetitionStatus> {
            let goals: Vec<String> = goals.iter().map(ToString::to_string).collect();
            let state = LaunchState::from_script_output(text, &goals);
            state.repetitions.iter().map(|one| one.status).collect()
        };
        assert_eq!(statuses(&["2", "2", "4", "end"]), [Completed, Interrupted, Running, Completed]);
        assert_eq!(statuses(&["4", "2", "4", "4"]), [Waiting, Interrupted, Running, Waiting]);
        assert_eq!(statuses(&[]), [Completed, Interrupted, Running, Completed]);
    }

    #[test]
    fn record_beyond_the_limit_is_refused_by_name() {
        let runs = tempfile::tempdir().unwrap();
        let path = runs.path().join(super::LAUNCHES).join("a.toml");
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        std::fs::File::create(&path).unwrap().set_len(super::MAX_RECORD_BYTES + 1).unwrap();
        let error = LaunchRecord::all(runs.path()).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(error.to_string().ends_with("a.toml"), "{error}");
        assert_eq!(cause, "it is larger than 4 MiB");
    }

    #[test]
    fn records_are_found_by_name_by_run_or_as_the_last() {
        let runs = tempfile::tempdir().unwrap();
        let record = |id: &str, launched| LaunchRecord {
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
            lease: Some(Lease { ends_at: 9, stop_at: 8 }),
            run_bytes: 3,
            expected_s: Some(1.5),
            released: None,
            done: vec![1],
            host_by_repetition: vec!["a".to_owned()],
            prepared_hosts: Vec::new(),
            search: Some(SearchRecord {
                sweep: PathBuf::from("sweeps/rates"),
                until_epochs: vec![0, 2],
                uploaded_paths: UploadedPaths::default(),
            }),
        };
        assert!(LaunchRecord::find(runs.path(), None).is_err());
        for (id, launched) in [("b-1", 1), ("a-2", 2)] {
            record(id, launched).write(runs.path()).unwrap();
        }
        assert_eq!(LaunchRecord::find(runs.path(), None).unwrap(), record("a-2", 2));
        assert_eq!(LaunchRecord::find(runs.path(), Some("runs/b-1/1")).unwrap().id, "b-1");
        let error = LaunchRecord::find(runs.path(), Some("b-2")).unwrap_err().to_string();
        assert!(error.contains("did you mean"), "{error}");
    }

    #[test]
    fn scripts_use_the_file_names_of_a_run() {
        use stratus_run::layout::{CHECKPOINTS, EPOCHS, EXPERIMENT, ITERATIONS};
        for (script, name) in [
            (include_str!("scripts/repetition.sh"), format!("/run/{EPOCHS}\"")),
            (include_str!("scripts/train.sh"), format!("/run/{EXPERIMENT}\"")),
            (include_str!("scripts/restore.sh"), format!(".run/{EXPERIMENT} ")),
            (include_str!("scripts/train.sh"), format!("/run/{ITERATIONS}\"")),
            (include_str!("scripts/list.sh"), format!("./{CHECKPOINTS} ")),
        ] {
            assert!(script.contains(&name), "{name}");
        }
    }

    #[test]
    fn script_quotes_its_values() {
        let job = Job {
            id: "a".to_owned(),
            program: "/it's/p".to_owned(),
            environment: BTreeMap::from([("A".to_owned(), "$(x)".to_owned())]),
            experiments: vec![String::new(); 2],
            resources: Resources::default(),
            workers: Some(4),
            stop_at: Some(7),
            notify: Some("it's".to_owned()),
            host_by_repetition: Vec::new(),
            goals: vec!["2".to_owned(), "end".to_owned()],
            selected: None,
        };
        let files = job.files();
        assert!(files.contains(&("1/goal".to_owned(), "2\n".to_owned())), "{files:?}");
        let script = job.script();
        let head = "export A='$(x)'\nprogram='/it'\\''s/p'\nlaunch='a'\nworkers=4\nstop_at=7\n\
                    notify='it'\\''s'\nrepetitions='1 2'\n";
        assert!(script.contains(head), "{script}");
    }
}
