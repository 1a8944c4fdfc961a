//! The kind `slurm`: a cluster whose queue is spoken to here, or on a machine behind `ssh`.
//!
//! A launch is an array of jobs, one for each repetition, whose name is the launch's: by it the queue is
//! asked, and nothing has to be remembered. What ended, the jobs write themselves, so that no accounts need
//! be kept.

use crate::job::{Job, Record, State, Status};
use crate::shell::{self, Shell};
use crate::target::{Link, Machine, Needs, Prepared, Target, taken};
use crate::{Error, Fetched, Resources, Result, SlurmSettings};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use stratus_base::printable;

/// The batch script, in the job's folder.
const BATCH: &str = "batch.sh";
/// What trains a repetition.
const SCRIPT: &str = concat!(include_str!("scripts/train.sh"), include_str!("scripts/slurm.sh"));
/// Says how a job stands.
const STATE: &str = concat!(include_str!("scripts/repetition.sh"), include_str!("scripts/slurm-state.sh"));
/// The most repetitions whose names are told in a message.
const MOST_NAMED: usize = 8;
/// Where the queue cannot be asked, a heart that beat so many seconds ago still beats.
const ALIVE: u64 = 60;

pub(crate) struct Slurm {
    pub(crate) machine: Machine<Box<dyn Shell>>,
    pub(crate) settings: Box<SlurmSettings>,
}

/// How the queue has a repetition.
#[derive(Clone, Debug, PartialEq)]
struct Queued {
    state: String,
    reason: String,
}

impl Queued {
    /// Whether it holds a node.
    fn runs(&self) -> bool {
        matches!(
            self.state.as_str(),
            "RUNNING" | "COMPLETING" | "SUSPENDED" | "STOPPED" | "SIGNALING" | "STAGE_OUT" | "RESIZING"
        )
    }
}

impl Slurm {
    /// What `sbatch` reads of a batch script.
    fn header(&self, id: &str, repetitions: usize, resources: Resources) -> String {
        let settings = &self.settings;
        let limit = settings.concurrent.map_or(String::new(), |most| format!("%{most}"));
        let mut options = vec![format!("--job-name={id}"), format!("--array=1-{repetitions}{limit}")];
        options.extend(settings.asked.iter().map(|(option, value)| format!("{option}={value}")));
        let is_asked = |name: &str| settings.asked.iter().any(|(option, _)| *option == name);
        if let Some(seconds) = resources.seconds.filter(|_| !is_asked("--time")) {
            options.push(format!("--time={}", time(seconds)));
        }
        if let Some(bytes) = resources.memory_bytes.filter(|_| !is_asked("--mem")) {
            options.push(format!("--mem={}M", bytes.div_ceil(1 << 20)));
        }
        if let Some(cpus) = settings.cpus.or(resources.cpus) {
            options.push(format!("--cpus-per-task={cpus}"));
        }
        // The shell alone hears it, and hands it to the training.
        options.push(format!("--signal=B:TERM@{}", settings.signal_seconds));
        options.extend(["--requeue", "--open-mode=append", "--output=%a/slurm.log"].map(str::to_owned));
        options.extend(settings.options.iter().cloned());
        let lines: String = options.iter().map(|option| format!("#SBATCH {option}\n")).collect();
        format!("#!/bin/sh\n{lines}")
    }

    fn batch(&self, job: &Job) -> String {
        let header = self.header(&job.id, job.experiments.len(), job.resources);
        let setup = self.settings.setup.trim_end();
        let setup = if setup.is_empty() { String::new() } else { format!("{setup}\n") };
        format!("{header}\n{}{setup}{SCRIPT}", job.preamble())
    }

    fn error(&self, problem: &str, hint: &str) -> Error {
        Error::target(format!("{}: {problem}", self.machine.shell.name()), hint)
    }
}

/// Seconds as `days-hours:minutes:seconds`.
fn time(seconds: u64) -> String {
    let minutes = seconds.div_ceil(60);
    format!("{}-{:02}:{:02}:00", minutes / 1440, minutes / 60 % 24, minutes % 60)
}

/// The repetitions that a job's name ends in: `12_3`, and where an array is told in one `12_[3,5-7%2]`.
fn tasks(job: &str) -> Vec<usize> {
    let Some((_, tasks)) = job.split_once('_') else { return Vec::new() };
    let tasks = tasks.trim_start_matches('[').trim_end_matches(']');
    let tasks = tasks.split('%').next().unwrap_or(tasks);
    let mut numbers = Vec::new();
    for part in tasks.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>())
            && last.saturating_sub(first) < 10_000
        {
            numbers.extend(first..=last);
        }
    }
    numbers
}

