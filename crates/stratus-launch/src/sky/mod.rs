//! The kind `sky`: machines of clouds and of Kubernetes, through SkyPilot's managed jobs.
//!
//! What is brought and what comes back lies in a bucket, which the machines mount: none of them is there when
//! a launch begins, and any may be taken away. A repetition is a job of its own, named by the launch and its
//! number. SkyPilot finds the machine, and another one where it was taken away; the script there keeps the
//! run in the bucket with every checkpoint, and goes on from there.
//!
//! The command `sky` is used, with what it knows of accounts. Requests to the bucket are this program's own.

mod bucket;
mod queue;
mod task;

use crate::job::{Job, Record, State, Status};
use crate::local::Local;
use crate::shell::{self, Ended};
use crate::target::{Link, Needs, Prepared, Target, taken};
use crate::{Error, Fetched, Parcel, Result, SkySettings};
use bucket::Bucket;
use queue::Queue;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The exit code of a shell that does not find a program.
const NOT_FOUND: i32 = 127;
/// The most repetitions whose queue is told in a message.
const MOST_NAMED: usize = 8;

pub(crate) struct Sky {
    /// The target.
    pub(crate) name: String,
    /// The folder on a machine's own disk.
    pub(crate) folder: String,
    pub(crate) settings: Box<SkySettings>,
    /// A folder that nobody else can enter.
    pub(crate) private: PathBuf,
}

/// The job of a repetition.
fn job_name(id: &str, repetition: usize) -> String {
    format!("{id}-{repetition}")
}

/// The number of a launch's last start; `stop` has that of the last which was stopped.
fn submitted(id: &str) -> String {
    format!("jobs/{id}/submitted")
}

fn stopped(id: &str) -> String {
    format!("jobs/{id}/stop")
}

impl Sky {
    fn bucket(&self) -> Result<Bucket> {
        Bucket::open(&self.name, &self.settings.bucket)
    }

    fn error(&self, ended: &Ended, what: &str) -> Error {
        if ended.code == Some(NOT_FOUND) {
            let problem = format!("{}: there is no command `sky`", self.name);
            return Error::target(
                problem,
                "install SkyPilot: pip install \"skypilot[aws]\", then `sky check`",
            );
        }
        ended.error(&Local { name: self.name.clone() }, what)
    }

    /// What `sky` with these arguments answers.
    fn sky(&self, what: &str, arguments: &[&str]) -> Result<String> {
        let shell = Local { name: self.name.clone() };
        let (ended, text) = shell::text(&shell, "exec sky \"$@\"", arguments, b"")?;
        if ended.code == Some(0) { Ok(text) } else { Err(self.error(&ended, what)) }
    }

    fn queue(&self) -> Result<Queue> {
        let text = self.sky("see SkyPilot's queue", &["jobs", "queue", "--all", "--output", "json"])?;
        Queue::parse(&text).ok_or_else(|| {
            let problem = format!("{}: SkyPilot's queue is no list that is understood", self.name);
            Error::target(problem, "`sky jobs queue --output json` is of SkyPilot 0.11 and newer")
        })
    }

    /// How a launch stands, by what its jobs keep and by the queue.
    fn stands(&self, bucket: &Bucket, id: &str, repetitions: usize, queue: &Queue) -> Result<State> {
        let mut text = String::new();
        for number in 1..=repetitions {
            let said = bucket.text(&format!("jobs/{id}/{number}/state"))?;
            // One that says nothing, or several, would shift the numbers of all behind it.
            let said = said.filter(|said| said.matches("repetition=").count() == 1);
            text += &said.unwrap_or_else(|| "repetition=\n".to_owned());
            text.push('\n');
        }
        let mut state = state(&text, id, queue);
        let is_stopped = bucket.number(&stopped(id))?.unwrap_or(0);
        state.stopped = is_stopped >= bucket.number(&submitted(id))?.unwrap_or(1);
        Ok(state)
    }
}

