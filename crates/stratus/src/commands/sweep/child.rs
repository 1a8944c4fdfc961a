//! A run's process: `stratus train`, as anybody would call it.
//!
//! It stops, with a checkpoint, when its standard input ends: when the sweep closes it, and when the sweep is
//! gone. Its standard output is a file that the sweep has locked: the lock is the process's too, and stays
//! until both are gone, so that no other sweep begins what it is about to begin.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::errors::INTERRUPTED;
use stratus_run::RunDir;
use stratus_sweep::Ended;
use stratus_train::Experiment;

/// The ending of the file beside a run that its process writes its result to.
pub(super) const OUTPUT: &str = "json";
/// How often the stop flag is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// The most bytes of a line of the process that are kept.
const LINE: u64 = 4096;
/// How errors begin.
const ERROR: &str = "error: ";
/// How the engine says that there is no memory.
const NO_MEMORY: &str = "there is no memory for ";

/// A process that trains a run.
pub(super) struct Child {
    process: std::process::Child,
    /// The experiment of a new run.
    file: Option<PathBuf>,
}

impl Child {
    /// Begins the run in `run`, or continues it; `claim` is locked.
    pub(super) fn begin(
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
        Ok(Self { process, file })
    }

    /// Waits for its end, and asks it to stop when `stop` is set; `show` is given each line that it says.
    pub(super) fn wait(&mut self, stop: &AtomicBool, show: &(dyn Fn(&str) + Sync)) -> Ended {
        let mut input = self.process.stdin.take();
        let (sender, lines) = mpsc::channel();
        let errors = self.process.stderr.take();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let Some(errors) = errors else { return };
                let mut reader = BufReader::new(errors);
                let mut line = Vec::new();
                while matches!(reader.by_ref().take(LINE).read_until(b'\n', &mut line), Ok(1..)) {
                    if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                        return;
                    }
                    line.clear();
                }
            });
            let mut error: Option<String> = None;
            loop {
                match lines.recv_timeout(LOOK) {
                    Ok(line) => match (&mut error, line.strip_prefix(ERROR)) {
                        (None, Some(first)) => error = Some(first.to_owned()),
                        // Later lines of the error are its causes and what to do.
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
                Ok(status) => ended(status, error),
                Err(error) => Ended::Failed(format!("cannot wait for the run's process: {error}")),
            }
        })
    }
}

impl Drop for Child {
    /// The run has its own copy of the experiment.
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // What remains is read by nobody and written anew.
            let _ = fs::remove_file(file);
        }
    }
}

fn ended(status: ExitStatus, error: Option<String>) -> Ended {
    match (status.code(), error) {
        (Some(0), _) => Ended::AsItsRunSays,
        (Some(code), _) if code == i32::from(INTERRUPTED) => Ended::Interrupted,
        (_, Some(error)) if error.starts_with(NO_MEMORY) => Ended::DoesNotFit(error),
        (_, Some(error)) => Ended::Failed(error),
        (_, None) => {
            let killed =
                if status.code().is_none() { ": the system may have been short of memory" } else { "" };
            Ended::Failed(format!("its process ended with {status}{killed}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::NO_MEMORY;
    use stratus_engine::EngineError;

    #[test]
    fn the_engine_says_it_so() {
        let error = EngineError::OutOfMemory { what: "the arena".to_owned(), bytes: 1, free: None };
        assert!(error.to_string().starts_with(NO_MEMORY), "{error}");
    }
}
