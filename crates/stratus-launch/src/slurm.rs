//! The kind `slurm`: a cluster, through the Slurm commands of this machine or of a host reached by `ssh`.
//!
//! A launch is an array of jobs, one per repetition, with the name of the launch. The queue is queried by
//! this name, so no job ids are stored. Jobs write their exit codes themselves, so that Slurm's accounting is
//! not required.

use crate::job::{Job, LaunchRecord, LaunchState, RepetitionStatus, describe_owners};
use crate::lease::LinkMeasurement;
use crate::shell;
use crate::target::{PrepareOptions, PreparedTarget, ShellTarget, Target, already_running_error};
use crate::{Error, FetchStats, NodeWorkers, Resources, Result, SlurmSettings};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use stratus_base::printable;
use stratus_base::text::shell_quoted;

/// The name of the batch script in the job's folder.
const BATCH_FILE: &str = "batch.sh";
/// The environment variable of the training that names its MPI library.
const MPI_VARIABLE: &str = "STRATUS_MPI";
/// The script that trains a repetition.
const SCRIPT: &str = concat!(include_str!("scripts/train.sh"), include_str!("scripts/slurm.sh"));
/// The script that prints the state of a job.
const STATE_SCRIPT: &str =
    concat!(include_str!("scripts/repetition.sh"), include_str!("scripts/slurm-state.sh"));
/// Without `squeue`, a heartbeat younger than this counts as running.
const HEARTBEAT_TIMEOUT_S: u64 = 60;

/// The repetitions of a search in the queue, unless `concurrent` is set. More would be drawn before there are
/// results to draw them from.
const DEFAULT_SLOTS: usize = 4;

/// The maximum number of the tasks of an array, which is that of a sweep's runs.
const MAX_ARRAY_TASKS: usize = 10_000;

pub(crate) struct SlurmTarget {
    pub(crate) shell_target: ShellTarget,
    pub(crate) settings: Box<SlurmSettings>,
}

/// The queue's entry of a repetition.
#[derive(Clone, Debug, PartialEq)]
struct QueueEntry {
    state: String,
    reason: String,
}

impl QueueEntry {
    /// Returns whether the job holds a node.
    fn is_running(&self) -> bool {
        matches!(
            self.state.as_str(),
            "RUNNING" | "COMPLETING" | "SUSPENDED" | "STOPPED" | "SIGNALING" | "STAGE_OUT" | "RESIZING"
        )
    }
}

impl SlurmTarget {
    /// The header of the batch script, which `sbatch` reads.
    fn header(&self, id: &str, repetitions: usize, resources: Resources) -> String {
        let settings = &self.settings;
        let limit = settings.concurrent.map_or(String::new(), |count| format!("%{count}"));
        let mut options = vec![format!("--job-name={id}"), format!("--array=1-{repetitions}{limit}")];
        options.extend(settings.sbatch_options.iter().map(|(option, value)| format!("{option}={value}")));
        let is_set = |name: &str| settings.sbatch_options.iter().any(|(option, _)| *option == name);
        if let Some(seconds) = resources.seconds.filter(|_| !is_set("--time")) {
            options.push(format!("--time={}", slurm_time(seconds)));
        }
        let workers = settings.workers.as_ref();
        if let Some(bytes) = resources.memory_bytes.filter(|_| !is_set("--mem")) {
            // An upper bound: the memory of a process on its own, for each worker of a node.
            let bytes = bytes.saturating_mul(workers.map_or(1, |workers| workers.per_node));
            options.push(format!("--mem={}M", bytes.div_ceil(1 << 20)));
        }
        let cpus = settings.cpus.or(resources.cpus);
        match workers {
            Some(NodeWorkers { nodes: [min, max], per_node, .. }) => {
                let nodes = if min == max { min.to_string() } else { format!("{min}-{max}") };
                options.push(format!("--nodes={nodes}"));
                // The CPUs of a node are those of one task, and no number of tasks is requested: Slurm keeps
                // the number of a job's first start, so that a requeued one would not start on fewer nodes.
                options.push(format!("--cpus-per-task={}", per_node.saturating_mul(cpus.unwrap_or(1))));
            }
            None => options.extend(cpus.map(|cpus| format!("--cpus-per-task={cpus}"))),
        }
        // Slurm signals only the shell, which passes the signal to the training process.
        options.push(format!("--signal=B:TERM@{}", settings.signal_seconds));
        options.extend(["--requeue", "--open-mode=append", "--output=%a/slurm.log"].map(str::to_owned));
        options.extend(settings.options.iter().cloned());
        let lines: String = options.iter().map(|option| format!("#SBATCH {option}\n")).collect();
        format!("#!/bin/sh\n{lines}")
    }