/// How a launch stands, by what its jobs say and by the queue.
fn state(text: &str, id: &str, queue: &Queue) -> State {
    let (mut state, begun) = State::facts(text);
    for (one, begun) in state.repetitions.iter_mut().zip(begun) {
        let queued = queue.get(&job_name(id, one.repetition));
        let (is_live, runs) = queued.map_or((false, false), |queued| (queued.is_live(), queued.runs()));
        one.queue = queued.map(ToString::to_string);
        // It was told when it beat.
        one.heartbeat_s = None;
        one.status = match one.stands(begun, runs) {
            Status::Completed => Status::Completed,
            _ if runs => Status::Running,
            _ if is_live => Status::Waiting,
            // It never came to a script that says so: no machine, no set-up.
            Status::Waiting | Status::Interrupted if queued.is_some_and(queue::Queued::failed) => {
                Status::Failed
            }
            status => status,
        };
        state.alive |= is_live && one.status != Status::Completed;
    }
    let running = state.repetitions.iter().filter(|one| one.status == Status::Running);
    let owners: Vec<&str> = running.filter_map(|one| one.owner.as_deref()).take(MOST_NAMED).collect();
    state.owner = if owners.is_empty() && state.alive { "SkyPilot".to_owned() } else { owners.join("; ") };
    state
}

impl Target for Sky {
    fn files(&self, job: &Job) -> Vec<(String, String)> {
        task::files(self, job, 1)
    }

    fn prepare(&self, needs: &Needs<'_>) -> Result<Prepared> {
        // Before anything is sent: whether there is somebody who can start it.
        self.sky("use SkyPilot", &["--version"])?;
        let bucket = self.bucket()?;
        let parcels: Vec<&Parcel> = std::iter::once(&needs.program.parcel).chain(needs.parcels).collect();
        let (files, bytes) = bucket.bring(&parcels)?;
        let mut notes = Vec::new();
        if self.settings.instance.is_none() {
            notes.push(format!(
                "{}: machines with other processors may choose other kernels, which differ in the last bits: \
                 `instance` names one kind of machine",
                self.name
            ));
        }
        Ok(Prepared {
            root: self.settings.root(),
            folders: parcels.iter().map(|parcel| parcel.folder()).collect(),
            files,
            bytes,
            processor: String::new(),
            hosts: Vec::new(),
            notes,
        })
    }

    fn link(&self, program: &str) -> Result<Link> {
        let root = format!("{}/", self.settings.root());
        let path = program.strip_prefix(&root).unwrap_or(program);
        let began = Instant::now();
        let bytes = self.bucket()?.first_bytes(path)?;
        // Clouds keep their machines' clocks.
        Ok(Link { ahead_s: 0, bytes_per_s: bytes as f64 / began.elapsed().as_secs_f64().max(1e-3) })
    }

    fn submit(&self, _: &str, job: &Job) -> Result<()> {
        let (bucket, queue) = (self.bucket()?, self.queue()?);
        let repetitions = job.experiments.len();
        let state = self.stands(&bucket, &job.id, repetitions, &queue)?;
        let is_live = |number| queue.get(&job_name(&job.id, number)).is_some_and(queue::Queued::is_live);
        let open: Vec<usize> = state
            .repetitions
            .iter()
            .filter(|one| one.status != Status::Completed && !is_live(one.repetition))
            .map(|one| one.repetition)
            .collect();
        if open.is_empty() {
            return if state.alive { Err(taken(&self.name, &job.id, &state.owner)) } else { Ok(()) };
        }
        // What was stopped before this start does not stop it.
        let number = bucket.number(&stopped(&job.id))?.unwrap_or(0) + 1;
        bucket.write(&submitted(&job.id), &number.to_string())?;
        let files = task::files(self, job, number);
        fs::create_dir_all(&self.private).map_err(Error::file("make", &self.private))?;
        for number in open {
            let of_it = format!("{number}/");
            for (path, text) in files.iter().filter(|(path, _)| path.starts_with(&of_it)) {
                bucket.write(&format!("jobs/{}/{path}", job.id), text)?;
            }
            let name = job_name(&job.id, number);
            let task = task::task(self, job, number);
            let file = self.private.join(format!("{name}.yaml"));
            fs::write(&file, task).map_err(Error::file("write", &file))?;
            let path = file.display().to_string();
            let arguments = ["jobs", "launch", "--yes", "--detach-run", "--name", &name, &path];
            let started = self.sky("hand the job to SkyPilot", &arguments);
            // One that stays does no harm.
            let _ = fs::remove_file(&file);
            started?;
        }
        Ok(())
    }

