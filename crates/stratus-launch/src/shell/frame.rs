//! Separates the output of a script from other output of the account's shell.
//!
//! Start-up files may print greetings (`echo Welcome`, a list of modules, a quota) and log-out files a
//! farewell, all on the streams of the script. So a script is framed: it prints a unique mark before its
//! first command and another one, with its exit code, after its last command, on standard output and on
//! standard error. Only the text between the marks is its output; without the second mark, the output was
//! cut.
//!
//! The account's shell need not be a Bourne shell. It only has to run [`Frame::command_line`]: one line with
//! a word in single quotes, which has no line break, backslash, single quote or exclamation mark, so that
//! `sh`, `csh`, `tcsh`, `fish`, `zsh` and others read it alike. The script itself arrives on standard input,
//! before its own input, and is read byte by byte, because a shell that reads a script from standard input
//! may read ahead.

use std::io::{self, Read};
use std::time::{SystemTime, UNIX_EPOCH};
use stratus_base::text::shell_quoted;

/// The maximum length of the output before the first mark.
const MAX_GREETING_BYTES: u64 = 64 << 20;
/// The length of the end of the skipped output that is kept for messages.
const GREETING_TAIL_BYTES: usize = 4 << 10;
/// The size of a stream's buffer.
const BUFFER_BYTES: usize = 64 << 10;

/// The first and the last line of a script as it is sent; an incomplete script is not run.
const FIRST_LINE: &str = "#stratus";
const LAST_LINE: &str = "#end";

/// The marks around the output of one script.
pub(crate) struct Frame {
    token: String,
}

impl Frame {
    pub(super) fn new() -> Self {
        Self { token: unique_token() }
    }

    #[cfg(fuzzing)]
    pub(crate) fn with_token(token: &str) -> Self {
        Self { token: token.to_owned() }
    }

    /// The script as it is sent, with its arguments and marks.
    ///
    /// The script assembles the marks, so that a shell that echoes its commands does not print them.
    pub(super) fn script(&self, script: &str, arguments: &[&str]) -> String {
        let token = &self.token;
        let words: String = arguments.iter().map(|argument| format!(" {}", shell_quoted(argument))).collect();
        let mark = |name: &str, more: &str| {
            let print = format!("printf '%s-%s-%s{more}\\n' stratus {token} {name}");
            let code = if more.is_empty() { "" } else { " \"$code\"" };
            format!("{print}{code}; {print}{code} >&2")
        };
        format!(
            "{FIRST_LINE}\n{}\n(\nset --{words}\n{script}\n)\ncode=$?\n{}\nexit \"$code\"\n{LAST_LINE}",
            mark("begins", ""),
            mark("ended", " %s")
        )
    }

    /// The line that runs a script of `bytes` bytes from standard input, for any shell.
    pub(super) fn command_line(bytes: usize) -> String {
        format!(
            "sh -c 'stratus=$(dd bs=1 count={bytes} 2> /dev/null); case $stratus in \
             \"{FIRST_LINE}\"*\"{LAST_LINE}\") eval \"$stratus\" ;; \
             *) echo \"the script is incomplete\" >&2; exit 1 ;; esac' stratus"
        )
    }

    /// Wraps an output stream of the script.
    pub(crate) fn stream<R: Read>(&self, from: R) -> FramedStream<R> {
        let mark = |name: &str| format!("stratus-{}-{name}", self.token).into_bytes();
        FramedStream {
            from,
            start_mark: [&mark("begins")[..], b"\n"].concat(),
            end_mark: [&mark("ended")[..], b" "].concat(),
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            safe_end: 0,
            filled: 0,
            is_at_end: false,
            phase: Phase::Before,
            skipped: Vec::new(),
            skipped_bytes: 0,
        }
    }
}

/// Returns a unique token.
pub(crate) fn unique_token() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
    format!("{now:x}-{:x}-{:x}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The progress of reading a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The script has not started.
    Before,
    Within,
    /// The output of the script has ended; its exit code if the end mark was read.
    After(Option<i32>),
}

/// A stream of only the bytes that a script wrote.
pub(crate) struct FramedStream<R> {
    from: R,
    start_mark: Vec<u8>,
    end_mark: Vec<u8>,
    /// The bytes read so far are `start..filled`. The script's bytes, without any part of a mark, are
    /// `start..safe_end`.
    buffer: Vec<u8>,
    start: usize,
    safe_end: usize,
    filled: usize,
    /// True if the stream has ended.
    is_at_end: bool,
    phase: Phase,
    skipped: Vec<u8>,
    skipped_bytes: u64,
}

impl<R: Read> FramedStream<R> {
    /// Waits for the start of the script and returns whether it started.
    pub(super) fn wait_for_start(&mut self) -> bool {
        // A read error counts as a script that did not start.
        self.phase != Phase::Before || self.skip_greeting().unwrap_or(false)
    }

    /// The exit code of the script, if its end was read.
    pub(super) fn exit_code(&self) -> Option<i32> {
        match self.phase {
            Phase::After(code) => code,
            Phase::Before | Phase::Within => None,
        }
    }

    /// The end of the output before the script started.
    pub(super) fn greeting(&self) -> &[u8] {
        &self.skipped
    }

    /// The stream after the output of the script.
    pub(super) fn into_rest(self) -> R {
        self.from
    }

    fn unread(&self) -> &[u8] {
        &self.buffer[self.start..self.filled]
    }

