//! CSV (RFC 4180): `iterations.csv`, `epochs.csv` and `usage.csv`, which are written row by row, truncated on
//! resume, and readable while they grow; and tables of text fields ([`to_text`], [`writer`]).
//!
//! Losses, accuracies and learning rates are written as the shortest decimal that parses to the same bits, so
//! that equal runs have equal text. Times in seconds have six decimals. A missing value (no validation) is an
//! empty field.
//!
//! Columns depend on the run's [`Task`]; a reader detects it from the header.

mod parser;
mod rows;
#[cfg(test)]
mod tests;
mod usage;

pub use parser::RowParser;
pub use rows::{EpochRow, Field, IterationRow, LabelColumns, NumberColumns, Row, Task};
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
pub const MAX_LINE_BYTES: u64 = 1 << 16;
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
#[derive(Debug)]
pub struct CsvReader<R> {
    input: BufReader<File>,
    path: PathBuf,
    /// `None` until the file has a whole header.
    parser: Option<RowParser<R>>,
    line: Vec<u8>,
    number: u64,
}

impl<R: Row> CsvReader<R> {
    /// Opens `path`.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let mut reader = Self {
            input: BufReader::new(file),
            path: path.to_path_buf(),
            parser: None,
            line: Vec::new(),
            number: 0,
        };
        if reader.next_line()? {
            let parser = RowParser::from_header(&reader.line);
            let damaged = |reason| Error::damaged(path, format!("line 1 {reason}"), "restore it from a copy");
            reader.parser = Some(parser.map_err(damaged)?);
        }
        Ok(reader)
    }

    /// The task of the run that wrote the file, detected from its columns.
    #[must_use]
    pub fn task(&self) -> Task {
        self.parser.as_ref().map(RowParser::task).unwrap_or_default()
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
}

impl<R: Row> Iterator for CsvReader<R> {
    type Item = Result<R>;

    fn next(&mut self) -> Option<Self::Item> {
        self.parser.as_ref()?;
        match self.next_line() {
            Ok(true) => {
                let row = self.parser.as_ref()?.parse(&self.line);
                Some(row.map_err(|reason| {
                    Error::damaged(&self.path, format!("line {}: {reason}", self.number), REMEDY)
                }))
            }
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

/// Reads all rows of `path`.
pub fn read<R: Row>(path: &Path) -> Result<Vec<R>> {
    CsvReader::open(path)?.collect()
}