    fn batch_script(&self, job: &Job) -> String {
        let header = self.header(&job.id, job.experiments.len(), job.resources);
        let setup = self.settings.setup.trim_end();
        let setup = if setup.is_empty() { String::new() } else { format!("{setup}\n") };
        let workers = self.settings.workers.as_ref().map_or(String::new(), |workers| {
            let library = job.environment.get(MPI_VARIABLE);
            let mpi = workers.mpi.as_deref().or_else(|| srun_mpi(library?));
            let mpi = shell_quoted(mpi.unwrap_or_default());
            let cpus =
                self.settings.cpus.or(job.resources.cpus).map_or(String::new(), |cpus| cpus.to_string());
            format!("workers_per_node={}\ncpus_per_worker={cpus}\nmpi={mpi}\n", workers.per_node)
        });
        format!("{header}\n{}{workers}{setup}{SCRIPT}", job.preamble())
    }

    fn error(&self, problem: &str, hint: &str) -> Error {
        Error::target(format!("{}: {problem}", self.shell_target.shell.name()), hint)
    }
}

/// The value of `--mpi` of `srun` for an MPI library: MPICH speaks PMI 1 and 2 by itself, Open MPI needs
/// PMIx. `None` means the cluster's default, for a library that is only known to be a folder.
fn srun_mpi(library: &str) -> Option<&'static str> {
    let path = Path::new(library);
    let name = path.file_name()?.to_str()?;
    let (base, version) = name.split_once(".so")?;
    if base != "libmpi" {
        return Some("pmi2");
    }
    // A name without version is a link to one with it, on this machine if that has the library too.
    let linked = std::fs::canonicalize(path).ok();
    let linked = linked.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
    let version = linked.and_then(|name| name.strip_prefix("libmpi.so.")).unwrap_or(version);
    let version = version.trim_start_matches('.');
    // MPICH and libraries that are compatible with it, such as Intel's and Cray's, have 12; Open MPI has 40.
    let is_of_mpich = match version.split('.').next().and_then(|major| major.parse::<u32>().ok()) {
        Some(major) => major < 40,
        None => ["mpich", "mvapich", "intel", "oneapi", "cray"].iter().any(|part| library.contains(part)),
    };
    Some(if is_of_mpich { "pmi2" } else { "pmix" })
}

/// Formats seconds, rounded up to minutes, as `days-hours:minutes:seconds`.
fn slurm_time(seconds: u64) -> String {
    let minutes = seconds.div_ceil(60);
    format!("{}-{:02}:{:02}:00", minutes / 1440, minutes / 60 % 24, minutes % 60)
}

/// The repetitions of a job id: `12_3`, or `12_[3,5-7%2]` if `squeue` groups the tasks of an array.
fn parse_array_tasks(job: &str) -> Vec<usize> {
    let Some((_, tasks)) = job.split_once('_') else { return Vec::new() };
    let tasks = tasks.trim_start_matches('[').trim_end_matches(']');
    let tasks = tasks.split('%').next().unwrap_or(tasks);
    let mut numbers = Vec::new();
    for part in tasks.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>())
            && last <= MAX_ARRAY_TASKS
        {
            // The output may repeat ranges without end, which must not take more memory than a real one.
            numbers.extend((first..=last).take(MAX_ARRAY_TASKS - numbers.len()));
        }
    }
    numbers
}

