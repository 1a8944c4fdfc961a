//! CSV (RFC 4180): `iterations.csv`, `epochs.csv` and `usage.csv`, which are written row by row, truncated on
//! resume, and readable while they grow; and tables of text fields ([`to_text`], [`writer`]).
//!
//! Losses, accuracies and learning rates are written as the shortest decimal that parses to the same bits, so
//! that equal runs have equal text. Times in seconds have six decimals. A missing value (no validation) is an
//! empty field.
//!
//! Columns depend on the run's [`Task`]; a reader detects it from the header.

mod rows;
#[cfg(test)]
mod tests;
mod usage;

pub use rows::{EpochRow, Field, IterationRow, Row, Task};
pub use usage::UsageRow;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use stratus_base::text;

use crate::append::AppendFile;
use crate::{Error, Result};

/// A CSV writer of text fields, which are quoted if necessary. Records may have different lengths.
pub fn writer<W: Write>(out: W) -> ::csv::Writer<W> {
    ::csv::WriterBuilder::new().flexible(true).from_writer(out)
}

/// Formats records of text fields, which are quoted if necessary.
#[must_use]
pub fn to_text<R, F>(records: impl IntoIterator<Item = R>) -> String
where
    R: IntoIterator<Item = F>,
    F: AsRef<[u8]>,
{
    let mut out = writer(Vec::new());
    for record in records {
        // Writing to a Vec cannot fail.
        let _ = out.write_record(record);
    }
    String::from_utf8(out.into_inner().unwrap_or_default()).unwrap_or_default()
}

/// Formats a number as the shortest decimal that parses to the same bits; empty for `None`.
#[must_use]
pub fn exact(value: Option<f64>) -> String {
    value.map_or(String::new(), |value| format!("{value:?}"))
}

/// The maximum length of a line. Rows have a few numbers.
const MAX_LINE_BYTES: u64 = 1 << 16;
const REMEDY: &str = "restore it from a copy, or remove the line";

/// Appends rows without allocating. Rows are written to the file in batches of 32 KiB, or on a flush.
#[derive(Debug)]
pub struct CsvWriter<R> {
    file: AppendFile,
    task: Task,
    /// The position of each of the file's columns in the row, `None` for an unknown one, if another version
    /// wrote its header with other columns.
    columns: Option<Vec<Option<usize>>>,
    row: PhantomData<fn(&R)>,
}

impl<R: Row> CsvWriter<R> {
    /// Opens `path` for appending, and writes the header if it is new. An incomplete last line is removed.
    pub fn open(path: &Path, task: Task) -> Result<Self> {
        let mut file = AppendFile::open(path)?;
        let whole = whole_lines(&mut file)?;
        file.truncate_to(whole)?;
        let mut writer = Self { file, task, columns: None, row: PhantomData };
        if whole == 0 {
            writer.header()?;
        } else {
            let (header, columns) = (header_columns(&mut writer.file)?, R::columns(task));
            if header != columns {
                let position = |name: &String| columns.iter().position(|column| column == name);
                writer.columns = Some(header.iter().map(position).collect());
            }
        }
        Ok(writer)
    }

    /// Opens `path`, truncated to the `position` that a checkpoint recorded.
    pub fn resume_at(path: &Path, task: Task, position: u64) -> Result<Self> {
        let mut writer = Self::open(path, task)?;
        writer.truncate_to(position)?;
        Ok(writer)
    }

    /// Appends a row.
    pub fn append(&mut self, row: &R) -> Result<()> {
        match &self.columns {
            None => row.write(self.task, self.file.buffer()),
            Some(columns) => row.write_columns(self.task, columns, self.file.buffer()),
        }
        self.file.finish_record()
    }

    /// Writes all rows to the operating system, so that other processes see them.
    pub fn flush(&mut self) -> Result<()> {
        self.file.flush()
    }

    /// Writes all rows to the disk.
    pub fn sync(&mut self) -> Result<()> {
        self.file.sync()
    }

    /// The length of the file in bytes, including buffered rows. Call [`CsvWriter::sync`] before a checkpoint
    /// records it.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.file.length()
    }

    /// Truncates the file to `position`. An empty file gets its header again.
    pub fn truncate_to(&mut self, position: u64) -> Result<()> {
        self.file.truncate_to(position)?;
        if position == 0 { self.header() } else { Ok(()) }
    }

    fn header(&mut self) -> Result<()> {
        self.columns = None;
        self.file.buffer().extend_from_slice(to_text([R::columns(self.task)]).as_bytes());
        self.file.flush()
    }
}