    /// Reads more bytes and returns whether there were any.
    fn fill(&mut self) -> io::Result<bool> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.filled, 0);
            self.filled -= self.start;
            self.safe_end = self.safe_end.saturating_sub(self.start);
            self.start = 0;
        }
        loop {
            match self.from.read(&mut self.buffer[self.filled..]) {
                Ok(count) => {
                    self.filled += count;
                    self.is_at_end = count == 0;
                    return Ok(count > 0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Skips bytes that are not the script's.
    fn skip(&mut self, bytes: usize) {
        self.skipped.extend_from_slice(&self.buffer[self.start..self.start + bytes]);
        let more = self.skipped.len().saturating_sub(GREETING_TAIL_BYTES);
        self.skipped.drain(..more);
        self.skipped_bytes += bytes as u64;
        self.start += bytes;
    }

    /// Skips the output before the script and returns whether the script started.
    fn skip_greeting(&mut self) -> io::Result<bool> {
        loop {
            if let Some(at) = find(self.unread(), &self.start_mark) {
                self.skip(at);
                self.start += self.start_mark.len();
                self.safe_end = self.start;
                self.phase = Phase::Within;
                return Ok(true);
            }
            let kept = if self.is_at_end { 0 } else { partial_match_length(self.unread(), &self.start_mark) };
            self.skip(self.unread().len() - kept);
            if self.is_at_end || self.skipped_bytes > MAX_GREETING_BYTES {
                return Ok(false);
            }
            self.fill()?;
        }
    }

    /// Reads the exit code after the end mark.
    fn read_exit_code(&mut self) -> io::Result<()> {
        loop {
            let digits = &self.unread()[self.end_mark.len()..];
            if let Some(end) = digits.iter().position(|&byte| byte == b'\n') {
                let code = std::str::from_utf8(&digits[..end]).ok().and_then(|text| text.parse().ok());
                self.phase = Phase::After(code);
                return Ok(());
            }
            if digits.len() > 16 || !self.fill()? {
                self.phase = Phase::After(None);
                return Ok(());
            }
        }
    }
}

impl<R: Read> Read for FramedStream<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() || self.phase == Phase::Before && !self.skip_greeting()? {
            return Ok(0);
        }
        while self.phase == Phase::Within {
            if self.safe_end > self.start {
                let count = out.len().min(self.safe_end - self.start);
                out[..count].copy_from_slice(&self.buffer[self.start..self.start + count]);
                self.start += count;
                return Ok(count);
            }
            match find(self.unread(), &self.end_mark) {
                Some(0) => self.read_exit_code()?,
                Some(at) => self.safe_end = self.start + at,
                None if self.is_at_end && self.unread().is_empty() => self.phase = Phase::After(None),
                None if self.is_at_end => self.safe_end = self.filled,
                None => {
                    self.safe_end = self.filled - partial_match_length(self.unread(), &self.end_mark);
                    if self.safe_end == self.start {
                        self.fill()?;
                    }
                }
            }
        }
        Ok(0)
    }
}

/// The position of the first occurrence of a word.
fn find(bytes: &[u8], word: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(next) = bytes[at..].iter().position(|&byte| byte == word[0]) {
        at += next;
        if bytes[at..].starts_with(word) {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// The length of the longest end of `bytes` that is a proper beginning of `word`.
fn partial_match_length(bytes: &[u8], word: &[u8]) -> usize {
    let max_length = bytes.len().min(word.len() - 1);
    (1..=max_length).rev().find(|&count| bytes.ends_with(&word[..count])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{Frame, FramedStream, GREETING_TAIL_BYTES};
    use std::io::{self, Read};

    /// Gives a few bytes at a time.
    struct Slow<'a>(&'a [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(out.len());
            (&mut self.0).take(count as u64).read(out)
        }
    }

    fn read<R: Read>(framed: &mut FramedStream<R>) -> Vec<u8> {
        let mut bytes = Vec::new();
        framed.read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn output_between_the_marks_is_independent_of_read_sizes() {
        let frame = Frame::new();
        let mark = |name: &str| format!("stratus-{}-{name}", frame.token);
        let (begins, ended) = (mark("begins\n"), mark("ended "));
        let large: Vec<u8> =
            (0..200_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        // Beginnings of the marks are not marks.
        let almost = [&begins.as_bytes()[..begins.len() - 1], &ended.as_bytes()[..20], b"stratus-"].concat();
        for greeting in [&b""[..], b"Welcome\n", b"no end of line", &large, &almost, &ended.as_bytes()[..5]] {
            for answer in [&b""[..], b"text\n", b"\0\xff\n\n", &large, &almost, begins.as_bytes()] {
                for (after, code) in
                    [("0\n", Some(0)), ("255\nGood bye\n", Some(255)), ("", None), ("1", None)]
                {
                    let end = [ended.as_bytes(), after.as_bytes()].concat();
                    let whole = [greeting, begins.as_bytes(), answer, &end].concat();
                    for step in [1, 7, 60, usize::MAX] {
                        // Small steps through large output are slow and test nothing more.
                        if step < 60 && whole.len() > 100_000 {
                            continue;
                        }
                        let mut framed = frame.stream(Slow(&whole, step));
                        assert_eq!(read(&mut framed), answer);
                        assert_eq!(framed.exit_code(), code);
                        let kept = &greeting[greeting.len().saturating_sub(GREETING_TAIL_BYTES)..];
                        assert_eq!(framed.greeting(), kept);
                    }
                }
                // Cut output: the received bytes without an exit code.
                let cut = [greeting, begins.as_bytes(), answer, &ended.as_bytes()[..9]].concat();
                let mut framed = frame.stream(&cut[..]);
                assert_eq!(read(&mut framed), [answer, &ended.as_bytes()[..9]].concat());
                assert!(framed.wait_for_start() && framed.exit_code().is_none());
            }
            let mut framed = frame.stream(greeting);
            assert!(read(&mut framed).is_empty() && !framed.wait_for_start());
        }
    }
}
