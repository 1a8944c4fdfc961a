//! The trait that all kinds of targets implement, and its implementation for a host with a shell.

use crate::file_set::{FileEntry, FileSet};
use crate::job::{self, Job, LaunchRecord, LaunchState, RepetitionStatus};
use crate::lease::LinkMeasurement;
use crate::local_file::LocalFile;
use crate::shell::frame::unique_token;
use crate::shell::{self, ScriptExit, Shell};
use crate::{Error, Executable, FetchStats, Resources, Result, executable, fetch, notices};
use flate2::{Compression, write::GzEncoder};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use stratus_base::printable;

/// Files of at least this size are uploaded separately, so that a partial upload can be resumed.
const LARGE_FILE_BYTES: u64 = 4 << 20;
/// The maximum size of a batch of smaller files.
const MAX_BATCH_BYTES: u64 = 16 << 20;
/// The number of bytes transferred to measure the bandwidth of a connection.
const PROBE_BYTES: u64 = 4 << 20;
/// Disk space of the target that must stay free.
const RESERVED_DISK_BYTES: u64 = 256 << 20;

/// The requirements of a launch.
#[derive(Clone, Copy, Debug)]
pub struct PrepareOptions<'a> {
    /// The executable.
    pub executable: &'a Executable,
    /// Other file sets to upload.
    pub file_sets: &'a [FileSet],
    /// The number of repetitions.
    pub repetitions: usize,
    /// The resources of a repetition.
    pub resources: Resources,
    /// Skips hosts whose CPU model differs from the first.
    pub same_cpu_only: bool,
}

/// A target that is ready to train.
#[derive(Clone, Debug, PartialEq)]
pub struct PreparedTarget {
    /// The folder of the target.
    pub root: String,
    /// The folders of the executable and of each file set, relative to `root`.
    pub folders: Vec<String>,
    /// The number of uploaded files.
    pub files: usize,
    /// The number of uploaded bytes.
    pub bytes: u64,
    /// The CPU model.
    pub cpu_model: String,
    /// The hosts that are ready, for targets with several hosts.
    pub hosts: Vec<String>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// A kind of target.
pub trait Target {
    /// The files of a job on the target.
    fn files(&self, job: &Job) -> Vec<(String, String)> {
        job.files()
    }

    /// Checks the target and uploads missing files.
    ///
    /// # Errors
    /// If the target cannot be reached or used, or an upload fails. Uploaded files stay.
    fn prepare(&self, options: &PrepareOptions<'_>) -> Result<PreparedTarget>;

    /// Measures the connection by downloading a part of the uploaded executable.
    ///
    /// # Errors
    /// If the target cannot be reached.
    fn measure_link(&self, program: &str) -> Result<LinkMeasurement>;

    /// Starts or resumes a job, which outlives the connection.
    ///
    /// # Errors
    /// If the job is already running; the error names its owner.
    fn submit(&self, root: &str, job: &Job) -> Result<()>;

    /// Reschedules lost repetitions; with `retry_stopped`, also stopped and failed ones. `save_record` writes
    /// the record before anything is started. Returns messages about the changes. Targets whose queue
    /// reschedules on its own do nothing.
    ///
    /// # Errors
    /// If the target cannot be reached.
    fn reschedule(
        &self,
        _record: &mut LaunchRecord,
        _job: &Job,
        _retry_stopped: bool,
        _save_record: &mut dyn FnMut(&LaunchRecord) -> Result<()>,
    ) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// The number of repetitions that a search keeps on the target.
    fn slots(&self) -> usize {
        1
    }

    /// Starts the selected repetitions of a job that may be running. Targets that start them when they
    /// reschedule do nothing.
    ///
    /// # Errors
    /// If the target cannot be reached.
    fn extend(&self, _root: &str, _job: &Job) -> Result<()> {
        Ok(())
    }

    /// Queries the state of a launch.
    ///
    /// # Errors
    /// If the target cannot be reached.
    fn state(&self, launch: &LaunchRecord) -> Result<LaunchState>;

    /// Writes the log of a repetition from byte `from` on and returns its new length.
    ///
    /// # Errors
    /// If the target cannot be reached.
    fn logs(&self, launch: &LaunchRecord, repetition: usize, from: u64, out: &mut dyn Write) -> Result<u64>;

    /// Fetches the new files of a repetition's run directory.
    ///
    /// # Errors
    /// If the target cannot be reached. Fetched bytes stay; the next fetch resumes.
    fn fetch(&self, launch: &LaunchRecord, repetition: usize, into: &Path) -> Result<FetchStats>;

    /// Requests that a job save a checkpoint and stop. Returns whether anything was running or queued.
    ///
    /// # Errors
    /// If the target cannot be reached.
    fn stop(&self, launch: &LaunchRecord) -> Result<bool>;

    /// Releases connections; files stay.
    fn release(&self);
}

/// A host with a shell.
pub(crate) struct ShellTarget {
    pub(crate) shell: Box<dyn Shell>,
    pub(crate) folder: String,
}

/// The output of `check.sh`.
#[derive(Default)]
struct HostFacts {
    root: String,
    free_bytes: Option<u64>,
    cpu_model: String,
    has_gzip: bool,
}

impl ShellTarget {
    /// Runs a script and returns its output; `task` describes it in errors.
    pub(crate) fn run_for_text(
        &self,
        task: &str,
        script: &str,
        arguments: &[&str],
        input: &str,
    ) -> Result<String> {
        shell::run_to_text(&*self.shell, task, script, arguments, input)
    }

