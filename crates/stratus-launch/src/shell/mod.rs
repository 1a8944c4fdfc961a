//! Runs scripts in the shell of a host, with streamed input and output.
//!
//! Every script goes through [`run`], which separates its output from other output of the account's shell
//! ([`frame`]).

pub(crate) mod frame;

use crate::{Error, Result};
#[cfg(fuzzing)]
pub(crate) use frame::Frame;
#[cfg(not(fuzzing))]
use frame::Frame;
use std::io::{self, BufRead, Read, Write};
use std::process::{Command, Stdio};
use stratus_base::text::is_printable;
use stratus_base::{printable, ssh};

/// The maximum length of a script's standard output as text.
const MAX_STDOUT_BYTES: u64 = 64 << 20;
/// The length of the end of standard error that is kept.
const MAX_STDERR_BYTES: usize = 16 << 10;

/// The maximum length of a line; longer lines are printed in parts.
const MAX_LINE_BYTES: u64 = 1 << 16;

/// Starts the shell of a host.
pub(crate) trait Shell: Send + Sync {
    /// The name of the host, for messages.
    fn name(&self) -> &str;

    /// A command that passes `line` to the account's shell, of any kind.
    fn command(&self, line: &str) -> Result<Command>;

    /// The error of a failed connection; `None` if the script failed.
    fn connection_error(&self, _code: Option<i32>, _stderr: &str) -> Option<Error> {
        None
    }

    /// Closes shared connections.
    fn close(&self) {}
}

/// Escapes the characters of a text from a target that are not printable, except line breaks and tabs.
#[must_use]
pub fn escape_control_characters(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => out.push(c),
            // Progress bars return to the start of their line; each update is shown as written.
            '\r' => {}
            c if is_printable(c) => out.push(c),
            c => out.extend(c.escape_default()),
        }
    }
    out
}

/// The exit of a script.
pub(crate) struct ScriptExit {
    /// The exit code; `None` if the output was cut.
    pub(crate) code: Option<i32>,
    pub(crate) stderr: String,
}

impl ScriptExit {
    /// The error of a failed script; `task` is what it does, like `read the log`.
    pub(crate) fn to_error(&self, shell: &dyn Shell, task: &str) -> Error {
        let cause = match (self.stderr.trim(), self.code) {
            ("", Some(code)) => format!("exited with {code}"),
            ("", None) => "its output was cut".to_owned(),
            (stderr, _) => printable(cause_line(stderr)),
        };
        Error::target(format!("{}: cannot {task}: {cause}", shell.name()), "")
    }
}

/// The last line of standard error that states a cause. `tar` ends with a line that refers to those before.
fn cause_line(stderr: &str) -> &str {
    const REFERENCES: [&str; 2] =
        ["Exiting with failure status due to previous errors", "Error is not recoverable: exiting now"];
    let states_cause = |line: &&str| !REFERENCES.iter().any(|reference| line.ends_with(reference));
    stderr.lines().rfind(states_cause).or(stderr.lines().last()).unwrap_or_default()
}

/// The error of a script that did not start, from the output that arrived instead.
fn not_started_error(shell: &dyn Shell, stderr: &str, greeting: &[u8]) -> Error {
    let greeting = String::from_utf8_lossy(greeting);
    let last = [stderr, &greeting].into_iter().find_map(|text| text.trim().lines().last());
    let cause = last.map_or("no output".to_owned(), printable);
    Error::target(
        format!("{}: the account's shell does not run scripts: {cause}", shell.name()),
        "install `sh` and `dd`; the start-up files of the shell must not exit or read standard input",
    )
}

/// Reads a stream to its end and returns its last `limit` bytes.
fn last_bytes(from: &mut dyn Read, limit: usize) -> Vec<u8> {
    let (mut kept, mut buffer) = (Vec::new(), [0; 4096]);
    // Read errors only shorten the message.
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        kept.extend_from_slice(&buffer[..count]);
        let more = kept.len().saturating_sub(limit);
        kept.drain(..more);
    }
    kept
}

