//! `iterations.csv` and `epochs.csv`: written row by row, cut back on resume, readable while they grow.
//!
//! Losses, accuracies and learning rates are written as the shortest decimal that reads back as the same
//! bits, so that equal runs have equal text. Times in seconds have six decimals. A value that does not exist
//! (no validation) is an empty field.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use crate::append::AppendFile;
use crate::{Error, Result};

const REMEDY: &str = "restore it from a copy, or remove the line";

/// A row of one of the run's CSV files.
pub trait Row: Sized {
    /// The columns, in the order they are written.
    const COLUMNS: &'static [&'static str];
    /// Writes the fields, separated by commas, without a line end.
    fn write(&self, out: &mut impl Write) -> std::io::Result<()>;
    /// Reads the fields, given in the order of [`Row::COLUMNS`]; `Err` is the column that cannot be read.
    fn parse(fields: &[&str]) -> Result<Self, &'static str>;
}

/// A row of `iterations.csv`. `data_s + train_s + unattributed_s` is the iteration's wall time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IterationRow {
    /// The epoch, counted from 1.
    pub epoch: u32,
    /// The iteration since the start of the run, counted from 1.
    pub iteration: u64,
    /// The mean loss over the batch.
    pub loss: f64,
    /// The fraction of the batch whose best class is right, 0 to 1.
    pub top1: f64,
    /// The fraction whose class is among the best five; none with fewer classes.
    pub top5: Option<f64>,
    /// The learning rate of the update.
    pub learning_rate: f64,
    /// Seconds spent waiting for the batch.
    pub data_s: f64,
    /// Seconds attributed to anything else.
    pub train_s: f64,
    /// Seconds of the iteration that no slot accounts for.
    pub unattributed_s: f64,
}

/// A row of `epochs.csv`. Accuracies are fractions, 0 to 1; without a validation its fields are empty.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EpochRow {
    /// The epoch, counted from 1.
    pub epoch: u32,
    /// Mean loss over the epoch's training samples.
    pub train_loss: f64,
    /// Top-1 accuracy over the epoch's training samples.
    pub train_top1: f64,
    /// Mean loss over the validation samples.
    pub val_loss: Option<f64>,
    /// Top-1 accuracy on the validation samples.
    pub val_top1: Option<f64>,
    /// Top-5 accuracy on the validation samples.
    pub val_top5: Option<f64>,
    /// Seconds of training in this epoch.
    pub train_s: f64,
    /// Seconds of validation in this epoch.
    pub val_s: f64,
    /// Seconds since the start of the run, those before a resume included.
    pub elapsed_s: f64,
}

/// Prints the shortest decimal with the same bits, or nothing for `None`.
struct Shortest(Option<f64>);

impl std::fmt::Display for Shortest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |value| write!(f, "{value:?}"))
    }
}

impl Row for IterationRow {
    const COLUMNS: &'static [&'static str] = &[
        "epoch",
        "iteration",
        "loss",
        "top1",
        "top5",
        "learning_rate",
        "data_s",
        "train_s",
        "unattributed_s",
    ];

    fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        let Self { epoch, iteration, loss, top1, top5, learning_rate, data_s, train_s, unattributed_s } =
            self;
        let top5 = Shortest(*top5);
        write!(out, "{epoch},{iteration},{loss:?},{top1:?},{top5},{learning_rate:?},")?;
        write!(out, "{data_s:.6},{train_s:.6},{unattributed_s:.6}")
    }

    fn parse(fields: &[&str]) -> Result<Self, &'static str> {
        let fields = Fields { names: Self::COLUMNS, fields };
        Ok(Self {
            epoch: fields.value(0)?,
            iteration: fields.value(1)?,
            loss: fields.value(2)?,
            top1: fields.value(3)?,
            top5: fields.optional(4)?,
            learning_rate: fields.value(5)?,
            data_s: fields.value(6)?,
            train_s: fields.value(7)?,
            unattributed_s: fields.value(8)?,
        })
    }
}

impl Row for EpochRow {
    const COLUMNS: &'static [&'static str] = &[
        "epoch",
        "train_loss",
        "train_top1",
        "val_loss",
        "val_top1",
        "val_top5",
        "train_s",
        "val_s",
        "elapsed_s",
    ];

    fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        let Self { epoch, train_loss, train_top1, train_s, val_s, elapsed_s, .. } = self;
        let [val_loss, val_top1, val_top5] = [self.val_loss, self.val_top1, self.val_top5].map(Shortest);
        write!(out, "{epoch},{train_loss:?},{train_top1:?},{val_loss},{val_top1},{val_top5},")?;
        write!(out, "{train_s:.6},{val_s:.6},{elapsed_s:.6}")
    }

    fn parse(fields: &[&str]) -> Result<Self, &'static str> {
        let fields = Fields { names: Self::COLUMNS, fields };
        Ok(Self {
            epoch: fields.value(0)?,
            train_loss: fields.value(1)?,
            train_top1: fields.value(2)?,
            val_loss: fields.optional(3)?,
            val_top1: fields.optional(4)?,
            val_top5: fields.optional(5)?,
            train_s: fields.value(6)?,
            val_s: fields.value(7)?,
            elapsed_s: fields.value(8)?,
        })
    }
}

