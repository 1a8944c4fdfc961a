//! A shell on a machine: scripts that are run there, with their input and output.

use crate::{Error, Result};
use std::io::{self, BufRead, Read, Write};
use std::process::{Command, Stdio};
use stratus_base::printable;
use stratus_base::text::quoted;

/// The most text that a script may answer with.
const MOST_TEXT: u64 = 64 << 20;
/// The most of what it says is wrong that is kept.
const MOST_ERROR: u64 = 16 << 10;

/// Longer lines are shown in parts.
const LONGEST_LINE: u64 = 1 << 16;

/// Starts scripts on a machine.
pub(crate) trait Shell {
    /// The machine, for messages.
    fn name(&self) -> &str;

    /// A process that runs `line` by the machine's Bourne shell.
    fn command(&self, line: &str) -> Result<Command>;

    /// What a failure to get there means, by the process's exit code and what it said.
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
    pub(crate) code: Option<i32>,
    pub(crate) said: String,
}

impl Ended {
    /// The error of a script that was to `what`.
    pub(crate) fn error(&self, shell: &dyn Shell, what: &str) -> Error {
        let said = match self.said.trim() {
            "" => format!("it ended with {}", self.code.map_or("a signal".to_owned(), |c| c.to_string())),
            said => printable(said.lines().last().unwrap_or_default()),
        };
        Error::target(format!("{}: cannot {what}: {said}", shell.name()), "")
    }
}

/// The line that runs a script with arguments.
pub(crate) fn line(script: &str, arguments: &[&str]) -> String {
    let mut line = format!("exec sh -c {} stratus", quoted(script));
    for argument in arguments {
        line.push(' ');
        line.push_str(&quoted(argument));
    }
    line
}

/// Runs a script: `input` writes what it reads, `output` reads what it writes, both while it runs.
///
/// # Errors
/// Where the machine cannot be reached, and what `output` gives. Whether the script did what it should, its
/// end says; that it ended before it had read everything is no error here.
pub(crate) fn run<T>(
    shell: &dyn Shell,
    script: &str,
    arguments: &[&str],
    input: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send,
    output: impl FnOnce(&mut dyn Read) -> Result<T>,
) -> Result<(Ended, T)> {
    let mut command = shell.command(&line(script, arguments))?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let program = command.get_program().to_string_lossy().into_owned();
    let mut process = command.spawn().map_err(|error| {
        Error::target(format!("cannot start `{program}`: {error}"), format!("install {program}"))
    })?;
    let (stdin, stdout, stderr) = (process.stdin.take(), process.stdout.take(), process.stderr.take());
    let (written, said, read) = std::thread::scope(|scope| {
        let writer = scope.spawn(move || stdin.map_or(Ok(()), |mut stdin| input(&mut stdin)));
        let errors = scope.spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut stderr) = stderr {
                // What cannot be read is not said.
                let _ = stderr.by_ref().take(MOST_ERROR).read_to_end(&mut bytes);
                let _ = io::copy(&mut stderr, &mut io::sink());
            }
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let read = match stdout {
            Some(mut stdout) => output(&mut stdout),
            None => output(&mut io::empty()),
        };
        (writer.join(), errors.join().unwrap_or_default(), read)
    });
    let status = process
        .wait()
        .map_err(|error| Error::target(format!("{}: {error}", shell.name()), "try it again"))?;
    let ended = Ended { code: status.code(), said };
    if !status.success() {
        if let Some(error) = shell.unreachable(ended.code, &ended.said) {
            return Err(error);
        }
    } else if let Ok(Err(error)) = written {
        // A script that did not want its input has ended well all the same, but for a file here.
        if error.kind() != io::ErrorKind::BrokenPipe {
            return Err(Error::target(format!("cannot send to {}: {error}", shell.name()), "try it again"));
        }
    }
    Ok((ended, read?))
}

/// Shows text as it comes, by lines, so that no character is cut; returns how many bytes came. Where it
/// cannot be shown any more, nobody reads on.
pub(crate) fn show(input: &mut dyn Read, out: &mut dyn Write) -> u64 {
    let (mut bytes, mut buffer) = (0, Vec::new());
    let mut input = io::BufReader::new(input);
    while matches!(input.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut buffer), Ok(1..)) {
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
    let _ = io::copy(&mut from.take(MOST_TEXT), &mut io::sink());
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
            let read = from.take(MOST_TEXT).read_to_end(&mut bytes);
            read.map_err(|error| Error::target(format!("cannot hear {}: {error}", shell.name()), ""))?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        },
    )
}

#[cfg(test)]
mod tests {
    use super::clean;
    use std::process::Command;
    use stratus_base::text::quoted;

    #[test]
    fn a_quoted_word_is_one_word_whatever_is_in_it() {
        for text in
            ["", "a b", "it's", "''", "$HOME `id` \\ \"x\" !!", "a\nb\n", "-n", "*?[a]", "é ✓", "#;&|"]
        {
            let line = format!("printf %s {}", quoted(text));
            let out = Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(String::from_utf8(out.stdout).unwrap(), text);
        }
    }

    #[test]
    fn what_a_target_says_cannot_command_the_terminal() {
        assert_eq!(clean("a\u{1b}[31mb\r\n\tc\u{202e}d\u{7}"), "a\\u{1b}[31mb\n\tc\\u{202e}d\\u{7}");
    }
}
