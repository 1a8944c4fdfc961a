//! A command of the user's that runs here, for a limited time.

use crate::{Error, Result};
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use stratus_base::printable;

/// The most of what it says is wrong that is kept.
const MOST: u64 = 4 << 10;
/// How long its last words are waited for.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Runs a command by the shell, with these variables beside those of this process.
///
/// # Errors
/// Where it cannot be started, fails, or takes longer.
pub fn hook(what: &str, command: &str, variables: &[(&str, &str)], limit: Duration) -> Result<()> {
    let failed = |problem: String| Error::target(format!("{what}: the command {problem}"), "");
    let mut process = Command::new("sh")
        .args(["-c", command])
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(format!("cannot be started: {error}")))?;
    let (sender, said) = mpsc::channel();
    if let Some(mut stderr) = process.stderr.take() {
        // What it leaves behind may hold the pipe for ever: nobody waits for this thread.
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // What cannot be read is not said.
            let _ = stderr.by_ref().take(MOST).read_to_end(&mut bytes);
            // Nor is what nobody waits for any more.
            let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
            let _ = std::io::copy(&mut stderr, &mut std::io::sink());
        });
    }
    let began = Instant::now();
    loop {
        match process.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => {
                let said = said.recv_timeout(LAST_WORDS).unwrap_or_default();
                let last =
                    said.trim().lines().last().map_or(String::new(), |last| format!(": {}", printable(last)));
                let code = status.code().map_or("a signal".to_owned(), |code| code.to_string());
                return Err(failed(format!("ended with {code}{last}")));
            }
            Ok(None) if began.elapsed() < limit => std::thread::sleep(Duration::from_millis(50)),
            Ok(None) => {
                // One that has just ended needs no end.
                let _ = process.kill();
                let _ = process.wait();
                return Err(failed(format!("does not end in {} s", limit.as_secs())));
            }
            Err(error) => return Err(failed(format!("is lost: {error}"))),
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::hook;
    use std::time::Duration;

    #[test]
    fn a_command_that_fails_or_does_not_end_is_an_error() {
        let run = |command: &str, limit: u64| {
            let done = hook("release", command, &[("A", "b")], Duration::from_millis(limit));
            done.map_err(|error| error.to_string())
        };
        assert_eq!(run("[ \"$A\" = b ]", 10_000), Ok(()));
        let said = run("printf 'x\\n\\033[2Jno\\n' >&2; exit 3", 10_000).unwrap_err();
        assert!(said.contains("release: the command ended with 3: ") && !said.contains('\u{1b}'), "{said}");
        assert!(run("exec sleep 60", 100).unwrap_err().contains("does not end in 0 s"));
        // What goes on behind it is not waited for.
        assert_eq!(run("sleep 20 & true", 10_000), Ok(()));
    }
}
