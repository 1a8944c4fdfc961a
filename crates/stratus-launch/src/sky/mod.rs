//! The kind `sky`: machines of clouds and of Kubernetes, through SkyPilot's managed jobs.
//!
//! Uploaded files and runs are in a bucket, which the machines mount, since no machine exists when a launch
//! starts, and any may be preempted. Each repetition is a separate job, named after the launch and its
//! number. SkyPilot finds a machine, and another one after a preemption; the script there saves the run to
//! the bucket with every checkpoint and resumes from it.
//!
//! Jobs are submitted by the command `sky`, with its own credentials. The bucket is accessed directly.

mod bucket;
mod queue;
mod task;

use crate::job::{Job, LaunchRecord, LaunchState, RepetitionStatus, describe_owners};
use crate::lease::LinkMeasurement;
use crate::local::LocalShell;
use crate::shell::{self, ScriptExit};
use crate::target::{PrepareOptions, PreparedTarget, Target, already_running_error};
use crate::{Error, FetchStats, FileSet, Result, SkySettings};
use bucket::Bucket;
use queue::JobQueue;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The exit code of a shell that does not find a command.
const COMMAND_NOT_FOUND: i32 = 127;

pub(crate) struct SkyTarget {
    /// The name of the target.
    pub(crate) name: String,
    /// The folder on the disk of a machine.
    pub(crate) folder: String,
    pub(crate) settings: Box<SkySettings>,
    /// A folder that only the user may enter.
    pub(crate) private: PathBuf,
}

/// The job name of a repetition.
fn job_name(id: &str, repetition: usize) -> String {
    format!("{id}-{repetition}")
}

/// The file with the number of the last start of a launch.
fn submitted_path(id: &str) -> String {
    format!("jobs/{id}/submitted")
}

/// The file with the number of the last start that was stopped.
fn stopped_path(id: &str) -> String {
    format!("jobs/{id}/stop")
}

impl SkyTarget {
    fn bucket(&self) -> Result<Bucket> {
        Bucket::open(&self.name, &self.settings.bucket)
    }

    fn error(&self, ended: &ScriptExit, task: &str) -> Error {
        if ended.code == Some(COMMAND_NOT_FOUND) {
            let problem = format!("{}: command `sky` not found", self.name);
            return Error::target(
                problem,
                "install SkyPilot: pip install \"skypilot[aws]\", then `sky check`",
            );
        }
        ended.to_error(&LocalShell { name: self.name.clone() }, task)
    }

    /// Runs `sky` with these arguments and returns its output; `task` describes it in errors.
    fn run_sky(&self, task: &str, arguments: &[&str]) -> Result<String> {
        let shell = LocalShell { name: self.name.clone() };
        let (ended, text) = shell::run_for_text(&shell, "exec sky \"$@\"", arguments, b"")?;
        if ended.code == Some(0) { Ok(text) } else { Err(self.error(&ended, task)) }
    }

    fn queue(&self) -> Result<JobQueue> {
        let text = self.run_sky("query SkyPilot's queue", &["jobs", "queue", "--all", "--output", "json"])?;
        JobQueue::parse(&text).ok_or_else(|| {
            let problem = format!("{}: the output of `sky jobs queue` is not valid", self.name);
            Error::target(problem, "`sky jobs queue --output json` needs SkyPilot 0.11 or newer")
        })
    }

    /// Queries the state of a launch from the bucket and the queue.
    fn query_state(
        &self,
        bucket: &Bucket,
        id: &str,
        repetitions: usize,
        queue: &JobQueue,
    ) -> Result<LaunchState> {
        let mut text = String::new();
        for number in 1..=repetitions {
            let saved = bucket.text(&format!("jobs/{id}/{number}/state"))?;
            // A missing or duplicate state would shift the numbers of all later repetitions.
            let saved = saved.filter(|saved| saved.matches("repetition=").count() == 1);
            text += &saved.unwrap_or_else(|| "repetition=\n".to_owned());
            text.push('\n');
        }
        let mut state = parse_state(&text, id, queue);
        let stopped_start = bucket.number(&stopped_path(id))?.unwrap_or(0);
        state.stopped = stopped_start >= bucket.number(&submitted_path(id))?.unwrap_or(1);
        Ok(state)
    }
}

#[cfg(fuzzing)]
pub(crate) fn fuzz(text: &str) {
    if let Some(queue) = JobQueue::parse(text) {
        let _ = parse_state(text, "id", &queue);
    }
}

