//! The lines of standard input, read ahead by a thread.

use crate::errors::{Failure, Result};
use std::io::{self, BufRead, Read};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

/// The maximum length of a line in bytes: longer than any path that a system opens.
pub(super) const MAX_LINE_BYTES: usize = 1 << 15;
/// The maximum number of lines that are read ahead.
const MAX_WAITING_LINES: usize = 1024;

/// A line without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// The bytes of the line, need not be UTF-8.
    pub bytes: Vec<u8>,
    /// True if the line is longer than [`MAX_LINE_BYTES`]; its other bytes are ignored.
    pub is_cut: bool,
}

/// Starts to read standard input; at most `waiting` lines are read ahead. The channel closes at its end.
///
/// # Errors
/// If the thread cannot be started.
pub(super) fn read_stdin(waiting: usize) -> Result<Receiver<Result<Line>>> {
    let (sender, lines) = sync_channel(waiting.min(MAX_WAITING_LINES));
    let read = move || {
        let mut input = io::stdin().lock();
        loop {
            let line = next_line(&mut input);
            let is_last = line.is_err();
            let Some(line) = line.transpose() else { return };
            let line = line.map_err(|cause| Failure::failed(format!("cannot read standard input: {cause}")));
            if sender.send(line).is_err() || is_last {
                return;
            }
        }
    };
    thread::Builder::new()
        .name("lines".to_owned())
        .spawn(read)
        .map_err(|cause| Failure::failed(format!("cannot start a thread: {cause}")))?;
    Ok(lines)
}

/// Reads a line, which may end in LF, CR LF, or the end of the input; `None` at the end of the input.
fn next_line(input: &mut impl BufRead) -> io::Result<Option<Line>> {
    let mut bytes = Vec::new();
    // A maximum line with both bytes of its end.
    input.by_ref().take(MAX_LINE_BYTES as u64 + 2).read_until(b'\n', &mut bytes)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let has_end = bytes.pop_if(|byte| *byte == b'\n').is_some();
    if has_end || bytes.len() <= MAX_LINE_BYTES {
        bytes.pop_if(|byte| *byte == b'\r');
    }
    let is_cut = bytes.len() > MAX_LINE_BYTES;
    if is_cut {
        bytes.truncate(MAX_LINE_BYTES);
        if !has_end {
            skip_line(input)?;
        }
    }
    Ok(Some(Line { bytes, is_cut }))
}

/// Skips the rest of a line, with its end.
fn skip_line(input: &mut impl BufRead) -> io::Result<()> {
    loop {
        let buffer = match input.fill_buf() {
            Ok(buffer) => buffer,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let end = buffer.iter().position(|&byte| byte == b'\n');
        let (count, is_end) = (end.map_or(buffer.len(), |end| end + 1), end.is_some() || buffer.is_empty());
        input.consume(count);
        if is_end {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(input: &[u8]) -> Vec<Line> {
        // A small buffer, so that lines continue beyond it.
        let mut input = io::BufReader::with_capacity(7, input);
        std::iter::from_fn(|| next_line(&mut input).unwrap()).collect()
    }

    fn line(bytes: &[u8], is_cut: bool) -> Line {
        Line { bytes: bytes.to_vec(), is_cut }
    }

    #[test]
    fn lines_end_in_lf_crlf_or_the_end_of_input() {
        let expected = [&b"a.png"[..], b" b\t.png ", b"", b"c\r", b"\xff\0d"].map(|bytes| line(bytes, false));
        assert_eq!(lines(b"a.png\n b\t.png \r\n\nc\r\r\n\xff\0d"), expected);
        assert_eq!(lines(b""), []);
        assert_eq!(lines(b"\r\n"), [line(b"", false)]);
    }

    #[test]
    fn too_long_lines_are_cut_and_the_next_line_is_whole() {
        let longest = vec![b'x'; MAX_LINE_BYTES];
        for end in [&b"\n"[..], b"\r\n"] {
            let input = [&longest[..], end, b"next\n"].concat();
            assert_eq!(lines(&input), [line(&longest, false), line(b"next", false)]);
            for more in [1, 2, 3, 1000] {
                let input = [&longest[..], &vec![b'y'; more], end, b"next\n"].concat();
                assert_eq!(lines(&input), [line(&longest, true), line(b"next", false)], "{more}");
            }
        }
        assert_eq!(lines(&longest), [line(&longest, false)]);
        assert_eq!(lines(&[&longest[..], b"y"].concat()), [line(&longest, true)]);
    }
}