    /// Runs a script whose input is a text followed by a tar archive of files, and returns its output.
    pub(crate) fn run_with_files(
        &self,
        script: &str,
        arguments: &[&str],
        (before, files): (&str, &[(String, String)]),
    ) -> Result<(ScriptExit, String)> {
        let send = |out: &mut dyn Write| {
            out.write_all(before.as_bytes())?;
            let mut tar = tar::Builder::new(out);
            for (path, text) in files {
                append_file(&mut tar, path, text.len() as u64, text.as_bytes())?;
            }
            tar.finish()
        };
        let read = |from: &mut dyn Read| {
            let mut text = Vec::new();
            // Read errors only shorten the output.
            let _ = from.take(4096).read_to_end(&mut text);
            Ok(String::from_utf8_lossy(&text).into_owned())
        };
        shell::run(&*self.shell, script, arguments, send, read)
    }

    /// Claims a waiting repetition, so that the host's training script skips it; false if it was started.
    pub(crate) fn claim(&self, root: &str, id: &str, repetition: usize) -> Result<bool> {
        let arguments = [root, id, &repetition.to_string()];
        let script = include_str!("../scripts/claim.sh");
        Ok(self.run_for_text("claim a repetition", script, &arguments, "")?.trim() == "claimed")
    }

    /// Stops the training process of a repetition that was reassigned.
    pub(crate) fn revoke(&self, root: &str, id: &str) -> Result<()> {
        self.run_for_text("stop training", include_str!("../scripts/revoke.sh"), &[root, id], "").map(drop)
    }

    /// Withdraws a request to stop a host without a training process.
    pub(crate) fn withdraw_stop(&self, root: &str, id: &str) -> Result<()> {
        let script = include_str!("../scripts/clear-stop.sh");
        self.run_for_text("withdraw the request to stop", script, &[root, id], "").map(drop)
    }

    /// Returns the output of a state script; `None` if the folder of the launch does not exist.
    pub(crate) fn state_text(&self, launch: &LaunchRecord, script: &str) -> Result<Option<String>> {
        let numbers: Vec<String> = (1..=launch.runs.len()).map(|number| number.to_string()).collect();
        let mut arguments = vec![launch.root.as_str(), launch.id.as_str()];
        arguments.extend(numbers.iter().map(String::as_str));
        let (ended, text) = shell::run_for_text(&*self.shell, script, &arguments, b"")?;
        match ended.code {
            Some(0) => Ok(Some(text)),
            Some(16) => Ok(None),
            _ => Err(ended.to_error(&*self.shell, "query the job")),
        }
    }