/// What `squeue -o '%i|%T|%r'` says, each line behind `queue=`, by repetition. Of two jobs of a repetition,
/// one that trains counts.
fn queue(text: &str) -> BTreeMap<usize, Queued> {
    let mut all: BTreeMap<usize, Queued> = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("queue=")) {
        let mut parts = line.splitn(3, '|');
        let (Some(job), Some(state)) = (parts.next(), parts.next()) else { continue };
        let reason = parts.next().unwrap_or_default();
        let queued = Queued { state: printable(state.trim()), reason: printable(reason.trim()) };
        for number in tasks(job) {
            if !all.get(&number).is_some_and(Queued::runs) {
                all.insert(number, queued.clone());
            }
        }
    }
    all
}

/// What `sacct -P -o JobID,State` says, each line behind `account=`, by repetition; the last job counts.
fn accounts(text: &str) -> BTreeMap<usize, String> {
    let mut all = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("account=")) {
        if let Some((job, state)) = line.split_once('|') {
            all.extend(tasks(job).into_iter().map(|number| (number, printable(state.trim()))));
        }
    }
    all
}

/// How a launch stands, by what its script says.
fn state(text: &str) -> State {
    let (mut state, begun) = State::facts(text);
    let (queue, accounts) = (queue(text), accounts(text));
    let is_unknown = text.lines().any(|line| line == "queue_unknown=1");
    for (one, begun) in state.repetitions.iter_mut().zip(begun) {
        let queued = queue.get(&one.repetition);
        // Where the queue cannot be asked, only a heart tells.
        let beats = is_unknown && one.heartbeat_s.is_some_and(|age| age < ALIVE);
        one.queue = match queued {
            Some(Queued { state, reason }) if reason.is_empty() || reason == "None" => Some(state.clone()),
            Some(Queued { state, reason }) => Some(format!("{state}: {reason}")),
            None => accounts.get(&one.repetition).cloned(),
        };
        let runs = beats || queued.is_some_and(Queued::runs);
        one.status = match one.stands(begun, runs) {
            // It ended, and its task is in the queue again.
            Status::Interrupted if runs => Status::Running,
            Status::Interrupted if queued.is_some() => Status::Waiting,
            Status::Interrupted | Status::Waiting if is_unknown => Status::Unknown,
            status => status,
        };
        // What may be trained is not started again.
        let counts = matches!(one.status, Status::Running | Status::Unknown)
            || queued.is_some() && one.status == Status::Waiting;
        state.alive |= counts;
    }
    let running: Vec<_> = state.repetitions.iter().filter(|one| one.status == Status::Running).collect();
    let owners: Vec<&str> = running.iter().filter_map(|one| one.owner.as_deref()).take(MOST_NAMED).collect();
    state.heartbeat_s = running.iter().filter_map(|one| one.heartbeat_s).max();
    state.owner = if owners.is_empty() && state.alive { "Slurm".to_owned() } else { owners.join("; ") };
    state
}

impl Target for Slurm {
    fn files(&self, job: &Job) -> Vec<(String, String)> {
        job.files_with(BATCH, self.batch(job))
    }

    fn prepare(&self, needs: &Needs<'_>) -> Result<Prepared> {
        let header = self.header("stratus", needs.repetitions, needs.resources);
        let script = include_str!("scripts/slurm-check.sh");
        let (ended, _) = shell::text(&self.machine.shell, script, &[], header.as_bytes())?;
        match ended.code {
            Some(0) => self.machine.prepare(needs),
            Some(30) => Err(ended.error(&self.machine.shell, "use Slurm")),
            _ => {
                let mut error = ended.error(&self.machine.shell, "ask Slurm for such a job");
                if let Error::Target { hint, .. } = &mut error {
                    "`stratus launch … --dry-run` shows the job; its keys are in targets.toml"
                        .clone_into(hint);
                }
                Err(error)
            }
        }
    }

    fn link(&self, program: &str) -> Result<Link> {
        self.machine.link(program)
    }

    fn submit(&self, root: &str, job: &Job) -> Result<()> {
        let numbers: Vec<String> = (1..=job.experiments.len()).map(|number| number.to_string()).collect();
        let concurrent = self.settings.concurrent.unwrap_or(0).to_string();
        let mut arguments = vec![root, job.id.as_str(), concurrent.as_str()];
        arguments.extend(numbers.iter().map(String::as_str));
        let script = include_str!("scripts/slurm-submit.sh");
        let (ended, _) = self.machine.hand(script, &arguments, ("", &self.files(job)))?;
        match ended.code {
            Some(0) => Ok(()),
            Some(20) => Err(taken(self.machine.shell.name(), &job.id, "Slurm")),
            Some(21) => Err(self.error("another start of this job does not end", "try it again")),
            Some(22) => Err(ended.error(&self.machine.shell, "ask the queue")),
            _ => Err(ended.error(&self.machine.shell, "hand the job to Slurm")),
        }
    }

