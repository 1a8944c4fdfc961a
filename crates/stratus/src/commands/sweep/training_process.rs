//! The process that trains a run of a sweep: `stratus train`, as on the command line.
//!
//! The process saves a checkpoint and stops when its standard input ends, because the sweep has closed it or
//! has exited. Its standard output is a file that the sweep has locked. The process inherits the lock, which
//! is held until both have exited, so that no other sweep starts the run meanwhile.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::errors::INTERRUPTED;
use stratus_experiment::Experiment;
use stratus_run::RunDir;
use stratus_sweep::RowOutcome;

/// The extension of the file next to a run to which its process writes the result.
pub(super) const OUTPUT_EXTENSION: &str = "json";
/// The time between two checks of the stop flag.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum length of a line of the process; longer ones are split.
const MAX_LINE_BYTES: u64 = 4096;
/// The prefix of errors.
const ERROR_PREFIX: &str = "error: ";
/// The prefix of the engine's out-of-memory error.
const OUT_OF_MEMORY_PREFIX: &str = "out of memory: ";

/// A process that trains a run.
pub(super) struct TrainingProcess {
    process: std::process::Child,
    /// The experiment file of a new run.
    experiment_file: Option<PathBuf>,
}

impl TrainingProcess {
    /// Starts or resumes the run in `run`; `claim` is the locked output file.
    pub(super) fn start(
        experiment: &Experiment,
        run: &Path,
        until: Option<u64>,
        claim: File,
    ) -> Result<Self, String> {
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
    pub(super) fn wait(&mut self, stop: &AtomicBool, show: &(dyn Fn(&str) + Sync)) -> RowOutcome {
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
                Ok(status) => outcome(status, error),
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

fn outcome(status: ExitStatus, error: Option<String>) -> RowOutcome {
    match (status.code(), error) {
        (Some(0), _) => RowOutcome::Succeeded,
        (Some(code), _) if code == i32::from(INTERRUPTED) => RowOutcome::Interrupted,
        (_, Some(error)) if error.starts_with(OUT_OF_MEMORY_PREFIX) => RowOutcome::DoesNotFit(error),
        (_, Some(error)) => RowOutcome::Failed(error),
        (_, None) => {
            let killed = if status.code().is_none() { ": possibly out of memory" } else { "" };
            RowOutcome::Failed(format!("training process ended with {status}{killed}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::OUT_OF_MEMORY_PREFIX;
    use stratus_engine::EngineError;

    #[test]
    fn prefix_matches_the_out_of_memory_error_of_the_engine() {
        let error = EngineError::OutOfMemory { purpose: "the arena".to_owned(), bytes: 1, free: None };
        assert!(error.to_string().starts_with(OUT_OF_MEMORY_PREFIX), "{error}");
    }
}