struct Fields<'a> {
    names: &'static [&'static str],
    fields: &'a [&'a str],
}

impl Fields<'_> {
    fn value<T: std::str::FromStr>(&self, i: usize) -> Result<T, &'static str> {
        self.fields.get(i).and_then(|field| field.trim().parse().ok()).ok_or(self.names[i])
    }

    fn optional<T: std::str::FromStr>(&self, i: usize) -> Result<Option<T>, &'static str> {
        match self.fields.get(i) {
            Some(field) if field.trim().is_empty() => Ok(None),
            _ => self.value(i).map(Some),
        }
    }
}

/// Appends rows. No row allocates memory. Rows reach the file when 32 KiB have gathered, or at a flush.
#[derive(Debug)]
pub struct CsvWriter<R> {
    file: AppendFile,
    row: PhantomData<fn(&R)>,
}

impl<R: Row> CsvWriter<R> {
    /// Opens `path` to append to it, with the header line if it is new. A cut last line is removed.
    pub fn open(path: &Path) -> Result<Self> {
        let mut file = AppendFile::open(path)?;
        let whole = whole_lines(&mut file)?;
        file.truncate_to(whole)?;
        let mut writer = Self { file, row: PhantomData };
        if whole == 0 {
            writer.header()?;
        }
        Ok(writer)
    }

    /// Opens `path` cut back to the `position` that a checkpoint recorded.
    pub fn resume_at(path: &Path, position: u64) -> Result<Self> {
        let mut writer = Self::open(path)?;
        writer.truncate_to(position)?;
        Ok(writer)
    }

    /// Appends a row.
    pub fn append(&mut self, row: &R) -> Result<()> {
        let buffer = self.file.buffer();
        // Writing into a Vec cannot fail.
        let _ = row.write(buffer);
        buffer.push(b'\n');
        self.file.appended()
    }

    /// Hands all rows to the operating system: other processes see them.
    pub fn flush(&mut self) -> Result<()> {
        self.file.flush()
    }

    /// Puts all rows onto the disk.
    pub fn sync(&mut self) -> Result<()> {
        self.file.sync()
    }

    /// The file's length in bytes with all rows written. Call [`CsvWriter::sync`] before a checkpoint records
    /// it.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.file.length()
    }

    /// Cuts the file back to `position`. Cut to nothing, it gets its header again.
    pub fn truncate_to(&mut self, position: u64) -> Result<()> {
        self.file.truncate_to(position)?;
        if position == 0 { self.header() } else { Ok(()) }
    }

    fn header(&mut self) -> Result<()> {
        let buffer = self.file.buffer();
        for (i, column) in R::COLUMNS.iter().enumerate() {
            buffer.extend_from_slice(if i == 0 { b"" } else { b"," });
            buffer.extend_from_slice(column.as_bytes());
        }
        buffer.push(b'\n');
        self.file.flush()
    }
}

/// The length of the file's part that ends with a line end.
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