/// The columns of the file's first line. Rows are appended at its end afterwards.
fn header_columns(file: &mut AppendFile) -> Result<Vec<String>> {
    let (path, end) = (file.path().to_path_buf(), file.length());
    let read = Error::io("read", &path);
    let mut line = Vec::new();
    let mut read_line = || {
        file.file().seek(SeekFrom::Start(0))?;
        BufReader::new(file.file().take(MAX_LINE_BYTES)).read_until(b'\n', &mut line)?;
        file.file().seek(SeekFrom::Start(end))
    };
    read_line().map_err(read)?;
    let line = String::from_utf8_lossy(&line);
    Ok(line.trim_end_matches('\n').split(',').map(|name| name.trim().to_owned()).collect())
}

/// The length of the file up to its last line end.
fn whole_lines(file: &mut AppendFile) -> Result<u64> {
    let path = file.path().to_path_buf();
    let mut end = file.length();
    let mut chunk = [0u8; 4096];
    while end > 0 {
        let start = end.saturating_sub(chunk.len() as u64);
        let bytes = &mut chunk[..(end - start) as usize];
        file.file()
            .seek(SeekFrom::Start(start))
            .and_then(|_| file.file().read_exact(bytes))
            .map_err(Error::io("read", &path))?;
        if let Some(i) = bytes.iter().rposition(|&b| b == b'\n') {
            return Ok(start + i as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// Reads rows one by one, also while another process appends: an incomplete last line is ignored.
///
/// Columns are found by their names in the header, so that a file with additional columns is read too, and
/// one of an earlier version that lacks new columns.
#[derive(Debug)]
pub struct CsvReader<R> {
    input: BufReader<File>,
    path: PathBuf,
    task: Task,
    /// The position of each of the row's columns in the file; `None` for a new column that the file lacks.
    columns: Vec<Option<usize>>,
    line: Vec<u8>,
    number: u64,
    row: PhantomData<fn() -> R>,
}

impl<R: Row> CsvReader<R> {
    /// Opens `path`.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let mut reader = Self {
            input: BufReader::new(file),
            path: path.to_path_buf(),
            task: Task::default(),
            columns: Vec::new(),
            line: Vec::new(),
            number: 0,
            row: PhantomData,
        };
        if reader.next_line()? {
            let header = String::from_utf8_lossy(&reader.line);
            let names: Vec<&str> = header.split(',').map(str::trim).collect();
            let is_new = |column: &&str| R::NEW_COLUMNS.contains(column);
            let has_all =
                |task: &Task| R::columns(*task).iter().all(|column| names.contains(column) || is_new(column));
            // If no task matches, the columns of the first one are reported as missing.
            reader.task = Task::ALL.into_iter().find(has_all).unwrap_or_default();
            for column in R::columns(reader.task) {
                let position = names.iter().position(|name| *name == column);
                let missing = || {
                    Error::damaged(path, format!("line 1 has no column {column}"), "restore it from a copy")
                };
                if position.is_none() && !is_new(&column) {
                    return Err(missing());
                }
                reader.columns.push(position);
            }
        }
        Ok(reader)
    }

    /// The task of the run that wrote the file, detected from its columns.
    #[must_use]
    pub fn task(&self) -> Task {
        self.task
    }

    /// Reads a line without its end into `line`; false if no complete line remains.
    fn next_line(&mut self) -> Result<bool> {
        self.line.clear();
        let mut input = self.input.by_ref().take(MAX_LINE_BYTES + 1);
        input.read_until(b'\n', &mut self.line).map_err(Error::io("read", &self.path))?;
        self.number += 1;
        if self.line.len() as u64 > MAX_LINE_BYTES {
            let reason = format!("line {} is longer than {}", self.number, text::bytes(MAX_LINE_BYTES));
            return Err(Error::damaged(&self.path, reason, REMEDY));
        }
        Ok(self.line.pop() == Some(b'\n'))
    }

    fn row(&self) -> Result<R> {
        let damaged =
            |reason: String| Error::damaged(&self.path, format!("line {}: {reason}", self.number), REMEDY);
        let text = std::str::from_utf8(&self.line).map_err(|_| damaged("not UTF-8".into()))?;
        let found: Vec<&str> = text.split(',').collect();
        let field = |column: &Option<usize>| column.map_or(Some(""), |i| found.get(i).copied());
        let fields: Option<Vec<&str>> = self.columns.iter().map(field).collect();
        let fields = fields.ok_or_else(|| damaged(format!("only {} fields", found.len())))?;
        R::parse(self.task, &fields).map_err(|column| damaged(format!("invalid {column}")))
    }
}

impl<R: Row> Iterator for CsvReader<R> {
    type Item = Result<R>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.columns.is_empty() {
            return None;
        }
        match self.next_line() {
            Ok(true) => Some(self.row()),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

/// Reads all rows of `path`.
pub fn read<R: Row>(path: &Path) -> Result<Vec<R>> {
    CsvReader::open(path)?.collect()
}