    /// Queries the state of a launch; `None` if its folder does not exist.
    pub(crate) fn query_state(&self, launch: &LaunchRecord) -> Result<Option<LaunchState>> {
        let script = concat!(include_str!("../scripts/repetition.sh"), include_str!("../scripts/state.sh"));
        Ok(self
            .state_text(launch, script)?
            .map(|text| LaunchState::from_script_output(&text, &launch.goals())))
    }

    /// The error of a launch whose folder does not exist.
    pub(crate) fn missing_job_error(&self, launch: &LaunchRecord) -> Error {
        let (name, LaunchRecord { id, root, .. }) = (self.shell.name(), launch);
        Error::target(
            format!("{name}: {root}/jobs/{id} no longer exists"),
            "launch it again; model.weights=RUN starts from the weights of the fetched run",
        )
    }

    fn check_host(&self, program: &Executable) -> Result<HostFacts> {
        let script = include_str!("../scripts/check.sh");
        let task = format!("use the folder {}", self.folder);
        let text = self.run_for_text(&task, script, &[&self.folder], "")?;
        let fact = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            value.unwrap_or_default().trim()
        };
        let name = self.shell.name();
        let fail = |problem: String, hint: &str| Err(Error::target(format!("{name}: {problem}"), hint));
        if !fact("missing").is_empty() {
            let missing = printable(fact("missing"));
            return fail(format!("missing programs: {missing}"), "install coreutils, util-linux, tar");
        }
        let machine = (fact("system"), fact("architecture"));
        let expected = ("Linux", program.architecture);
        if machine != expected
            && (machine.0 != expected.0 || machine.1.replace("arm64", "aarch64") != expected.1)
        {
            return fail(
                format!(
                    "the host is {} on {}, the program is for Linux on {}",
                    printable(machine.0),
                    printable(machine.1),
                    expected.1
                ),
                "launch with a program built for that platform",
            );
        }
        let found = fact("glibc").rsplit(' ').next().and_then(executable::parse_version);
        if let Some((major, minor)) = program.glibc.filter(|needed| found.is_none_or(|found| found < *needed))
        {
            let found = found.map_or("none".to_owned(), |(major, minor)| format!("{major}.{minor}"));
            return fail(
                format!("the host has glibc {found}, the program needs {major}.{minor}"),
                "launch with the program of `make dist` in a checkout, which needs glibc 2.28",
            );
        }
        let root = fact("root").to_owned();
        if !root.starts_with('/') || root.chars().any(char::is_control) {
            return fail(
                format!("its folder {} is not a valid path", printable(&root)),
                "set another `folder`",
            );
        }
        let free_bytes = fact("free_kib").parse().ok().map(|kib: u64| kib.saturating_mul(1024));
        let has_gzip = !fact("gzip").is_empty();
        Ok(HostFacts { root, free_bytes, cpu_model: printable(fact("processor")), has_gzip })
    }

    /// Uploads missing files and returns their number and size.
    fn upload_missing(&self, facts: &HostFacts, items: &[&FileEntry]) -> Result<(usize, u64)> {
        let root = &facts.root;
        let hashes: String = items.iter().map(|item| format!("{}\n", item.hash)).collect();
        let text = self.run_for_text(
            "list existing files",
            include_str!("../scripts/missing.sh"),
            &[root],
            &hashes,
        )?;
        let mut missing: Vec<(&FileEntry, u64)> = Vec::new();
        for line in text.lines() {
            let Some((hash, bytes)) = line.split_once(' ') else { continue };
            let item = items.iter().find(|item| item.hash == hash);
            let offset = bytes.trim().parse().unwrap_or(0);
            if let Some(item) = item.filter(|item| missing.iter().all(|(other, _)| other.hash != item.hash)) {
                missing.push((item, offset));
            }
        }
        let bytes: u64 = missing.iter().map(|(item, offset)| item.size.saturating_sub(*offset)).sum();
        let problem = format!("{}: not enough disk space", self.shell.name());
        let hint = format!("free disk space there, or set another `folder` than {root}");
        fetch::check_space(facts.free_bytes, bytes, RESERVED_DISK_BYTES, &problem, &hint)?;
        let mut batch: Vec<&FileEntry> = Vec::new();
        for (item, offset) in &missing {
            if item.size >= LARGE_FILE_BYTES {
                self.upload_large(facts, item, *offset)?;
                continue;
            }
            batch.push(item);
            if batch.iter().map(|item| item.size + 512).sum::<u64>() >= MAX_BATCH_BYTES {
                self.upload_batch(root, &std::mem::take(&mut batch))?;
            }
        }
        if !batch.is_empty() {
            self.upload_batch(root, &batch)?;
        }
        Ok((missing.len(), bytes))
    }

