//! The output of a script, separated from what the account's shell writes around it.
//!
//! Start-up files greet (`echo Welcome`, a list of modules, a quota), others say something at the end, and
//! all of it comes on the streams of the script. So a script is framed: it prints a mark of its own before
//! its first command and another one, with its exit code, behind its last, on standard output and on standard
//! error. Only what stands between the marks is its answer, and an answer without the second mark was cut.
//!
//! The account's shell need not be a Bourne shell. All it has to read is [`Frame::line`]: one line with a
//! word in single quotes, which has no line break, backslash, single quote or exclamation mark, so that `sh`,
//! `csh`, `tcsh`, `fish`, `zsh` and others read it alike. The script itself comes on standard input, in front
//! of its own input, and is read byte by byte: a shell that reads a script from there by itself may read
//! ahead.

use std::io::{self, Read};
use std::time::{SystemTime, UNIX_EPOCH};
use stratus_base::text::quoted;

/// The most that is passed over before the first mark.
const MAX_GREETING_BYTES: u64 = 64 << 20;
/// The last bytes of what was passed over that are kept for messages.
const KEPT_BYTES: usize = 4 << 10;
/// The bytes of a stream's buffer.
const BUFFER_BYTES: usize = 64 << 10;

/// The first and the last line of a script as it is sent: what arrives otherwise is not run.
const FIRST: &str = "#stratus";
const LAST: &str = "#end";

/// The marks of one script.
pub(super) struct Frame {
    token: String,
}

impl Frame {
    pub(super) fn new() -> Self {
        Self { token: token() }
    }

    /// The script as it is sent, with its arguments and marks.
    ///
    /// The marks are put together there, so that a shell which repeats what it runs does not print them.
    pub(super) fn script(&self, script: &str, arguments: &[&str]) -> String {
        let token = &self.token;
        let words: String = arguments.iter().map(|argument| format!(" {}", quoted(argument))).collect();
        let mark = |name: &str, more: &str| {
            let print = format!("printf '%s-%s-%s{more}\\n' stratus {token} {name}");
            let code = if more.is_empty() { "" } else { " \"$code\"" };
            format!("{print}{code}; {print}{code} >&2")
        };
        format!(
            "{FIRST}\n{}\n(\nset --{words}\n{script}\n)\ncode=$?\n{}\nexit \"$code\"\n{LAST}",
            mark("begins", ""),
            mark("ended", " %s")
        )
    }

    /// The line that runs a script of some bytes from standard input, for whatever shell the account has.
    pub(super) fn line(bytes: usize) -> String {
        format!(
            "sh -c 'stratus=$(dd bs=1 count={bytes} 2> /dev/null); case $stratus in \"{FIRST}\"*\"{LAST}\") \
             eval \"$stratus\" ;; *) echo \"the script did not come whole\" >&2; exit 1 ;; esac' stratus"
        )
    }

    /// One of the streams that the script writes to.
    pub(super) fn stream<R: Read>(&self, from: R) -> Framed<R> {
        let mark = |name: &str| format!("stratus-{}-{name}", self.token).into_bytes();
        Framed {
            from,
            begins: [&mark("begins")[..], b"\n"].concat(),
            ended: [&mark("ended")[..], b" "].concat(),
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            clear: 0,
            filled: 0,
            is_over: false,
            phase: Phase::Before,
            passed: Vec::new(),
            passed_bytes: 0,
        }
    }
}

/// Returns a word that no other script or start has.
pub(crate) fn token() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
    format!("{now:x}-{:x}-{:x}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// How far a stream has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The script has not begun.
    Before,
    Within,
    /// Nothing more is the script's. Its exit code, where its last mark came.
    After(Option<i32>),
}

/// A stream whose bytes are those that a script wrote.
pub(super) struct Framed<R> {
    from: R,
    begins: Vec<u8>,
    ended: Vec<u8>,
    /// The bytes read so far are in `start..filled`; those of the script, without any part of a mark, in
    /// `start..clear`.
    buffer: Vec<u8>,
    start: usize,
    clear: usize,
    filled: usize,
    /// Whether nothing more comes.
    is_over: bool,
    phase: Phase,
    passed: Vec<u8>,
    passed_bytes: u64,
}

impl<R: Read> Framed<R> {
    /// Waits for the script's begin; whether it came.
    pub(super) fn begins(&mut self) -> bool {
        // A stream that cannot be read does not begin.
        self.phase != Phase::Before || self.begin().unwrap_or(false)
    }

    /// The script's exit code, where its end has been read.
    pub(super) fn code(&self) -> Option<i32> {
        match self.phase {
            Phase::After(code) => code,
            Phase::Before | Phase::Within => None,
        }
    }

    /// The last of what came before the script began.
    pub(super) fn greeting(&self) -> &[u8] {
        &self.passed
    }

    /// The stream behind what is the script's.
    pub(super) fn into_rest(self) -> R {
        self.from
    }

    fn came(&self) -> &[u8] {
        &self.buffer[self.start..self.filled]
    }