    fn state(&self, launch: &Record) -> Result<State> {
        self.stands(&self.bucket()?, &launch.id, launch.runs.len(), &self.queue()?)
    }

    fn logs(&self, launch: &Record, repetition: usize, from: u64, out: &mut dyn Write) -> Result<u64> {
        let name = job_name(&launch.id, repetition);
        let arguments = ["jobs", "logs", "--name", &name, "--no-follow", "--tail", "0"];
        let copy = |input: &mut dyn Read| {
            // What was shown comes again, and is passed over.
            let passed = std::io::copy(&mut input.take(from), &mut std::io::sink()).unwrap_or(0);
            Ok(passed + shell::show(input, out))
        };
        let shell = Local { name: self.name.clone() };
        let (ended, bytes) = shell::run(&shell, "exec sky \"$@\"", &arguments, |_| Ok(()), copy)?;
        if ended.code == Some(0) { Ok(bytes) } else { Err(self.error(&ended, "read the log")) }
    }

    fn fetch(&self, launch: &Record, repetition: usize, into: &Path) -> Result<Fetched> {
        self.bucket()?.fetch(&format!("jobs/{}/{repetition}", launch.id), into)
    }

    fn stop(&self, launch: &Record) -> Result<bool> {
        let (bucket, queue) = (self.bucket()?, self.queue()?);
        let live = (1..=launch.runs.len()).filter_map(|number| {
            let name = job_name(&launch.id, number);
            let queued = queue.get(&name).filter(|queued| queued.is_live())?;
            Some((name, queued.runs()))
        });
        let live: Vec<(String, bool)> = live.collect();
        if live.is_empty() {
            return Ok(false);
        }
        // Those that run hear it, and end with a checkpoint; those that wait have none to write.
        let number = bucket.number(&submitted(&launch.id))?.unwrap_or(1);
        bucket.write(&stopped(&launch.id), &number.to_string())?;
        for (name, _) in live.iter().filter(|(_, runs)| !runs) {
            self.sky("cancel the job", &["jobs", "cancel", "--yes", "--name", name])?;
        }
        Ok(true)
    }

    fn release(&self) {}
}

#[cfg(test)]
mod tests {
    use super::{Queue, state};
    use crate::Status;

    #[test]
    fn a_repetition_stands_as_its_job_keeps_and_the_queue_says() {
        let queue = r#"Some word of the server.
            [{"job_id": 9, "job_name": "x-2", "status": "RUNNING", "failure_reason": null},
             {"job_id": 4, "job_name": "x-2", "status": "CANCELLED"},
             {"job_id": 5, "job_name": "x-3", "status": "RECOVERING"},
             {"job_id": 6, "job_name": "x-4", "status": "FAILED_NO_RESOURCE", "failure_reason": "\u001b[2J"},
             {"job_id": 7, "job_name": "x-5", "status": "CANCELLED"},
             {"job_id": 8, "job_name": "x-1", "status": "SUCCEEDED"}, {"job_id": "?"}, 7]"#;
        let queue = Queue::parse(queue).unwrap();
        let text = "repetition=1\nexit=0\nbegun=1\nrepetition=2\nbegun=1\nowner=t node 4 9\nheartbeat_s=2\n\
                    repetition=3\nbegun=1\nexit=75\nrepetition=\nrepetition=5\nbegun=1\nrepetition=6\n";
        let state = state(text, "x", &queue);
        let statuses: Vec<Status> = state.repetitions.iter().map(|one| one.status).collect();
        use Status::{Completed, Failed, Interrupted, Running, Waiting};
        assert_eq!(statuses, [Completed, Running, Waiting, Failed, Interrupted, Waiting]);
        let queue = state.repetitions[3].queue.as_deref().unwrap();
        assert!(queue.starts_with("FAILED_NO_RESOURCE: ") && !queue.contains('\u{1b}'), "{queue}");
        assert!(state.alive);
        assert_eq!((state.owner.as_str(), state.heartbeat_s), ("node, process 4", None));
        for wrong in ["", "nothing", "{}", "[1"] {
            assert!(Queue::parse(wrong).is_none(), "{wrong}");
        }
    }
}
