//! Reading the rows that were appended to a CSV file of a run since the last read.
//!
//! A resumed run truncates its files and appends again. The tail then starts again at the beginning: if the
//! file is another one, if it became shorter, or if the bytes before the position are not those that were
//! read.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use stratus_base::text;
use stratus_run::csv::{MAX_LINE_BYTES, Row, RowParser, Task};

/// Maximum number of bytes of one read.
const MAX_READ_BYTES: u64 = 4 << 20;
/// Maximum number of remembered bytes before the position.
const MAX_CONTEXT_BYTES: usize = 64;

/// The position in a growing CSV file.
#[derive(Debug)]
pub struct Tail<R> {
    /// Device and inode of the file.
    file: Option<(u64, u64)>,
    position: u64,
    /// The last bytes before the position.
    context: Vec<u8>,
    parser: Option<RowParser<R>>,
    lines: u64,
    damage: Option<String>,
}

impl<R> Default for Tail<R> {
    fn default() -> Self {
        Self { file: None, position: 0, context: Vec::new(), parser: None, lines: 0, damage: None }
    }
}

/// The result of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TailRead {
    /// True if the file began again: earlier rows are no longer valid.
    pub restarted: bool,
    /// The number of bytes read.
    pub bytes: u64,
    /// True if the file has more rows.
    pub more: bool,
}

impl<R: Row> Tail<R> {
    /// The task of the run, detected from the header.
    pub fn task(&self) -> Task {
        self.parser.as_ref().map(RowParser::task).unwrap_or_default()
    }

