//! A shell on a machine: scripts that are run there, with their input and output.
//!
//! Every script goes through [`run`], which tells what it wrote from what the account's shell wrote around it
//! ([`frame`]).

pub(crate) mod frame;

use crate::{Error, Result};
use frame::Frame;
use std::io::{self, BufRead, Read, Write};
use std::process::{Command, Stdio};
use stratus_base::printable;

/// The most text that a script may answer with.
const MAX_TEXT_BYTES: u64 = 64 << 20;
/// The last of what it says is wrong that is kept.
const MAX_ERROR_BYTES: usize = 16 << 10;

/// Longer lines are shown in parts.
const MAX_LINE_BYTES: u64 = 1 << 16;

/// Starts scripts on a machine.
pub(crate) trait Shell {
    /// The machine, for messages.
    fn name(&self) -> &str;

    /// A process that hands `line` to the account's shell, whichever that is.
    fn command(&self, line: &str) -> Result<Command>;

    /// The error of a machine that cannot be reached, by the process's exit code and its messages.
    fn unreachable(&self, _code: Option<i32>, _said: &str) -> Option<Error> {
        None
    }

    /// Gives back what getting there holds.
    fn close(&self) {}
}

impl Shell for Box<dyn Shell> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn command(&self, line: &str) -> Result<Command> {
        (**self).command(line)
    }

    fn unreachable(&self, code: Option<i32>, said: &str) -> Option<Error> {
        (**self).unreachable(code, said)
    }

    fn close(&self) {
        (**self).close();
    }
}

/// Text from a target, fit for a terminal: lines and tabs stay, other control characters are escaped.
#[must_use]
pub fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => out.push(c),
            // Progress that overwrites its line: what is shown is lines.
            '\r' => {}
            c if c.is_control() || is_invisible(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// Characters that change the order in which others are shown.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// How a script ended.
pub(crate) struct Ended {
    /// Its exit code; none where its end did not come.
    pub(crate) code: Option<i32>,
    pub(crate) said: String,
}

impl Ended {
    /// The error of a script that was to `what`.
    pub(crate) fn error(&self, shell: &dyn Shell, what: &str) -> Error {
        let said = match (self.said.trim(), self.code) {
            ("", Some(code)) => format!("it ended with {code}"),
            ("", None) => "its answer was cut".to_owned(),
            (said, _) => printable(said.lines().last().unwrap_or_default()),
        };
        Error::target(format!("{}: cannot {what}: {said}", shell.name()), "")
    }
}

/// Returns the error of a script that was not begun, by what came instead.
fn not_begun(shell: &dyn Shell, said: &str, greeting: &[u8]) -> Error {
    let greeting = String::from_utf8_lossy(greeting);
    let last = [said, &greeting].into_iter().find_map(|text| text.trim().lines().last());
    let said = last.map_or("nothing was said".to_owned(), printable);
    Error::target(
        format!("{}: the account's shell does not run a script: {said}", shell.name()),
        "see that `sh` and `dd` are there, and that the start-up files of that shell neither end it nor read \
         its standard input",
    )
}

/// Returns the last bytes of what can be read.
fn last_of(from: &mut dyn Read, most: usize) -> Vec<u8> {
    let (mut kept, mut buffer) = (Vec::new(), [0; 4096]);
    // A stream that cannot be read adds nothing to the message.
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        kept.extend_from_slice(&buffer[..count]);
        let more = kept.len().saturating_sub(most);
        kept.drain(..more);
    }
    kept
}