    fn state(&self, launch: &Record) -> Result<State> {
        let text = self.machine.state_text(launch, STATE)?.ok_or_else(|| self.machine.gone(launch))?;
        Ok(state(&text))
    }

    fn logs(&self, launch: &Record, repetition: usize, from: u64, out: &mut dyn Write) -> Result<u64> {
        self.machine.logs(launch, repetition, from, out)
    }

    fn fetch(&self, launch: &Record, repetition: usize, into: &Path) -> Result<Fetched> {
        self.machine.fetch(launch, repetition, into)
    }

    fn stop(&self, launch: &Record) -> Result<bool> {
        let arguments = [launch.root.as_str(), launch.id.as_str()];
        let script = include_str!("scripts/slurm-stop.sh");
        Ok(self.machine.text("stop the job", script, &arguments, "")?.trim() == "asked")
    }

    fn release(&self) {
        self.machine.release();
    }
}

#[cfg(test)]
mod tests {
    use super::{state, tasks, time};
    use crate::Status;

    #[test]
    fn tasks_of_arrays_are_told_one_by_one_or_together() {
        assert_eq!(tasks("12_3"), [3]);
        assert_eq!(tasks("12_[1,3-5%2]"), [1, 3, 4, 5]);
        for none in ["12", "", "12_", "12_[", "12_x", "12_5-1", "12_1-99999999999", "_-"] {
            assert!(tasks(none).is_empty(), "{none}");
        }
    }

    #[test]
    fn a_repetition_stands_as_its_files_and_the_queue_say() {
        let text = "queue=7_2|RUNNING|None\nqueue=7_3|PENDING|BeginTime\nqueue=7_[4-5%2]|PENDING|Resources\n\
                    queue=7_6|COMPLETING|\u{1b}[2J\nqueue=garbage\nqueue=\naccount=7_8|OUT_OF_MEMORY\n\
                    account=6_8|TIMEOUT\naccount=7_8|CANCELLED by 0\naccount=x\n\
                    repetition=1\nexit=0\nbegun=1\nowner=7_1 a 3 9\n\
                    repetition=2\nbegun=1\nowner=7_2 node2 4 9\nheartbeat_s=1\n\
                    repetition=3\nexit=75\nbegun=1\nrepetition=4\nrepetition=5\n\
                    repetition=6\nexit=75\nbegun=1\nrepetition=7\nexit=1\nbegun=1\nrepetition=8\nbegun=1\n\
                    repetition=9\n";
        let stands = state(text);
        let statuses: Vec<Status> = stands.repetitions.iter().map(|one| one.status).collect();
        use Status::{Completed, Failed, Interrupted, Running, Unknown, Waiting};
        assert_eq!(
            statuses,
            [Completed, Running, Waiting, Waiting, Waiting, Running, Failed, Interrupted, Waiting]
        );
        let queue = |at: usize| stands.repetitions[at].queue.as_deref();
        assert_eq!(queue(2), Some("PENDING: BeginTime"));
        assert_eq!(queue(3), Some("PENDING: Resources"));
        assert_eq!(queue(7), Some("CANCELLED by 0"));
        assert!(!queue(5).unwrap().contains('\u{1b}'));
        assert!(stands.alive);
        assert_eq!((stands.owner.as_str(), stands.heartbeat_s), ("node2, process 4", Some(1)));
        // Nothing is in the queue: what was begun is interrupted, and nothing is alive.
        let over: String = text
            .lines()
            .filter(|line| !line.starts_with("queue="))
            .fold(String::new(), |text, line| format!("{text}{line}\n"));
        assert!(!state(&over).alive);
        assert_eq!(state(&over).repetitions[1].status, Interrupted);
        // The queue cannot be asked: a heart tells.
        let unknown = state(&format!("queue_unknown=1\n{over}"));
        let statuses: Vec<Status> = unknown.repetitions.iter().map(|one| one.status).collect();
        assert_eq!(
            statuses,
            [Completed, Running, Unknown, Unknown, Unknown, Unknown, Failed, Unknown, Unknown]
        );
        assert!(unknown.alive);
    }

    #[test]
    fn a_time_is_rounded_up_to_minutes() {
        assert_eq!([1, 3600, 90_061].map(time), ["0-00:01:00", "0-01:00:00", "1-01:02:00"]);
    }
}