    /// Reads more; whether something came.
    fn fill(&mut self) -> io::Result<bool> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.filled, 0);
            self.filled -= self.start;
            self.clear = self.clear.saturating_sub(self.start);
            self.start = 0;
        }
        loop {
            match self.from.read(&mut self.buffer[self.filled..]) {
                Ok(count) => {
                    self.filled += count;
                    self.is_over = count == 0;
                    return Ok(count > 0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Passes over bytes that are not the script's.
    fn pass(&mut self, bytes: usize) {
        self.passed.extend_from_slice(&self.buffer[self.start..self.start + bytes]);
        let more = self.passed.len().saturating_sub(KEPT_BYTES);
        self.passed.drain(..more);
        self.passed_bytes += bytes as u64;
        self.start += bytes;
    }

    /// Passes over what comes before the script; whether it begins.
    fn begin(&mut self) -> io::Result<bool> {
        loop {
            if let Some(at) = find(self.came(), &self.begins) {
                self.pass(at);
                self.start += self.begins.len();
                self.clear = self.start;
                self.phase = Phase::Within;
                return Ok(true);
            }
            let kept = if self.is_over { 0 } else { begun(self.came(), &self.begins) };
            self.pass(self.came().len() - kept);
            if self.is_over || self.passed_bytes > MAX_GREETING_BYTES {
                return Ok(false);
            }
            self.fill()?;
        }
    }

    /// Reads the exit code behind the last mark.
    fn end(&mut self) -> io::Result<()> {
        loop {
            let digits = &self.came()[self.ended.len()..];
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

impl<R: Read> Read for Framed<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() || self.phase == Phase::Before && !self.begin()? {
            return Ok(0);
        }
        while self.phase == Phase::Within {
            if self.clear > self.start {
                let count = out.len().min(self.clear - self.start);
                out[..count].copy_from_slice(&self.buffer[self.start..self.start + count]);
                self.start += count;
                return Ok(count);
            }
            match find(self.came(), &self.ended) {
                Some(0) => self.end()?,
                Some(at) => self.clear = self.start + at,
                None if self.is_over && self.came().is_empty() => self.phase = Phase::After(None),
                None if self.is_over => self.clear = self.filled,
                None => {
                    self.clear = self.filled - begun(self.came(), &self.ended);
                    if self.clear == self.start {
                        self.fill()?;
                    }
                }
            }
        }
        Ok(0)
    }
}

/// Where a word first stands in bytes.
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

/// The number of last bytes with which a word may begin.
fn begun(bytes: &[u8], word: &[u8]) -> usize {
    let most = bytes.len().min(word.len() - 1);
    (1..=most).rev().find(|&count| bytes.ends_with(&word[..count])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{Frame, Framed, KEPT_BYTES};
    use std::io::{self, Read};

    /// Gives a few bytes at a time.
    struct Slow<'a>(&'a [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(out.len());
            (&mut self.0).take(count as u64).read(out)
        }
    }

    fn read<R: Read>(framed: &mut Framed<R>) -> Vec<u8> {
        let mut bytes = Vec::new();
        framed.read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn an_answer_is_what_stands_between_the_marks_however_it_comes() {
        let frame = Frame::new();
        let mark = |name: &str| format!("stratus-{}-{name}", frame.token);
        let (begins, ended) = (mark("begins\n"), mark("ended "));
        let large: Vec<u8> =
            (0..200_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        // Beginnings of the marks are no marks.
        let almost = [&begins.as_bytes()[..begins.len() - 1], &ended.as_bytes()[..20], b"stratus-"].concat();
        for greeting in [&b""[..], b"Welcome\n", b"no end of line", &large, &almost, &ended.as_bytes()[..5]] {
            for answer in [&b""[..], b"text\n", b"\0\xff\n\n", &large, &almost, begins.as_bytes()] {
                for (after, code) in
                    [("0\n", Some(0)), ("255\nGood bye\n", Some(255)), ("", None), ("1", None)]
                {
                    let end = [ended.as_bytes(), after.as_bytes()].concat();
                    let whole = [greeting, begins.as_bytes(), answer, &end].concat();
                    for step in [1, 7, 60, usize::MAX] {
                        // A byte at a time, of large ones, takes long and shows nothing more.
                        if step < 60 && whole.len() > 100_000 {
                            continue;
                        }
                        let mut framed = frame.stream(Slow(&whole, step));
                        assert_eq!(read(&mut framed), answer);
                        assert_eq!(framed.code(), code);
                        let kept = &greeting[greeting.len().saturating_sub(KEPT_BYTES)..];
                        assert_eq!(framed.greeting(), kept);
                    }
                }
                // Cut: what came is the answer, and has no end.
                let cut = [greeting, begins.as_bytes(), answer, &ended.as_bytes()[..9]].concat();
                let mut framed = frame.stream(&cut[..]);
                assert_eq!(read(&mut framed), [answer, &ended.as_bytes()[..9]].concat());
                assert!(framed.begins() && framed.code().is_none());
            }
            let mut framed = frame.stream(greeting);
            assert!(read(&mut framed).is_empty() && !framed.begins());
        }
    }
}