    /// Uploads a file from `offset` on. Programs and libraries are compressed, to about a half.
    fn upload_large(&self, facts: &HostFacts, item: &FileEntry, offset: u64) -> Result<()> {
        let offset = if offset > item.size { 0 } else { offset };
        let compressed = facts.has_gzip && executable::is_elf(&item.source);
        let coding = if compressed { "gzip" } else { "" };
        let arguments = [&*facts.root, &item.hash, &offset.to_string(), &item.size.to_string(), coding];
        let send = |out: &mut dyn Write| {
            let mut bytes = LocalFile::open(&item.source, offset)?.take(item.size - offset);
            if !compressed {
                return io::copy(&mut bytes, out).map(drop);
            }
            let mut encoder = GzEncoder::new(out, Compression::default());
            io::copy(&mut bytes, &mut encoder)?;
            encoder.finish().map(drop)
        };
        let script = include_str!("../scripts/receive-large.sh");
        let (ended, ()) = shell::run(&*self.shell, script, &arguments, send, shell::drain)?;
        match ended.code {
            Some(0) => Ok(()),
            Some(15) => Err(Error::target(
                format!("{}: checksum mismatch: {}", self.shell.name(), item.source.display()),
                "do not change the file during the upload, and launch again",
            )),
            _ => Err(ended.to_error(&*self.shell, &format!("receive {}", item.source.display()))),
        }
    }

    fn upload_batch(&self, root: &str, items: &[&FileEntry]) -> Result<()> {
        let send = |out: &mut dyn Write| {
            let mut tar = tar::Builder::new(out);
            for item in items {
                let file = LocalFile::open(&item.source, 0)?;
                append_file(&mut tar, &item.hash, item.size, file.take(item.size))?;
            }
            tar.finish()
        };
        let script = include_str!("../scripts/receive-small.sh");
        shell::run_to_success(&*self.shell, "receive files", script, &[root], send, shell::drain)
    }
}

/// Appends a file to a tar archive.
pub(crate) fn append_file(
    tar: &mut tar::Builder<&mut dyn Write>,
    path: &str,
    size: u64,
    bytes: impl Read,
) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(0o600);
    tar.append_data(&mut header, path, bytes)
}

impl Target for ShellTarget {
    fn prepare(&self, options: &PrepareOptions<'_>) -> Result<PreparedTarget> {
        let facts = self.check_host(options.executable)?;
        let file_sets: Vec<&FileSet> =
            std::iter::once(&options.executable.file_set).chain(options.file_sets).collect();
        let items: Vec<&FileEntry> = file_sets.iter().flat_map(|file_set| &file_set.files).collect();
        let (files, bytes) = self.upload_missing(&facts, &items)?;
        let mut folders = Vec::new();
        for file_set in file_sets {
            let folder = file_set.remote_folder();
            let lines: String =
                file_set.files.iter().map(|item| format!("{} {}\n", item.hash, item.path)).collect();
            self.run_for_text(
                "create a folder",
                include_str!("../scripts/assemble-folder.sh"),
                &[&facts.root, &folder],
                &lines,
            )?;
            folders.push(folder);
        }
        let HostFacts { root, cpu_model, .. } = facts;
        Ok(PreparedTarget { root, folders, files, bytes, cpu_model, hosts: Vec::new(), notes: Vec::new() })
    }