/// Parses the state of a launch from the states of its jobs and the queue.
fn parse_state(text: &str, id: &str, queue: &JobQueue) -> LaunchState {
    let (mut state, started) = LaunchState::parse_fields(text, &[]);
    for (one, started) in state.repetitions.iter_mut().zip(started) {
        let queued = queue.get(&job_name(id, one.repetition));
        let (is_live, is_running) =
            queued.map_or((false, false), |queued| (queued.is_live(), queued.is_running()));
        one.queue = queued.map(ToString::to_string);
        // The saved age is out of date.
        one.heartbeat_s = None;
        one.status = match one.derive_status(started, is_running) {
            RepetitionStatus::Completed => RepetitionStatus::Completed,
            _ if is_running => RepetitionStatus::Running,
            _ if is_live => RepetitionStatus::Waiting,
            // The job failed before its script started: no machine, or a failed setup.
            RepetitionStatus::Waiting | RepetitionStatus::Interrupted
                if queued.is_some_and(queue::QueuedJob::failed) =>
            {
                RepetitionStatus::Failed
            }
            status => status,
        };
        state.is_running |= is_live && one.status != RepetitionStatus::Completed;
    }
    state.owner = describe_owners(&state, "SkyPilot");
    state
}

impl Target for SkyTarget {
    fn files(&self, job: &Job) -> Vec<(String, String)> {
        task::job_files(self, job, 1)
    }

    fn prepare(&self, options: &PrepareOptions<'_>) -> Result<PreparedTarget> {
        // Checks that jobs can be submitted before anything is uploaded.
        self.run_sky("use SkyPilot", &["--version"])?;
        let bucket = self.bucket()?;
        let file_sets: Vec<&FileSet> =
            std::iter::once(&options.executable.file_set).chain(options.file_sets).collect();
        let (files, bytes) = bucket.upload_missing(&file_sets)?;
        let mut notes = Vec::new();
        if self.settings.instance.is_none() {
            notes.push(format!(
                "{}: machines with other CPUs may use other kernels, whose results differ in the last bits; \
                 set `instance` to use one kind of machine",
                self.name
            ));
        }
        Ok(PreparedTarget {
            root: self.settings.root(),
            folders: file_sets.iter().map(|file_set| file_set.remote_folder()).collect(),
            files,
            bytes,
            cpu_model: String::new(),
            hosts: Vec::new(),
            notes,
        })
    }

    fn measure_link(&self, program: &str) -> Result<LinkMeasurement> {
        let root = format!("{}/", self.settings.root());
        let path = program.strip_prefix(&root).unwrap_or(program);
        let began = Instant::now();
        let bytes = self.bucket()?.first_bytes(path)?;
        // Clouds synchronise the clocks of their machines.
        Ok(LinkMeasurement {
            clock_offset_s: 0,
            bytes_per_s: bytes as f64 / began.elapsed().as_secs_f64().max(1e-3),
        })
    }

    fn submit(&self, _: &str, job: &Job) -> Result<()> {
        let (bucket, queue) = (self.bucket()?, self.queue()?);
        let repetitions = job.experiments.len();
        let state = self.query_state(&bucket, &job.id, repetitions, &queue)?;
        let is_live = |number| queue.get(&job_name(&job.id, number)).is_some_and(queue::QueuedJob::is_live);
        let open: Vec<usize> = state
            .repetitions
            .iter()
            .filter(|one| one.status != RepetitionStatus::Completed && !is_live(one.repetition))
            .map(|one| one.repetition)
            .collect();
        if open.is_empty() {
            return if state.is_running {
                Err(already_running_error(&self.name, &job.id, &state.owner))
            } else {
                Ok(())
            };
        }
        // An earlier stop request does not stop this start.
        let number = bucket.number(&stopped_path(&job.id))?.unwrap_or(0) + 1;
        bucket.write(&submitted_path(&job.id), &number.to_string())?;
        let files = task::job_files(self, job, number);
        fs::create_dir_all(&self.private).map_err(Error::file("create", &self.private))?;
        for number in open {
            let prefix = format!("{number}/");
            for (path, text) in files.iter().filter(|(path, _)| path.starts_with(&prefix)) {
                bucket.write(&format!("jobs/{}/{path}", job.id), text)?;
            }
            let name = job_name(&job.id, number);
            let task = task::task_file(self, job, number);
            let file = self.private.join(format!("{name}.yaml"));
            fs::write(&file, task).map_err(Error::file("write", &file))?;
            let path = file.display().to_string();
            let arguments = ["jobs", "launch", "--yes", "--detach-run", "--name", &name, &path];
            let started = self.run_sky("submit the job to SkyPilot", &arguments);
            // A remaining task file does no harm.
            let _ = fs::remove_file(&file);
            started?;
        }
        Ok(())
    }

