//! Printing: results to standard output, everything else to standard error.

mod printable;
mod program_name;
mod table;
mod wrap;

pub use printable::printable;
pub use table::{Table, key_value_list, table};
pub use wrap::wrap;

use crate::errors::{Failure, Result};
use serde::Serialize;
use std::borrow::Cow;
use std::io::{self, ErrorKind, Write};

/// The width in columns of output to a file or pipe.
const DEFAULT_COLUMNS: usize = 100;
/// The minimum width of tables in columns.
const MIN_COLUMNS: usize = 40;

/// The width of a terminal in columns; `None` if the stream is not a terminal.
pub fn terminal_columns(stream: &impl std::os::fd::AsFd) -> Option<usize> {
    terminal_size::terminal_size_of(stream).map(|(width, _)| usize::from(width.0))
}

/// A printer of results and messages that follows the global flags.
#[derive(Clone, Copy, Debug, Default)]
pub struct Output {
    json: bool,
    quiet: bool,
    silent: bool,
}

impl Output {
    /// A printer: `json` prints results as JSON, `quiet` suppresses messages except warnings.
    pub fn new(json: bool, quiet: bool) -> Self {
        Output { json, quiet, silent: false }
    }

    /// A printer that prints nothing, not even results and warnings, since another process prints them.
    #[must_use]
    pub fn silent(&self) -> Self {
        Output { quiet: true, silent: true, ..*self }
    }

    /// Returns whether nothing is printed.
    pub fn is_silent(&self) -> bool {
        self.silent
    }

    /// Returns whether results are printed as JSON.
    pub fn json(&self) -> bool {
        self.json
    }

    /// Returns whether messages are suppressed.
    pub fn quiet(&self) -> bool {
        self.quiet
    }

    /// The width of results in columns: [`Self::terminal_width`], or 100 in a file or pipe.
    pub fn width(&self) -> usize {
        self.terminal_width().unwrap_or(DEFAULT_COLUMNS)
    }

    /// The width of standard output in columns, from `COLUMNS` or the terminal; `None` for a file or pipe,
    /// whose lines are never wrapped.
    pub fn terminal_width(&self) -> Option<usize> {
        stream_width(&io::stdout())
    }

    /// Prints the result of a command: `value` as the JSON document, or the text, wrapped to the terminal.
    ///
    /// # Errors
    /// If standard output cannot be written to. A closed pipe is not an error.
    pub fn print_wrapped<T: Serialize + ?Sized>(&self, value: &T, text: impl FnOnce() -> String) -> Result {
        self.print_verbatim(value, || {
            let text = text();
            let text = program_name::in_commands(&text, &io::stdout());
            match self.terminal_width() {
                Some(width) => wrap(&text, width),
                None => text.into_owned(),
            }
        })
    }

    /// Prints a result whose lines must not be wrapped, such as CSV or TOML.
    ///
    /// # Errors
    /// See [`Output::print_wrapped`].
    pub fn print_verbatim<T: Serialize + ?Sized>(&self, value: &T, text: impl FnOnce() -> String) -> Result {
        if self.silent {
            return Ok(());
        }
        let mut text =
            if self.json { serde_json::to_string_pretty(value).map_err(Failure::failed)? } else { text() };
        if !text.ends_with('\n') {
            text.push('\n');
        }
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(Failure::failed(format!("cannot write to standard output: {error}")))
            }
            _ => Ok(()),
        }
    }

    /// Prints one line of a stream of results, at once. Returns false if the reader has closed the pipe.
    ///
    /// # Errors
    /// If standard output cannot be written to.
    pub fn print_line(&self, line: &str) -> Result<bool> {
        if self.silent {
            return Ok(true);
        }
        let mut out = io::stdout().lock();
        match out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Failure::failed(format!("cannot write to standard output: {error}"))),
        }
    }

    /// Prints a message to standard error, unless quiet.
    pub fn message(&self, text: &str) {
        if !self.quiet {
            to_stderr(text);
        }
    }

    /// Prints a warning to standard error, even if quiet.
    pub fn warning(&self, text: &str) {
        if !self.silent {
            to_stderr(&format!("warning: {text}"));
        }
    }

    /// Prints the failure of a command to standard error.
    pub fn failure(&self, failure: &Failure) {
        to_stderr(&failure.to_string());
    }
}

/// The width of a stream in columns, from `COLUMNS` or the terminal; `None` if unknown.
fn stream_width(stream: &impl std::os::fd::AsFd) -> Option<usize> {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.trim().parse().ok());
    columns.or_else(|| terminal_columns(stream)).map(|columns: usize| columns.max(MIN_COLUMNS))
}

fn to_stderr(text: &str) {
    let stream = io::stderr();
    let text = program_name::in_commands(text, &stream);
    let text = match stream_width(&stream) {
        Some(width) => Cow::Owned(wrap(&text, width)),
        None => text,
    };
    // Write errors are ignored: standard error may be closed.
    let _ = writeln!(stream.lock(), "{text}");
}