/// Runs a script: `input` writes what it reads, `output` reads what it writes, both while it runs.
///
/// # Errors
/// Where the machine cannot be reached or does not run the script, and what `output` gives. Whether the
/// script did what it should, its end says; that it ended before it had read everything is no error here.
pub(crate) fn run<T>(
    shell: &dyn Shell,
    script: &str,
    arguments: &[&str],
    input: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send,
    output: impl FnOnce(&mut dyn Read) -> Result<T>,
) -> Result<(Ended, T)> {
    let frame = Frame::new();
    let script = frame.script(script, arguments);
    let mut command = shell.command(&Frame::line(script.len()))?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let program = command.get_program().to_string_lossy().into_owned();
    let mut process = command.spawn().map_err(|error| {
        Error::target(format!("cannot start `{program}`: {error}"), format!("install {program}"))
    })?;
    let (stdin, stdout, stderr) = (process.stdin.take(), process.stdout.take(), process.stderr.take());
    let boxed = |from: Option<Box<dyn Read + Send>>| from.unwrap_or_else(|| Box::new(io::empty()));
    let stdout = boxed(stdout.map(|from| Box::new(from) as Box<dyn Read + Send>));
    let stderr = boxed(stderr.map(|from| Box::new(from) as Box<dyn Read + Send>));
    let mut answer = frame.stream(stdout);
    let mut errors = frame.stream(stderr);
    let (written, said, read) = std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let Some(mut stdin) = stdin else { return Ok(()) };
            stdin.write_all(script.as_bytes())?;
            input(&mut stdin)
        });
        let said = scope.spawn(move || {
            let mut said = last_of(&mut errors, MAX_ERROR_BYTES);
            if !errors.begins() {
                said = errors.greeting().to_vec();
            }
            // Output behind the script's end is not its own; it is read so that the shell can end.
            let _ = io::copy(&mut errors.into_rest(), &mut io::sink());
            String::from_utf8_lossy(&said).into_owned()
        });
        let has_begun = answer.begins();
        let read = has_begun.then(|| output(&mut answer));
        if matches!(read, Some(Ok(_))) {
            // Of what was left, only the end is wanted.
            let _ = io::copy(&mut answer.by_ref().take(MAX_TEXT_BYTES), &mut io::sink());
        }
        let (code, greeting) = (answer.code(), answer.greeting().to_vec());
        let mut rest = answer.into_rest();
        if code.is_some() {
            let _ = io::copy(&mut rest, &mut io::sink());
        }
        // Where the end did not come, nobody reads on.
        drop(rest);
        (writer.join(), said.join().unwrap_or_default(), read.ok_or(greeting).map(|read| (code, read)))
    });
    let status = process
        .wait()
        .map_err(|error| Error::target(format!("{}: {error}", shell.name()), "try it again"))?;
    let is_cut = !matches!(read, Ok((Some(_), _)));
    if is_cut
        && !status.success()
        && let Some(error) = shell.unreachable(status.code(), &said)
    {
        return Err(error);
    }
    let (code, read) = read.map_err(|greeting| not_begun(shell, &said, &greeting))?;
    let read = read?;
    if code == Some(0)
        && let Ok(Err(error)) = written
        // A script that did not want its input has ended well all the same, but for a file here.
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        return Err(Error::target(format!("cannot send to {}: {error}", shell.name()), "try it again"));
    }
    Ok((Ended { code, said }, read))
}

/// Shows text as it comes, by lines, so that no character is cut; returns how many bytes came. Where it
/// cannot be shown any more, nobody reads on.
pub(crate) fn show(input: &mut dyn Read, out: &mut dyn Write) -> u64 {
    let (mut bytes, mut buffer) = (0, Vec::new());
    let mut input = io::BufReader::new(input);
    while matches!(input.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut buffer), Ok(1..)) {
        bytes += buffer.len() as u64;
        if out.write_all(clean(&String::from_utf8_lossy(&buffer)).as_bytes()).is_err() {
            break;
        }
        buffer.clear();
    }
    bytes
}

/// Reads what nobody needs, as far as anybody would say it.
pub(crate) fn drain(from: &mut dyn Read) -> Result<()> {
    // A connection that breaks here, the script's end tells.
    let _ = io::copy(&mut from.take(MAX_TEXT_BYTES), &mut io::sink());
    Ok(())
}

/// Runs a script whose answer is text.
pub(crate) fn text(
    shell: &dyn Shell,
    script: &str,
    arguments: &[&str],
    input: &[u8],
) -> Result<(Ended, String)> {
    run(
        shell,
        script,
        arguments,
        |out| out.write_all(input),
        |from| {
            let mut bytes = Vec::new();
            let read = from.take(MAX_TEXT_BYTES).read_to_end(&mut bytes);
            read.map_err(|error| Error::target(format!("cannot hear {}: {error}", shell.name()), ""))?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        },
    )
}

#[cfg(test)]
#[cfg(unix)]
mod tests;
