//! A local command of the user with a time limit.

use crate::{Error, Result};
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use stratus_base::printable;

/// The maximum length of standard error that is kept.
const MAX_STDERR_BYTES: u64 = 4 << 10;
/// The time to wait for standard error after the process has ended.
const STDERR_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs a shell command with additional environment variables.
///
/// # Errors
/// If it cannot be started, fails or exceeds `limit`.
pub fn run_hook(task: &str, command: &str, variables: &[(&str, &str)], limit: Duration) -> Result<()> {
    let failed = |problem: String| Error::target(format!("{task}: the command {problem}"), "");
    let mut process = Command::new("sh")
        .args(["-c", command])
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(format!("cannot be started: {error}")))?;
    let (sender, stderr_text) = mpsc::channel();
    if let Some(mut stderr) = process.stderr.take() {
        // A background process may keep the pipe open forever, so this thread is not joined.
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // Read errors only shorten the message.
            let _ = stderr.by_ref().take(MAX_STDERR_BYTES).read_to_end(&mut bytes);
            // The receiver may have timed out.
            let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
            let _ = std::io::copy(&mut stderr, &mut std::io::sink());
        });
    }
    let began = Instant::now();
    loop {
        match process.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => {
                let text = stderr_text.recv_timeout(STDERR_TIMEOUT).unwrap_or_default();
                let last =
                    text.trim().lines().last().map_or(String::new(), |last| format!(": {}", printable(last)));
                let code = status.code().map_or("a signal".to_owned(), |code| code.to_string());
                return Err(failed(format!("exited with {code}{last}")));
            }
            Ok(None) if began.elapsed() < limit => std::thread::sleep(Duration::from_millis(50)),
            Ok(None) => {
                // The process may have just ended.
                let _ = process.kill();
                let _ = process.wait();
                return Err(failed(format!("timed out after {} s", limit.as_secs())));
            }
            Err(error) => return Err(failed(format!("cannot be waited for: {error}"))),
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::run_hook;
    use std::time::Duration;

    #[test]
    fn failed_or_endless_command_is_an_error() {
        let run = |command: &str, limit: u64| {
            let done = run_hook("release", command, &[("A", "b")], Duration::from_millis(limit));
            done.map_err(|error| error.to_string())
        };
        assert_eq!(run("[ \"$A\" = b ]", 10_000), Ok(()));
        let message = run("printf 'x\\n\\033[2Jno\\n' >&2; exit 3", 10_000).unwrap_err();
        assert!(
            message.contains("release: the command exited with 3: ") && !message.contains('\u{1b}'),
            "{message}"
        );
        assert!(run("exec sleep 60", 100).unwrap_err().contains("timed out after 0 s"));
        // Background processes are not waited for.
        assert_eq!(run("sleep 20 & true", 10_000), Ok(()));
    }
}