    fn measure_link(&self, program: &str) -> Result<LinkMeasurement> {
        let began = Instant::now();
        let read = |from: &mut dyn Read| {
            let (mut from, mut time) = (io::BufReader::new(from), String::new());
            // Incomplete output fails the checks below.
            let _ = io::BufRead::read_line(&mut Read::take(&mut from, 32), &mut time);
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
            Ok((time, now, io::copy(&mut from, &mut io::sink()).unwrap_or(0)))
        };
        let arguments = [program, &PROBE_BYTES.to_string()];
        let script = include_str!("../scripts/measure-link.sh");
        let (ended, (time, now, bytes)) = shell::run(&*self.shell, script, &arguments, |_| Ok(()), read)?;
        let remote_time = time.trim().parse::<u64>();
        match (ended.code, remote_time, bytes) {
            (Some(0), Ok(remote_time), 1..) => {
                let signed = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX);
                let clock_offset_s = signed(remote_time).saturating_sub(signed(now));
                Ok(LinkMeasurement {
                    clock_offset_s,
                    bytes_per_s: bytes as f64 / began.elapsed().as_secs_f64().max(1e-3),
                })
            }
            _ => Err(ended.to_error(&*self.shell, "measure the connection")),
        }
    }

    fn submit(&self, root: &str, job: &Job) -> Result<()> {
        let token = unique_token();
        let script = include_str!("../scripts/submit.sh");
        // A secret must not be visible in a file or an argument.
        let webhook = format!("{}\n", notices::webhook()?);
        let (ended, output) =
            self.run_with_files(script, &[root, &job.id, &token], (&webhook, &job.files()))?;
        match ended.code {
            Some(0) => Ok(()),
            Some(20) => {
                let owner = Some(job::describe_owner(&output)).filter(|owner| !owner.is_empty());
                let owner = owner.unwrap_or_else(|| "a process that is starting".to_owned());
                Err(already_running_error(self.shell.name(), &job.id, &owner))
            }
            _ => Err(ended.to_error(&*self.shell, "start the job")),
        }
    }

    fn reschedule(
        &self,
        record: &mut LaunchRecord,
        job: &Job,
        retry_stopped: bool,
        _: &mut dyn FnMut(&LaunchRecord) -> Result<()>,
    ) -> Result<Vec<String>> {
        let state = self.state(record)?;
        let mut open =
            state.repetitions.iter().filter(|one| one.needs_training(state.stopped, retry_stopped));
        if state.is_running || open.clone().next().is_none() {
            return Ok(Vec::new());
        }
        self.submit(&record.root, job)?;
        // A search adds repetitions while nothing runs.
        let is_next_step = record.search.is_some() && open.all(|one| one.status == RepetitionStatus::Waiting);
        let event = if is_next_step { "started the next step" } else { "training process lost; restarted" };
        Ok(vec![format!("{}: {event}", self.shell.name())])
    }

    fn state(&self, launch: &LaunchRecord) -> Result<LaunchState> {
        self.query_state(launch)?.ok_or_else(|| self.missing_job_error(launch))
    }

    fn logs(&self, launch: &LaunchRecord, repetition: usize, from: u64, out: &mut dyn Write) -> Result<u64> {
        let arguments = [&launch.root, &launch.id, &repetition.to_string(), &from.to_string()];
        let arguments = arguments.map(String::as_str);
        let script = include_str!("../scripts/logs.sh");
        let copy = |input: &mut dyn Read| Ok(shell::copy_escaped(input, out));
        let task = "read the log";
        Ok(from + shell::run_to_success(&*self.shell, task, script, &arguments, |_| Ok(()), copy)?)
    }

    fn fetch(&self, launch: &LaunchRecord, repetition: usize, into: &Path) -> Result<FetchStats> {
        fetch::fetch_run(&*self.shell, launch, repetition, into)
    }

    fn stop(&self, launch: &LaunchRecord) -> Result<bool> {
        let arguments = [launch.root.as_str(), launch.id.as_str()];
        let text = self.run_for_text("stop the job", include_str!("../scripts/stop.sh"), &arguments, "")?;
        Ok(text.trim() == "asked")
    }

    fn release(&self) {
        self.shell.close();
    }
}

/// The error of a job that another process trains.
pub(crate) fn already_running_error(name: &str, id: &str, owner: &str) -> Error {
    Error::target(
        format!("{name}: {id} is already running on {owner}"),
        format!("`stratus launch status {id}` shows it, `stratus launch stop {id}` stops it"),
    )
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