    /// The number of bytes of the file whose rows were read.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Appends the new whole rows of `path` to `rows`, at most 4 MiB of them.
    ///
    /// # Errors
    /// The reason, if the file cannot be read, or has an invalid line; then until it begins again.
    pub fn read(&mut self, path: &Path, rows: &mut Vec<R>) -> Result<TailRead, String> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut done = TailRead::default();
        let new = self.read_bytes(path, &mut done).map_err(|error| format!("cannot read {name}: {error}"))?;
        if let Some(damage) = &self.damage {
            return Err(damage.clone());
        }
        let end = new.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let is_too_long = |length: usize| length as u64 > MAX_LINE_BYTES;
        let too_long = || format!(" is longer than {}", text::bytes(MAX_LINE_BYTES));
        for line in new[..end].split_inclusive(|byte| *byte == b'\n') {
            self.lines += 1;
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            let parsed = match &self.parser {
                _ if is_too_long(line.len()) => Err(too_long()),
                Some(parser) => {
                    parser.parse(line).map(|row| rows.push(row)).map_err(|why| format!(": {why}"))
                }
                None => RowParser::from_header(line)
                    .map(|parser| self.parser = Some(parser))
                    .map_err(|why| format!(" {why}")),
            };
            if let Err(reason) = parsed {
                return Err(self.damaged(&name, &reason, &new));
            }
        }
        if is_too_long(new.len() - end) {
            self.lines += 1;
            return Err(self.damaged(&name, &too_long(), &new));
        }
        self.advance(&new[..end]);
        done.more &= end > 0;
        Ok(done)
    }

    /// The bytes from the position on.
    fn read_bytes(&mut self, path: &Path, done: &mut TailRead) -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let facts = file.metadata()?;
        let identity = (facts.dev(), facts.ino());
        let mut is_same = self.file == Some(identity) && facts.len() >= self.position;
        if is_same && !self.context.is_empty() {
            let mut before = vec![0; self.context.len()];
            file.seek(SeekFrom::Start(self.position - before.len() as u64))?;
            file.read_exact(&mut before)?;
            done.bytes += before.len() as u64;
            is_same = before == self.context;
        }
        if !is_same {
            done.restarted = self.file.is_some();
            *self = Self { file: Some(identity), ..Self::default() };
            file.seek(SeekFrom::Start(0))?;
        }
        let mut new = Vec::new();
        if self.damage.is_none() {
            file.seek(SeekFrom::Start(self.position))?;
            file.take(MAX_READ_BYTES).read_to_end(&mut new)?;
        }
        done.bytes += new.len() as u64;
        done.more = new.len() as u64 == MAX_READ_BYTES;
        Ok(new)
    }

    fn advance(&mut self, read: &[u8]) {
        self.position += read.len() as u64;
        self.context.extend_from_slice(&read[read.len().saturating_sub(MAX_CONTEXT_BYTES)..]);
        let excess = self.context.len().saturating_sub(MAX_CONTEXT_BYTES);
        self.context.drain(..excess);
    }

    /// Keeps the damage until the file begins again, which the bytes up to here show.
    fn damaged(&mut self, name: &str, reason: &str, read: &[u8]) -> String {
        self.advance(read);
        let damage = format!("{name} is damaged: line {}{reason}", self.lines);
        self.damage = Some(damage.clone());
        damage
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use stratus_run::csv::{CsvWriter, EpochRow};

    fn row(epoch: u32) -> EpochRow {
        EpochRow { epoch, train_loss: f64::from(epoch), ..EpochRow::default() }
    }

    fn epochs(tail: &mut Tail<EpochRow>, path: &Path) -> Result<(bool, Vec<u32>), String> {
        let mut rows = Vec::new();
        let read = tail.read(path, &mut rows)?;
        Ok((read.restarted, rows.iter().map(|row| row.epoch).collect()))
    }

    #[test]
    fn reads_whole_new_rows_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("epochs.csv");
        let mut tail = Tail::default();
        assert!(epochs(&mut tail, &path).unwrap_err().contains("epochs.csv"));
        fs::write(&path, "epo").unwrap();
        assert_eq!(epochs(&mut tail, &path), Ok((false, vec![])), "half a header");
        fs::remove_file(&path).unwrap();
        let mut writer = CsvWriter::open(&path, Task::Segmentation).unwrap();
        writer.append(&row(1)).unwrap();
        writer.flush().unwrap();
        let (_, found) = epochs(&mut tail, &path).unwrap();
        assert_eq!((found, tail.task()), (vec![1], Task::Segmentation));
        let whole = fs::read(&path).unwrap();
        writer.append(&row(2)).unwrap();
        writer.append(&row(3)).unwrap();
        writer.flush().unwrap();
        let all = fs::read(&path).unwrap();
        fs::write(&path, &all[..all.len() - 5]).unwrap();
        let mut rows = Vec::new();
        let read = tail.read(&path, &mut rows).unwrap();
        assert_eq!((read.restarted, rows.len()), (false, 1));
        assert!(read.bytes as usize <= all.len() - whole.len() + MAX_CONTEXT_BYTES, "{read:?}");
        fs::write(&path, &all).unwrap();
        assert_eq!(epochs(&mut tail, &path), Ok((false, vec![3])));
        assert_eq!(epochs(&mut tail, &path), Ok((false, vec![])));
    }

    /// A run that resumes truncates the file, and may append more than was read before.
    #[test]
    fn starts_again_when_the_file_was_cut_or_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("epochs.csv");
        let mut tail = Tail::default();
        let mut writer = CsvWriter::open(&path, Task::default()).unwrap();
        writer.append(&row(1)).unwrap();
        let checkpoint = writer.position();
        writer.append(&row(2)).unwrap();
        writer.flush().unwrap();
        assert_eq!(epochs(&mut tail, &path), Ok((false, vec![1, 2])));
        writer.truncate_to(checkpoint).unwrap();
        assert_eq!(epochs(&mut tail, &path), Ok((true, vec![1])));
        writer.append(&row(2)).unwrap();
        writer.flush().unwrap();
        assert_eq!(epochs(&mut tail, &path), Ok((false, vec![2])));
        writer.truncate_to(checkpoint).unwrap();
        for epoch in 7..10 {
            writer.append(&row(epoch)).unwrap();
        }
        writer.flush().unwrap();
        assert_eq!(epochs(&mut tail, &path), Ok((true, vec![1, 7, 8, 9])), "cut and longer than before");
        let copy = folder.path().join("copy");
        fs::copy(&path, &copy).unwrap();
        fs::rename(&copy, &path).unwrap();
        assert_eq!(epochs(&mut tail, &path), Ok((true, vec![1, 7, 8, 9])), "replaced");
    }

    #[test]
    fn damage_is_reported_until_the_file_begins_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("epochs.csv");
        let mut tail = Tail::default();
        let header = "epoch,train_loss,train_top1,val_loss,val_top1,val_top5,train_s,val_s,elapsed_s\n";
        fs::write(&path, format!("{header}1,0.5,0.5,,,,1,1,1\nnonsense\n")).unwrap();
        let damage = epochs(&mut tail, &path).unwrap_err();
        assert!(damage.contains("epochs.csv is damaged: line 3: "), "{damage}");
        assert_eq!(epochs(&mut tail, &path).unwrap_err(), damage);
        fs::write(&path, "epoch,what\n").unwrap();
        let damage = epochs(&mut tail, &path).unwrap_err();
        assert!(damage.contains("line 1 has no column"), "{damage}");
        fs::remove_file(&path).unwrap();
        fs::write(folder.path().join("new"), vec![b'x'; 1 << 17]).unwrap();
        fs::rename(folder.path().join("new"), &path).unwrap();
        let damage = epochs(&mut tail, &path).unwrap_err();
        assert!(damage.contains("line 1 is longer than 64 KiB"), "{damage}");
    }
}