/// Reads rows one by one, also while another process appends: a last line without its end is left out.
///
/// Columns are found by their names in the header, so a file with more columns than these is read too.
#[derive(Debug)]
pub struct CsvReader<R> {
    input: BufReader<File>,
    path: PathBuf,
    /// The position of each of the row's columns in the file.
    columns: Vec<usize>,
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
            columns: Vec::new(),
            line: Vec::new(),
            number: 0,
            row: PhantomData,
        };
        if reader.next_line()? {
            let header = String::from_utf8_lossy(&reader.line);
            let names: Vec<&str> = header.split(',').map(str::trim).collect();
            for column in R::COLUMNS {
                let position = names.iter().position(|name| name == column);
                let missing = || {
                    Error::damaged(path, format!("line 1 names no column {column}"), "restore it from a copy")
                };
                reader.columns.push(position.ok_or_else(missing)?);
            }
        }
        Ok(reader)
    }

    /// Reads a line without its end into `line`; false if no whole line is left.
    fn next_line(&mut self) -> Result<bool> {
        self.line.clear();
        self.input.read_until(b'\n', &mut self.line).map_err(Error::io("read", &self.path))?;
        self.number += 1;
        Ok(self.line.pop() == Some(b'\n'))
    }

    fn row(&self) -> Result<R> {
        let damaged =
            |what: String| Error::damaged(&self.path, format!("line {}: {what}", self.number), REMEDY);
        let text = std::str::from_utf8(&self.line).map_err(|_| damaged("not text".into()))?;
        let found: Vec<&str> = text.split(',').collect();
        let fields: Option<Vec<&str>> = self.columns.iter().map(|&i| found.get(i).copied()).collect();
        let fields = fields.ok_or_else(|| damaged(format!("only {} fields", found.len())))?;
        R::parse(&fields).map_err(|column| damaged(format!("{column} cannot be read")))
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

/// All rows of `path`.
pub fn read<R: Row>(path: &Path) -> Result<Vec<R>> {
    CsvReader::open(path)?.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn row(iteration: u64) -> IterationRow {
        IterationRow {
            epoch: 1,
            iteration,
            loss: 0.1 + 0.2,
            top1: 0.5,
            learning_rate: 3e-3,
            data_s: 1e-4,
            ..Default::default()
        }
    }

    fn sample(path: &Path, rows: u64) -> Vec<u64> {
        let mut writer = CsvWriter::open(path).unwrap();
        let mut ends = vec![writer.position()];
        for i in 1..=rows {
            writer.append(&row(i)).unwrap();
            ends.push(writer.position());
        }
        ends
    }

    #[test]
    fn text_is_as_documented() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("iterations.csv");
        sample(&path, 1);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            "epoch,iteration,loss,top1,top5,learning_rate,data_s,train_s,unattributed_s\n\
             1,1,0.30000000000000004,0.5,,0.003,0.000100,0.000000,0.000000\n"
        );
        let path = folder.path().join("epochs.csv");
        let mut writer = CsvWriter::open(&path).unwrap();
        writer
            .append(&EpochRow { epoch: 2, val_top1: Some(0.25), elapsed_s: 1.5, ..Default::default() })
            .unwrap();
        writer.sync().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            "epoch,train_loss,train_top1,val_loss,val_top1,val_top5,train_s,val_s,elapsed_s\n\
             2,0.0,0.0,,0.25,,0.000000,0.000000,1.500000\n"
        );
    }

    #[test]
    fn every_cut_gives_the_whole_rows_and_can_be_appended_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("iterations.csv");
        let ends = sample(&path, 4);
        let bytes = std::fs::read(&path).unwrap();
        for length in 0..=bytes.len() {
            let cut = folder.path().join("cut.csv");
            std::fs::write(&cut, &bytes[..length]).unwrap();
            let whole = ends.iter().skip(1).filter(|&&end| end <= length as u64).count();
            assert_eq!(read::<IterationRow>(&cut).unwrap().len(), whole, "cut to {length}");
            CsvWriter::open(&cut).unwrap().append(&row(9)).unwrap();
            assert_eq!(read::<IterationRow>(&cut).unwrap().len(), whole + 1, "appended after {length}");
        }
    }

    #[test]
    fn cut_back_and_written_again_gives_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("iterations.csv");
        let ends = sample(&path, 5);
        let bytes = std::fs::read(&path).unwrap();
        for (kept, &end) in ends.iter().enumerate() {
            let mut writer = CsvWriter::resume_at(&path, end).unwrap();
            for i in kept as u64 + 1..=5 {
                writer.append(&row(i)).unwrap();
            }
            drop(writer);
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
        }
        CsvWriter::<IterationRow>::resume_at(&path, 0).unwrap();
        assert!(read::<IterationRow>(&path).unwrap().is_empty());
        let beyond = CsvWriter::<IterationRow>::resume_at(&path, 10_000).unwrap_err().to_string();
        assert!(beyond.contains("checkpoint counted 10000"), "{beyond}");
    }

    #[test]
    fn columns_are_found_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("e.csv");
        let header = "extra,elapsed_s,val_s,train_s,val_top5,val_top1,val_loss,train_top1,train_loss,epoch\n";
        std::fs::write(&path, format!("{header}x,9,8,7,6,5,4,3,2,1\n")).unwrap();
        let rows = read::<EpochRow>(&path).unwrap();
        assert_eq!((rows[0].epoch, rows[0].elapsed_s, rows[0].val_loss), (1, 9.0, Some(4.0)));
        std::fs::write(&path, format!("{header}x,9,8,7,6,5,4,3,2,1\nx,9,bad,7,6,5,4,3,2,1\n")).unwrap();
        let error = read::<EpochRow>(&path).unwrap_err().to_string();
        assert!(error.contains("line 3: val_s cannot be read"), "{error}");
    }

    proptest! {
        #[test]
        fn rows_come_back_with_the_same_bits(
            loss: u64, top1: f64, top5: Option<f64>, epoch: u32, iteration: u64,
        ) {
            let loss = f64::from_bits(loss);
            let written = IterationRow { epoch, iteration, loss, top1, top5, ..Default::default() };
            let mut line = Vec::new();
            written.write(&mut line).unwrap();
            let text = String::from_utf8(line).unwrap();
            let fields: Vec<&str> = text.split(',').collect();
            let back = IterationRow::parse(&fields).unwrap();
            let bits = (back.epoch, back.iteration, back.top1.to_bits());
            prop_assert_eq!(bits, (epoch, iteration, top1.to_bits()));
            prop_assert_eq!(back.top5.map(f64::to_bits), top5.map(f64::to_bits));
            prop_assert!(back.loss.to_bits() == loss.to_bits() || (loss.is_nan() && back.loss.is_nan()));
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes: Vec<u8>, with_header: bool) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("any.csv");
            let header = format!("{}\n", EpochRow::COLUMNS.join(","));
            let prefix: &[u8] = if with_header { header.as_bytes() } else { b"" };
            std::fs::write(&path, [prefix, &bytes].concat()).unwrap();
            let _ = read::<EpochRow>(&path);
            let _ = CsvWriter::<EpochRow>::open(&path);
        }
    }
}
