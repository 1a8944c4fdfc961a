//! Processes that are started for actions. They outlive the server: a training that was continued here is
//! not affected by its end, nor by Ctrl-C on its terminal.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{self, ExitStatus, Stdio};
use std::sync::Arc;

use stratus_base::exit_code::INTERRUPTED;
use stratus_base::text::is_printable;

use super::log::ActionLog;
use super::offer::{launch_folder, working_folder};
use crate::index::ItemId;

/// The bytes at the end of the messages of a process in which its error is searched for.
const MAX_MESSAGE_BYTES: u64 = 4 << 10;
/// Maximum length of a message in a row.
const MAX_MESSAGE_CHARS: usize = 300;

/// A process to be started.
#[derive(Debug)]
pub struct Command {
    command: process::Command,
    /// True if the end of the process is not that of the action.
    is_training: bool,
}

impl Command {
    /// Continues a run. The process writes the run's log.
    pub fn train(program: &Path, run: &Path) -> Self {
        let mut command = process::Command::new(program);
        command.arg("train").arg(run);
        if let Some(folder) = working_folder(run) {
            command.current_dir(folder);
        }
        Self { command, is_training: true }
    }

    /// Stops the launch of a run.
    pub fn stop_launch(program: &Path, run: &Path, launch: &str) -> Self {
        let mut command = process::Command::new(program);
        command.args(["launch", "stop", launch]);
        if let Some(folder) = launch_folder(run, launch) {
            command.current_dir(folder);
        }
        Self { command, is_training: false }
    }

    /// Starts the process, in a process group of its own. A thread waits for its end.
    ///
    /// # Errors
    /// The reason, if it cannot be started.
    pub fn start(mut self, id: &ItemId, log: &Arc<ActionLog>) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("cannot start the process: {error}");
        // A file, not a pipe: the process writes to it after the end of this server, too.
        let messages = tempfile::tempfile().map_err(failed)?;
        let copy = messages.try_clone().map_err(failed)?;
        self.command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(copy).process_group(0);
        let mut child = self.command.spawn().map_err(failed)?;
        let (of_thread, is_training) = ((id.clone(), Arc::clone(log)), self.is_training);
        let wait = move || {
            let ((id, log), Ok(status)) = (of_thread, child.wait()) else { return };
            log.end(&id, outcome(status, messages, is_training));
        };
        // Without a thread the process runs all the same, but nobody waits for its result.
        if std::thread::Builder::new().name("action".into()).spawn(wait).is_err() {
            log.forget(id);
        }
        Ok(())
    }
}

/// The result of a process.
fn outcome(status: ExitStatus, messages: File, is_training: bool) -> Result<String, String> {
    let said = last_bytes(messages);
    let is_interrupted = status.code() == Some(INTERRUPTED.into());
    match status.code() {
        Some(0) if is_training => Ok("completed".to_owned()),
        Some(_) if is_training && is_interrupted => Ok("stopped again".to_owned()),
        Some(0) => Ok(said.lines().last().map_or_else(|| "stopped".to_owned(), shortened)),
        _ => Err(error_in(&said).unwrap_or_else(|| format!("the process ended with {status}"))),
    }
}

/// The error in the messages of a program: what follows the last `error:`, in one line.
fn error_in(messages: &str) -> Option<String> {
    let (_, error) = messages.rsplit_once("error: ")?;
    let lines: Vec<&str> = error.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    (!lines.is_empty()).then(|| shortened(&lines.join("; ")))
}

/// A text of bounded length, without characters that cannot be shown.
fn shortened(text: &str) -> String {
    let visible = |letter: char| if is_printable(letter) { letter } else { char::REPLACEMENT_CHARACTER };
    let mut short: String = text.chars().take(MAX_MESSAGE_CHARS).map(visible).collect();
    if text.chars().nth(MAX_MESSAGE_CHARS).is_some() {
        short.push('…');
    }
    short
}

/// The end of a file as text.
fn last_bytes(mut file: File) -> String {
    let length = file.metadata().map_or(0, |facts| facts.len());
    let mut bytes = Vec::new();
    if file.seek(SeekFrom::Start(length.saturating_sub(MAX_MESSAGE_BYTES))).is_ok() {
        let _ = file.take(MAX_MESSAGE_BYTES).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_one_printable_line() {
        let messages = "epoch 1\nerror: x: error: cannot read \u{1b}[31mdata\n\nhint: use --data\n";
        let error = error_in(messages).unwrap();
        assert!(error.starts_with("cannot read ") && error.ends_with("data; hint: use --data"), "{error}");
        assert!(!error.contains('\u{1b}'));
        assert_eq!(error_in("killed"), None);
        assert_eq!(shortened(&"é".repeat(400)).chars().count(), MAX_MESSAGE_CHARS + 1);
    }
}