/// Parses the output of `squeue -o '%i|%T|%r'`, each line prefixed with `queue=`, by repetition. A running
/// job takes precedence over other jobs of its repetition.
fn parse_squeue(text: &str) -> BTreeMap<usize, QueueEntry> {
    let mut all: BTreeMap<usize, QueueEntry> = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("queue=")) {
        let mut parts = line.splitn(3, '|');
        let (Some(job), Some(state)) = (parts.next(), parts.next()) else { continue };
        let reason = parts.next().unwrap_or_default();
        let queued = QueueEntry { state: printable(state.trim()), reason: printable(reason.trim()) };
        for number in parse_array_tasks(job) {
            if !all.get(&number).is_some_and(QueueEntry::is_running) {
                all.insert(number, queued.clone());
            }
        }
    }
    all
}

/// Parses the output of `sacct -P -o JobID,State`, each line prefixed with `account=`. The last job of a
/// repetition counts.
fn parse_sacct(text: &str) -> BTreeMap<usize, String> {
    let mut all = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("account=")) {
        if let Some((job, state)) = line.split_once('|') {
            all.extend(parse_array_tasks(job).into_iter().map(|number| (number, printable(state.trim()))));
        }
    }
    all
}

#[cfg(fuzzing)]
pub(crate) fn fuzz(text: &str) {
    let _ = parse_state(text, &[]);
}

/// Parses the state of a launch, whose repetitions have these goals, from the output of the state script.
fn parse_state(text: &str, goals: &[String]) -> LaunchState {
    let (mut state, started) = LaunchState::parse_fields(text, goals);
    let (queue, accounts) = (parse_squeue(text), parse_sacct(text));
    let is_unknown = text.lines().any(|line| line == "queue_unknown=1");
    for (one, started) in state.repetitions.iter_mut().zip(started) {
        let queued = queue.get(&one.repetition);
        // Without the queue, the heartbeat decides.
        let has_heartbeat = is_unknown && one.heartbeat_s.is_some_and(|age| age < HEARTBEAT_TIMEOUT_S);
        one.queue = match queued {
            Some(QueueEntry { state, reason }) if reason.is_empty() || reason == "None" => {
                Some(state.clone())
            }
            Some(QueueEntry { state, reason }) => Some(format!("{state}: {reason}")),
            None => accounts.get(&one.repetition).cloned(),
        };
        let is_running = has_heartbeat || queued.is_some_and(QueueEntry::is_running);
        one.status = match one.derive_status(started, is_running) {
            // The process exited, and its task was requeued.
            RepetitionStatus::Interrupted if is_running => RepetitionStatus::Running,
            RepetitionStatus::Interrupted if queued.is_some() => RepetitionStatus::Waiting,
            RepetitionStatus::Interrupted | RepetitionStatus::Waiting if is_unknown => {
                RepetitionStatus::Unknown
            }
            status => status,
        };
        // A repetition that may be running is not started again.
        let may_run = matches!(one.status, RepetitionStatus::Running | RepetitionStatus::Unknown)
            || queued.is_some() && one.status == RepetitionStatus::Waiting;
        state.is_running |= may_run;
    }
    let running = state.repetitions.iter().filter(|one| one.status == RepetitionStatus::Running);
    state.heartbeat_s = running.filter_map(|one| one.heartbeat_s).max();
    state.owner = describe_owners(&state, "Slurm");
    state
}

impl Target for SlurmTarget {
    fn files(&self, job: &Job) -> Vec<(String, String)> {
        job.files_with(BATCH_FILE, self.batch_script(job))
    }

    fn prepare(&self, options: &PrepareOptions<'_>) -> Result<PreparedTarget> {
        let header = self.header("stratus", options.repetitions, options.resources);
        let script = include_str!("scripts/slurm-check.sh");
        let (ended, _) = shell::run_for_text(&*self.shell_target.shell, script, &[], header.as_bytes())?;
        match ended.code {
            Some(0) => self.shell_target.prepare(options),
            Some(30) => Err(ended.to_error(&*self.shell_target.shell, "use Slurm")),
            _ => {
                let mut error = ended.to_error(&*self.shell_target.shell, "submit the job to Slurm");
                if let Error::Target { hint, .. } = &mut error {
                    "print the job with `stratus launch … --dry-run`; change its keys in targets.toml"
                        .clone_into(hint);
                }
                Err(error)
            }
        }
    }

