//! The printer: results to standard output, everything else to standard error.

mod table;
mod wrap;

pub use table::{Table, pairs, table};
pub use wrap::wrap;

use crate::errors::{Failure, Result};
use serde::Serialize;
use std::borrow::Cow;
use std::io::{self, ErrorKind, Write};

/// Columns where nobody says how many.
const PAGE: usize = 100;
/// Tables cannot be narrower.
const NARROWEST: usize = 40;

/// The columns of a terminal; `None` where it is something else.
pub fn width_of(stream: &impl std::os::fd::AsFd) -> Option<usize> {
    terminal_size::terminal_size_of(stream).map(|(width, _)| usize::from(width.0))
}

/// Prints as the global flags ask.
#[derive(Clone, Copy, Debug, Default)]
pub struct Output {
    json: bool,
    quiet: bool,
    silent: bool,
}

impl Output {
    /// A printer: `json` prints results as JSON, `quiet` leaves out messages that are no warnings.
    pub fn new(json: bool, quiet: bool) -> Self {
        Output { json, quiet, silent: false }
    }

    /// One that prints nothing at all, not even results and warnings: another process does.
    #[must_use]
    pub fn silent(&self) -> Self {
        Output { quiet: true, silent: true, ..*self }
    }

    /// Whether nothing is printed.
    pub fn is_silent(&self) -> bool {
        self.silent
    }

    /// Whether results are printed as JSON.
    pub fn json(&self) -> bool {
        self.json
    }

    /// Whether messages are left out.
    pub fn quiet(&self) -> bool {
        self.quiet
    }

    /// Columns that a result may have: those of the terminal, or of `COLUMNS` where that is set; what goes to
    /// a file or to another program has as many as a page.
    pub fn width(&self) -> usize {
        self.narrow().unwrap_or(PAGE)
    }

    /// Columns that nothing on standard output should be wider than; `None` where it goes to a file or to
    /// another program, which get lines and tables whole.
    pub fn narrow(&self) -> Option<usize> {
        columns(&io::stdout())
    }

    /// Prints the result of a command: `value` as the one JSON document, or else the text, its lines broken
    /// where the terminal ends.
    ///
    /// # Errors
    /// Where standard output cannot be written to. A reader that went away is no error.
    pub fn result<T: Serialize + ?Sized>(&self, value: &T, text: impl FnOnce() -> String) -> Result {
        self.document(value, || match self.narrow() {
            Some(width) => wrap(&text(), width),
            None => text(),
        })
    }

    /// Prints a result whose lines mean something, such as CSV or TOML: they are never broken.
    ///
    /// # Errors
    /// As [`Output::result`].
    pub fn document<T: Serialize + ?Sized>(&self, value: &T, text: impl FnOnce() -> String) -> Result {
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

    /// Says something that is no result.
    pub fn message(&self, text: &str) {
        if !self.quiet {
            to_stderr(text);
        }
    }

    /// Says something that must not be missed.
    pub fn warning(&self, text: &str) {
        if !self.silent {
            to_stderr(&format!("warning: {text}"));
        }
    }

    /// Says what a command failed with.
    pub fn failure(&self, failure: &Failure) {
        to_stderr(&failure.to_string());
    }
}

/// Columns of a terminal, or of `COLUMNS` where that is set; `None` where neither says it.
fn columns(stream: &impl std::os::fd::AsFd) -> Option<usize> {
    let asked = std::env::var("COLUMNS").ok().and_then(|columns| columns.trim().parse().ok());
    asked.or_else(|| width_of(stream)).map(|columns: usize| columns.max(NARROWEST))
}

/// Nothing can be done, and nobody told, where standard error is closed.
fn to_stderr(text: &str) {
    let stream = io::stderr();
    let text = columns(&stream).map_or_else(|| text.into(), |width| Cow::Owned(wrap(text, width)));
    let _ = writeln!(stream.lock(), "{text}");
}

/// A count of bytes as people write it: `32 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 || value >= 100.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn bytes_are_readable() {
        assert_eq!(
            [0, 1023, 1536, 33_554_432, u64::MAX].map(bytes),
            ["0 B", "1023 B", "1.5 KiB", "32 MiB", "16777216 TiB"]
        );
    }
}