/// Runs a script. `input` writes its standard input and `output` reads its standard output while it runs.
///
/// # Errors
/// If the machine cannot be reached or does not run the script, or `output` fails. A script that exits with
/// an error, or before it has read its input, is not an error here.
pub(crate) fn run<T>(
    shell: &dyn Shell,
    script: &str,
    arguments: &[&str],
    input: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send,
    output: impl FnOnce(&mut dyn Read) -> Result<T>,
) -> Result<(ScriptExit, T)> {
    let frame = Frame::new();
    let script = frame.script(script, arguments);
    let mut command = shell.command(&Frame::command_line(script.len()))?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let program = command.get_program().to_string_lossy().into_owned();
    let mut process = command.spawn().map_err(|error| {
        let shown = printable(&program);
        let problem = format!("cannot start `{shown}`: {error}");
        Error::Client { problem, hint: ssh::start_hint(&program) }
    })?;
    let (stdin, stdout, stderr) = (process.stdin.take(), process.stdout.take(), process.stderr.take());
    let boxed = |from: Option<Box<dyn Read + Send>>| from.unwrap_or_else(|| Box::new(io::empty()));
    let stdout = boxed(stdout.map(|from| Box::new(from) as Box<dyn Read + Send>));
    let stderr = boxed(stderr.map(|from| Box::new(from) as Box<dyn Read + Send>));
    let mut framed_stdout = frame.stream(stdout);
    let mut framed_stderr = frame.stream(stderr);
    let (written, stderr, read) = std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let Some(mut stdin) = stdin else { return Ok(()) };
            stdin.write_all(script.as_bytes())?;
            input(&mut stdin)
        });
        let stderr = scope.spawn(move || {
            let mut stderr = last_bytes(&mut framed_stderr, MAX_STDERR_BYTES);
            if !framed_stderr.wait_for_start() {
                stderr = framed_stderr.greeting().to_vec();
            }
            // Output after the script is drained, so that the shell can exit.
            let _ = io::copy(&mut framed_stderr.into_rest(), &mut io::sink());
            String::from_utf8_lossy(&stderr).into_owned()
        });
        let has_begun = framed_stdout.wait_for_start();
        let read = has_begun.then(|| output(&mut framed_stdout));
        if matches!(read, Some(Ok(_))) {
            // Skips the remaining output up to the exit code.
            let _ = io::copy(&mut framed_stdout.by_ref().take(MAX_STDOUT_BYTES), &mut io::sink());
        }
        let (code, greeting) = (framed_stdout.exit_code(), framed_stdout.greeting().to_vec());
        let mut rest = framed_stdout.into_rest();
        if code.is_some() {
            let _ = io::copy(&mut rest, &mut io::sink());
        }
        // If the output was cut, the rest is not read.
        drop(rest);
        (writer.join(), stderr.join().unwrap_or_default(), read.ok_or(greeting).map(|read| (code, read)))
    });
    let status =
        process.wait().map_err(|error| Error::target(format!("{}: {error}", shell.name()), "try again"))?;
    let is_cut = !matches!(read, Ok((Some(_), _)));
    if is_cut
        && !status.success()
        && let Some(error) = shell.connection_error(status.code(), &stderr)
    {
        return Err(error);
    }
    let (code, read) = read.map_err(|greeting| not_started_error(shell, &stderr, &greeting))?;
    let read = read?;
    // A script need not read all of its input; only local read errors matter. They also explain why a script
    // failed that got only a part of its input.
    if let Ok(Err(error)) = written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        return Err(Error::target(format!("cannot send to {}: {error}", shell.name()), "try again"));
    }
    Ok((ScriptExit { code, stderr }, read))
}

/// Runs a script like [`run`], which must exit with 0; `task` is what it does, like `read the log`.
pub(crate) fn run_to_success<T>(
    shell: &dyn Shell,
    task: &str,
    script: &str,
    arguments: &[&str],
    input: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send,
    output: impl FnOnce(&mut dyn Read) -> Result<T>,
) -> Result<T> {
    let (ended, read) = run(shell, script, arguments, input, output)?;
    if ended.code == Some(0) { Ok(read) } else { Err(ended.to_error(shell, task)) }
}

/// Copies text line by line, escaped, and returns the number of bytes read. Stops if `out` cannot be written.
pub(crate) fn copy_escaped(input: &mut dyn Read, out: &mut dyn Write) -> u64 {
    let (mut bytes, mut buffer) = (0, Vec::new());
    let mut input = io::BufReader::new(input);
    while matches!(input.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut buffer), Ok(1..)) {
        bytes += buffer.len() as u64;
        if out.write_all(escape_control_characters(&String::from_utf8_lossy(&buffer)).as_bytes()).is_err() {
            break;
        }
        buffer.clear();
    }
    bytes
}

/// Reads and discards output.
pub(crate) fn drain(from: &mut dyn Read) -> Result<()> {
    // A lost connection shows as a missing exit code.
    let _ = io::copy(&mut from.take(MAX_STDOUT_BYTES), &mut io::sink());
    Ok(())
}

/// Runs a script and returns its output as text.
pub(crate) fn run_for_text(
    shell: &dyn Shell,
    script: &str,
    arguments: &[&str],
    input: &[u8],
) -> Result<(ScriptExit, String)> {
    let read = |from: &mut dyn Read| {
        let mut bytes = Vec::new();
        let read = from.take(MAX_STDOUT_BYTES).read_to_end(&mut bytes);
        read.map_err(|error| Error::target(format!("cannot read from {}: {error}", shell.name()), ""))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    run(shell, script, arguments, |out| out.write_all(input), read)
}

/// Runs a script like [`run_for_text`], which must exit with 0.
pub(crate) fn run_to_text(
    shell: &dyn Shell,
    task: &str,
    script: &str,
    arguments: &[&str],
    input: &str,
) -> Result<String> {
    let (ended, text) = run_for_text(shell, script, arguments, input.as_bytes())?;
    if ended.code == Some(0) { Ok(text) } else { Err(ended.to_error(shell, task)) }
}

#[cfg(test)]
#[cfg(unix)]
mod tests;