    fn measure_link(&self, program: &str) -> Result<LinkMeasurement> {
        self.shell_target.measure_link(program)
    }

    fn submit(&self, root: &str, job: &Job) -> Result<()> {
        let all = (1..=job.experiments.len()).collect();
        let numbers = job.selected.as_ref().unwrap_or(&all);
        let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        let concurrent = self.settings.concurrent.unwrap_or(0).to_string();
        let mut arguments = vec![root, job.id.as_str(), concurrent.as_str()];
        arguments.extend(numbers.iter().map(String::as_str));
        let script = include_str!("scripts/slurm-submit.sh");
        let (ended, _) = self.shell_target.run_with_files(script, &arguments, ("", &self.files(job)))?;
        match ended.code {
            Some(0) => Ok(()),
            Some(20) => Err(already_running_error(self.shell_target.shell.name(), &job.id, "Slurm")),
            Some(21) => Err(self.error("another process is starting this job", "try again")),
            Some(22) => Err(ended.to_error(&*self.shell_target.shell, "query the queue")),
            _ => Err(ended.to_error(&*self.shell_target.shell, "submit the job")),
        }
    }

    fn slots(&self) -> usize {
        self.settings.concurrent.map_or(DEFAULT_SLOTS, |count| usize::try_from(count).unwrap_or(usize::MAX))
    }

    fn extend(&self, root: &str, job: &Job) -> Result<()> {
        self.submit(root, job)
    }

    fn state(&self, launch: &LaunchRecord) -> Result<LaunchState> {
        let text = self
            .shell_target
            .state_text(launch, STATE_SCRIPT)?
            .ok_or_else(|| self.shell_target.missing_job_error(launch))?;
        Ok(parse_state(&text, &launch.goals()))
    }

    fn logs(&self, launch: &LaunchRecord, repetition: usize, from: u64, out: &mut dyn Write) -> Result<u64> {
        self.shell_target.logs(launch, repetition, from, out)
    }

    fn fetch(&self, launch: &LaunchRecord, repetition: usize, into: &Path) -> Result<FetchStats> {
        self.shell_target.fetch(launch, repetition, into)
    }

    fn stop(&self, launch: &LaunchRecord) -> Result<bool> {
        let arguments = [launch.root.as_str(), launch.id.as_str()];
        let script = include_str!("scripts/slurm-stop.sh");
        Ok(self.shell_target.run_for_text("stop the job", script, &arguments, "")?.trim() == "asked")
    }

    fn release(&self) {
        self.shell_target.release();
    }
}

#[cfg(test)]
mod tests {
    use super::{parse_array_tasks, parse_state, slurm_time, srun_mpi};
    use crate::RepetitionStatus;

    #[test]
    fn srun_speaks_the_protocol_of_the_library() {
        let mpi = srun_mpi;
        assert_eq!(mpi("/a/mpi/lib/libmpi_abi.so.1"), Some("pmi2"));
        assert_eq!(mpi("/usr/lib/libmpich.so.12"), Some("pmi2"));
        assert_eq!(mpi("/usr/lib/libmpi.so.40"), Some("pmix"));
        assert_eq!(mpi("/usr/lib/libmpi.so.80.1.0"), Some("pmix"));
        assert_eq!(mpi("/opt/intel/lib/libmpi.so.12"), Some("pmi2"));
        // The name without version is Open MPI's, unless its target or its folder shows something else.
        assert_eq!(mpi("/nowhere/openmpi/lib/libmpi.so"), Some("pmix"));
        assert_eq!(mpi("/nowhere/mpich-4.2/lib/libmpi.so"), Some("pmi2"));
        let folder = tempfile::tempdir().unwrap();
        for (version, expected) in [("12.4.0", "pmi2"), ("40.30.4", "pmix")] {
            let (file, link) =
                (folder.path().join(format!("libmpi.so.{version}")), folder.path().join("libmpi.so"));
            std::fs::write(&file, "").unwrap();
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(file, &link).unwrap();
            assert_eq!(mpi(link.to_str().unwrap()), Some(expected));
        }
        assert_eq!((mpi("/usr/lib"), mpi(""), mpi("/")), (None, None, None));
    }