    fn state(&self, launch: &LaunchRecord) -> Result<LaunchState> {
        self.query_state(&self.bucket()?, &launch.id, launch.runs.len(), &self.queue()?)
    }

    fn logs(&self, launch: &LaunchRecord, repetition: usize, from: u64, out: &mut dyn Write) -> Result<u64> {
        let name = job_name(&launch.id, repetition);
        let arguments = ["jobs", "logs", "--name", &name, "--no-follow", "--tail", "0"];
        let copy = |input: &mut dyn Read| {
            // `sky` prints the log from its start; skips the part that was already printed.
            let skipped = std::io::copy(&mut input.take(from), &mut std::io::sink()).unwrap_or(0);
            Ok(skipped + shell::copy_escaped(input, out))
        };
        let shell = LocalShell { name: self.name.clone() };
        let (ended, bytes) = shell::run(&shell, "exec sky \"$@\"", &arguments, |_| Ok(()), copy)?;
        if ended.code == Some(0) { Ok(bytes) } else { Err(self.error(&ended, "read the log")) }
    }

    fn fetch(&self, launch: &LaunchRecord, repetition: usize, into: &Path) -> Result<FetchStats> {
        self.bucket()?.fetch(&format!("jobs/{}/{repetition}", launch.id), into)
    }

    fn stop(&self, launch: &LaunchRecord) -> Result<bool> {
        let (bucket, queue) = (self.bucket()?, self.queue()?);
        let live = (1..=launch.runs.len()).filter_map(|number| {
            let name = job_name(&launch.id, number);
            let queued = queue.get(&name).filter(|queued| queued.is_live())?;
            Some((name, queued.is_running()))
        });
        let live: Vec<(String, bool)> = live.collect();
        if live.is_empty() {
            return Ok(false);
        }
        // Running jobs see the stop request and save a checkpoint; waiting jobs are cancelled.
        let number = bucket.number(&submitted_path(&launch.id))?.unwrap_or(1);
        bucket.write(&stopped_path(&launch.id), &number.to_string())?;
        for (name, _) in live.iter().filter(|(_, is_running)| !is_running) {
            self.run_sky("cancel the job", &["jobs", "cancel", "--yes", "--name", name])?;
        }
        Ok(true)
    }

    fn release(&self) {}
}

#[cfg(test)]
mod tests {
    use super::{JobQueue, parse_state};
    use crate::RepetitionStatus;

    #[test]
    fn status_follows_from_saved_state_and_queue() {
        let queue = r#"Some word of the server.
            [{"job_id": 9, "job_name": "x-2", "status": "RUNNING", "failure_reason": null},
             {"job_id": 4, "job_name": "x-2", "status": "CANCELLED"},
             {"job_id": 5, "job_name": "x-3", "status": "RECOVERING"},
             {"job_id": 6, "job_name": "x-4", "status": "FAILED_NO_RESOURCE", "failure_reason": "\u001b[2J"},
             {"job_id": 7, "job_name": "x-5", "status": "CANCELLED"},
             {"job_id": 8, "job_name": "x-1", "status": "SUCCEEDED"}, {"job_id": "?"}, 7]"#;
        let queue = JobQueue::parse(queue).unwrap();
        let text = "repetition=1\nexit=0\nbegun=1\nrepetition=2\nbegun=1\nowner=t node 4 9\nheartbeat_s=2\n\
                    repetition=3\nbegun=1\nexit=75\nrepetition=\nrepetition=5\nbegun=1\nrepetition=6\n";
        let state = parse_state(text, "x", &queue);
        let statuses: Vec<RepetitionStatus> = state.repetitions.iter().map(|one| one.status).collect();
        use RepetitionStatus::{Completed, Failed, Interrupted, Running, Waiting};
        assert_eq!(statuses, [Completed, Running, Waiting, Failed, Interrupted, Waiting]);
        let queue = state.repetitions[3].queue.as_deref().unwrap();
        assert!(queue.starts_with("FAILED_NO_RESOURCE: ") && !queue.contains('\u{1b}'), "{queue}");
        assert!(state.is_running);
        assert_eq!((state.owner.as_str(), state.heartbeat_s), ("node, process 4", None));
        for wrong in ["", "nothing", "{}", "[1"] {
            assert!(JobQueue::parse(wrong).is_none(), "{wrong}");
        }
    }
}
