//! The end of a run's log, and what was appended to it since.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::Serialize;
use stratus_base::text::is_printable;

/// Maximum number of lines that are sent at once, and that a page keeps.
pub const MAX_LINES: usize = 200;
/// Maximum number of bytes of one read: when more was appended, only the end is sent.
const MAX_READ_BYTES: u64 = 128 << 10;
/// Maximum length of a line without its end that is waited for.
const MAX_OPEN_LINE_BYTES: usize = 8 << 10;

/// A position in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    inode: u64,
    offset: u64,
}

impl Cursor {
    /// Reads the text of a cursor; `None` if it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let (inode, offset) = text.split_once('-')?;
        Some(Self { inode: inode.parse().ok()?, offset: offset.parse().ok()? })
    }

    fn text(self) -> String {
        format!("{}-{}", self.inode, self.offset)
    }
}

/// A part of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogPart {
    /// The position after it.
    pub cursor: String,
    /// True if it does not continue what was read before: the log is another one, or parts were skipped.
    pub is_new: bool,
    /// True if the log has lines before this part that are not sent.
    pub has_earlier: bool,
    /// The lines, each with its end, without escape sequences.
    pub text: String,
}

/// Reads what was appended to a log after a position; without one, its last lines. A line is sent when it is
/// complete. The part is empty if there is no log.
///
/// # Errors
/// If the log cannot be read.
pub fn read(path: &Path, after: Option<Cursor>) -> io::Result<LogPart> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(LogPart { is_new: after.is_some(), ..LogPart::default() });
        }
        Err(error) => return Err(error),
    };
    let facts = file.metadata()?;
    let (inode, length) = (facts.ino(), facts.len());
    let known = after.filter(|cursor| {
        cursor.inode == inode && cursor.offset <= length && length - cursor.offset <= MAX_READ_BYTES
    });
    let start = known.map_or(length.saturating_sub(MAX_READ_BYTES), |cursor| cursor.offset);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(MAX_READ_BYTES).read_to_end(&mut bytes)?;
    let mut end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    if bytes.len() - end > MAX_OPEN_LINE_BYTES {
        end = bytes.len();
    }
    let mut lines: Vec<&[u8]> = bytes[..end].split_inclusive(|byte| *byte == b'\n').collect();
    let mut has_earlier = false;
    if known.is_none() && start > 0 && !lines.is_empty() {
        // It may begin within a line.
        lines.remove(0);
        has_earlier = true;
    }
    let excess = lines.len().saturating_sub(MAX_LINES);
    has_earlier |= excess > 0;
    let text = lines[excess..].iter().map(|line| plain(line)).collect();
    let cursor = Cursor { inode, offset: start + end as u64 }.text();
    Ok(LogPart { cursor, is_new: known.is_none() || excess > 0, has_earlier, text })
}

/// The text of a line with its end, without escape sequences of terminals. Of a line that was overwritten
/// with carriage returns, the last text is kept; other characters that cannot be shown are replaced.
fn plain(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\u{1b}' => skip_escape(&mut letters),
            '\n' | '\t' => out.push(letter),
            '\r' if matches!(letters.peek(), None | Some('\n' | '\r')) => {}
            '\r' => out.clear(),
            letter if is_printable(letter) => out.push(letter),
            _ => out.push(char::REPLACEMENT_CHARACTER),
        }
    }
    out
}

/// Skips the rest of an escape sequence (ECMA-48): `[` up to a letter or `@` to `~`; a string such as a
/// title, up to BEL or the string terminator; or one more character.
fn skip_escape(letters: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match letters.next_if(|letter| *letter != '\n') {
        Some('[') => {
            while letters.next_if(|letter| matches!(letter, ' '..='?')).is_some() {}
            letters.next_if(|letter| matches!(letter, '@'..='~'));
        }
        Some(']' | 'P' | 'X' | '^' | '_') => {
            while let Some(letter) = letters.next_if(|letter| *letter != '\n') {
                match letter {
                    '\u{7}' => break,
                    '\u{1b}' => {
                        letters.next_if_eq(&'\\');
                        break;
                    }
                    _ => {}
                }
            }
        }
        Some(' '..='/') => _ = letters.next_if(|letter| *letter != '\n'),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    fn append(path: &Path, text: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn next(path: &Path, part: &LogPart) -> LogPart {
        read(path, Cursor::parse(&part.cursor)).unwrap()
    }

    #[test]
    fn only_new_whole_lines_are_sent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.txt");
        assert_eq!(read(&path, None).unwrap(), LogPart::default());
        append(&path, "one\ntwo\nhal");
        let first = read(&path, None).unwrap();
        assert_eq!((first.text.as_str(), first.is_new, first.has_earlier), ("one\ntwo\n", true, false));
        let none = next(&path, &first);
        assert_eq!((none.text.as_str(), none.is_new, &none.cursor), ("", false, &first.cursor));
        append(&path, "f\nfour\n");
        let more = next(&path, &none);
        assert_eq!((more.text.as_str(), more.is_new), ("half\nfour\n", false));
        // Another file, a shorter file, a cursor from elsewhere.
        fs::write(folder.path().join("new"), "new\n").unwrap();
        fs::rename(folder.path().join("new"), &path).unwrap();
        let again = next(&path, &more);
        assert_eq!((again.text.as_str(), again.is_new), ("new\n", true));
        fs::write(&path, "a\n").unwrap();
        assert!(next(&path, &again).is_new);
        for text in ["", "-", "1", "1-", "-1", "1-x", "1-99999999999999999999", "../1"] {
            assert_eq!(Cursor::parse(text), None, "{text}");
        }
        assert!(read(folder.path(), None).is_err(), "a folder");
    }

    #[test]
    fn long_logs_are_cut_to_their_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.txt");
        let lines = |from: usize, to: usize| (from..to).map(|i| format!("line {i}\n")).collect::<String>();
        append(&path, &lines(0, 300));
        let first = read(&path, None).unwrap();
        assert_eq!(first.text, lines(100, 300));
        assert!(first.has_earlier);
        append(&path, &lines(300, 800));
        let more = next(&path, &first);
        assert_eq!(
            (more.text == lines(600, 800), more.is_new),
            (true, true),
            "the lines between are skipped"
        );
        append(&path, &lines(800, 40_000));
        let much = next(&path, &more);
        assert_eq!(much.text, lines(39_800, 40_000));
        // A line that does not end.
        append(&path, &"x".repeat(1 << 20));
        let endless = next(&path, &much);
        assert!(endless.text.len() <= MAX_READ_BYTES as usize);
        assert_eq!(next(&path, &endless).text, "");
    }

    #[test]
    fn escape_sequences_are_removed() {
        for (line, shown) in [
            ("\u{1b}[1;31merror\u{1b}[0m: x\n", "error: x\n"),
            ("\u{1b}]0;title\u{7}a\u{1b}]8;;http://evil\u{1b}\\b\n", "ab\n"),
            ("10 %\r20 %\r30 %\r\n", "30 %\n"),
            ("\u{1b}(Ba\u{1b}c\u{1b}\nb", "a\nb"),
            ("a\u{1b}[\nb\u{1b}]x\nc", "a\nb\nc"),
            ("a\0\u{8}\u{9b}b\tc\u{202e}d\n", "a���b\tc�d\n"),
            ("<script>alert(1)</script>\n", "<script>alert(1)</script>\n"),
        ] {
            assert_eq!(plain(line.as_bytes()), shown, "{line:?}");
        }
        assert_eq!(plain(b"\xff\n"), "\u{fffd}\n");
    }
}