    #[test]
    fn array_tasks_are_parsed_single_or_grouped() {
        assert_eq!(parse_array_tasks("12_3"), [3]);
        assert_eq!(parse_array_tasks("12_[1,3-5%2]"), [1, 3, 4, 5]);
        for invalid in ["12", "", "12_", "12_[", "12_x", "12_5-1", "12_1-99999999999", "_-"] {
            assert!(parse_array_tasks(invalid).is_empty(), "{invalid}");
        }
    }

    #[test]
    fn repeated_ranges_of_tasks_take_no_more_memory_than_the_largest_array() {
        let repeated = format!("12_[{}]", "1-10000,".repeat(1000));
        assert_eq!(parse_array_tasks(&repeated).len(), 10_000);
        assert!(parse_array_tasks("12_10001").is_empty());
    }

    #[test]
    fn status_follows_from_files_and_queue() {
        let text = "queue=7_2|RUNNING|None\nqueue=7_3|PENDING|BeginTime\nqueue=7_[4-5%2]|PENDING|Resources\n\
                    queue=7_6|COMPLETING|\u{1b}[2J\nqueue=garbage\nqueue=\naccount=7_8|OUT_OF_MEMORY\n\
                    account=6_8|TIMEOUT\naccount=7_8|CANCELLED by 0\naccount=x\n\
                    repetition=1\nexit=0\nbegun=1\nowner=7_1 a 3 9\n\
                    repetition=2\nbegun=1\nowner=7_2 node2 4 9\nheartbeat_s=1\n\
                    repetition=3\nexit=75\nbegun=1\nrepetition=4\nrepetition=5\n\
                    repetition=6\nexit=75\nbegun=1\nrepetition=7\nexit=1\nbegun=1\nrepetition=8\nbegun=1\n\
                    repetition=9\n";
        let merged = parse_state(text, &[]);
        let statuses: Vec<RepetitionStatus> = merged.repetitions.iter().map(|one| one.status).collect();
        use RepetitionStatus::{Completed, Failed, Interrupted, Running, Unknown, Waiting};
        assert_eq!(
            statuses,
            [Completed, Running, Waiting, Waiting, Waiting, Running, Failed, Interrupted, Waiting]
        );
        let queue = |at: usize| merged.repetitions[at].queue.as_deref();
        assert_eq!(queue(2), Some("PENDING: BeginTime"));
        assert_eq!(queue(3), Some("PENDING: Resources"));
        assert_eq!(queue(7), Some("CANCELLED by 0"));
        assert!(!queue(5).unwrap().contains('\u{1b}'));
        assert!(merged.is_running);
        assert_eq!((merged.owner.as_str(), merged.heartbeat_s), ("node2, process 4", Some(1)));
        // The queue is empty: started repetitions are interrupted, and none is running.
        let over: String = text
            .lines()
            .filter(|line| !line.starts_with("queue="))
            .fold(String::new(), |text, line| format!("{text}{line}\n"));
        assert!(!parse_state(&over, &[]).is_running);
        assert_eq!(parse_state(&over, &[]).repetitions[1].status, Interrupted);
        // Without the queue, the heartbeat decides.
        let unknown = parse_state(&format!("queue_unknown=1\n{over}"), &[]);
        let statuses: Vec<RepetitionStatus> = unknown.repetitions.iter().map(|one| one.status).collect();
        assert_eq!(
            statuses,
            [Completed, Running, Unknown, Unknown, Unknown, Unknown, Failed, Unknown, Unknown]
        );
        assert!(unknown.is_running);
    }

    #[test]
    fn time_is_rounded_up_to_minutes() {
        assert_eq!([1, 3600, 90_061].map(slurm_time), ["0-00:01:00", "0-01:00:00", "1-01:02:00"]);
    }
}
