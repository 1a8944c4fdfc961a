//! The process that trains a run of a sweep: `stratus train`, as on the command line.
//!
//! The process saves a checkpoint and stops when its standard input ends, because the sweep has closed it or
//! has exited. Its standard output is a file that the sweep has locked. The process inherits the lock, which
//! is held until both have exited, so that no other sweep starts the run meanwhile.

use crate::RowOutcome;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use stratus_experiment::Experiment;
use stratus_run::RunDir;

/// The extension of the file next to a run to which its process writes the result.
const OUTPUT_EXTENSION: &str = "json";
/// The time between two checks of the stop flag.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum length of a line of the process; longer ones are split.
const MAX_LINE_BYTES: u64 = 4096;
/// The prefix of errors.
const ERROR_PREFIX: &str = "error: ";
/// The time to wait until a process of an earlier sweep has released a run.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(120);
/// The time between two attempts to claim a run.
const CLAIM_INTERVAL: Duration = Duration::from_millis(50);
/// The prefix of the engine's out-of-memory error.
pub const OUT_OF_MEMORY_PREFIX: &str = "out of memory: ";

/// Starts or resumes a run in a process of this program, to its end or to the end of `until_epoch`, and waits
/// for the process. When `stop` is set, the process is stopped, and exits with `interrupted_code`. `show` is
/// called with each line of its standard error.
pub fn train_in_process(
    experiment: &Experiment,
    run: &Path,
    until_epoch: Option<u64>,
    interrupted_code: u8,
    stop: &AtomicBool,
    show: &(dyn Fn(&str) + Sync),
) -> RowOutcome {
    let claim = match claim(run, stop) {
        Ok(claim) => claim,
        Err(outcome) => return outcome,
    };
    match TrainingProcess::start(experiment, run, until_epoch, claim) {
        Ok(mut process) => process.wait(interrupted_code, stop, show),
        Err(reason) => RowOutcome::Failed(reason),
    }
}

/// Claims a run for a process of this sweep, by locking its output file.
///
/// A process that outlives a killed sweep holds the lock until it exits, even if it has not yet created the
/// run directory.
fn claim(run: &Path, stop: &AtomicBool) -> Result<File, RowOutcome> {
    let path = run.with_extension(OUTPUT_EXTENSION);
    let failed = |error: io::Error| RowOutcome::Failed(format!("cannot open {}: {error}", path.display()));
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
    let open = File::options().create(true).truncate(false).write(true).open(&path);
    let file = open.map_err(failed)?;
    let mut remaining = CLAIM_TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if stop.load(Ordering::Relaxed) => {
                return Err(RowOutcome::Interrupted);
            }
            Err(TryLockError::WouldBlock) if remaining.is_zero() => {
                return Err(RowOutcome::Failed("still trained by an earlier sweep".to_owned()));
            }
            Err(TryLockError::WouldBlock) => {
                std::thread::sleep(CLAIM_INTERVAL);
                remaining = remaining.saturating_sub(CLAIM_INTERVAL);
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
    }
    file.set_len(0).map_err(failed)?;
    Ok(file)
}

/// A process that trains a run.
struct TrainingProcess {
    process: std::process::Child,
    /// The experiment file of a new run.
    experiment_file: Option<PathBuf>,
}

impl TrainingProcess {
    /// Starts or resumes the run in `run`; `claim` is the locked output file.
    fn start(experiment: &Experiment, run: &Path, until: Option<u64>, claim: File) -> Result<Self, String> {
        let program =
            std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        let mut command = Command::new(program);
        command.args(["train", "--stop-with-stdin", "--json"]);
        if let Some(epoch) = until {
            command.args(["--until-epoch", &epoch.to_string()]);
        }
        let file = if RunDir::is_run(run) {
            command.arg(run);
            None
        } else {
            let file = run.with_extension("toml");
            let folder = file.parent().unwrap_or(Path::new("."));
            let written = fs::create_dir_all(folder).and_then(|()| fs::write(&file, experiment.to_toml()));
            written.map_err(|error| format!("cannot write {}: {error}", file.display()))?;
            command.arg(&file).arg("--out").arg(run);
            Some(file)
        };
        command.stdin(Stdio::piped()).stdout(claim).stderr(Stdio::piped());
        let process = command.spawn().map_err(|error| format!("cannot start this program: {error}"))?;
        Ok(Self { process, experiment_file: file })
    }

    /// Waits for the process to exit, and stops it when `stop` is set. `show` is called with each line of its
    /// standard error.
    fn wait(&mut self, interrupted_code: u8, stop: &AtomicBool, show: &(dyn Fn(&str) + Sync)) -> RowOutcome {
        let mut input = self.process.stdin.take();
        let (sender, lines) = mpsc::channel();
        let errors = self.process.stderr.take();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let Some(errors) = errors else { return };
                let mut reader = BufReader::new(errors);
                let mut line = Vec::new();
                while matches!(reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line), Ok(1..)) {
                    if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                        return;
                    }
                    line.clear();
                }
            });
            let mut error: Option<String> = None;
            loop {
                match lines.recv_timeout(POLL_INTERVAL) {
                    Ok(line) => match (&mut error, line.strip_prefix(ERROR_PREFIX)) {
                        (None, Some(first)) => error = Some(first.to_owned()),
                        // Later lines of the error are causes and hints.
                        (Some(error), _) => error.push_str(&format!("; {}", line.trim())),
                        (None, None) => show(&line),
                    },
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                if stop.load(Ordering::Relaxed) {
                    drop(input.take());
                }
            }
            match self.process.wait() {
                Ok(status) => outcome(status, interrupted_code, error),
                Err(error) => RowOutcome::Failed(format!("cannot wait for the training process: {error}")),
            }
        })
    }
}

impl Drop for TrainingProcess {
    /// Removes the experiment file; the run has its own copy.
    fn drop(&mut self) {
        if let Some(file) = &self.experiment_file {
            // A file that cannot be removed is overwritten by the next start.
            let _ = fs::remove_file(file);
        }
    }
}

fn outcome(status: ExitStatus, interrupted_code: u8, error: Option<String>) -> RowOutcome {
    match (status.code(), error) {
        (Some(0), _) => RowOutcome::Succeeded,
        (Some(code), _) if code == i32::from(interrupted_code) => RowOutcome::Interrupted,
        (_, Some(error)) if error.starts_with(OUT_OF_MEMORY_PREFIX) => RowOutcome::DoesNotFit(error),
        (_, Some(error)) => RowOutcome::Failed(error),
        (_, None) => {
            let killed = if status.code().is_none() { ": possibly out of memory" } else { "" };
            RowOutcome::Failed(format!("training process ended with {status}{killed}"))
        }
    }
}
