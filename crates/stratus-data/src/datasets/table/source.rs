//! The files of tables: CSV or Parquet, row by row.

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

use super::csv::CsvReader;
use super::parquet::{self, ParquetFile};
use crate::error::DataError;

/// A problem in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    /// The line of a CSV file, or the row of a Parquet file, counted from 1.
    pub row: Option<u64>,
    /// The column, by its index in the file.
    pub column: Option<usize>,
    pub text: String,
}

impl Problem {
    /// A problem of the whole file.
    pub(super) fn whole(text: String) -> Self {
        Self { row: None, column: None, text }
    }
}

/// A cell of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cell<'a> {
    /// Empty text is missing too.
    Text(&'a str),
    /// NaN if it is missing.
    Number(f64),
}

/// A row of a table.
pub(super) trait Row {
    /// The cell of a column that was requested.
    fn cell(&self, column: usize) -> Cell<'_>;
}

/// Called with the number of each row and the row.
pub(super) type RowCallback<'a> = &'a mut dyn FnMut(u64, &dyn Row) -> Result<(), Problem>;

/// A table file, whose columns were read.
pub(super) enum TableFile {
    Csv(CsvReader<BufReader<File>>),
    Parquet(ParquetFile<File>),
}

impl TableFile {
    /// Opens a file: Parquet by its content, else CSV. `required` is the name of a column that it should
    /// have.
    ///
    /// # Errors
    ///
    /// [`DataError::Unreadable`], or [`DataError::Invalid`].
    pub(super) fn open(path: &Path, required: &str) -> Result<Self, DataError> {
        let unreadable = |cause| DataError::Unreadable { path: path.to_owned(), cause };
        // Opening a FIFO would block until another program writes to it.
        let metadata = std::fs::metadata(path).map_err(unreadable)?;
        if !metadata.is_file() {
            let problem = "is not a file; pass a CSV or Parquet file".to_owned();
            return Err(DataError::Invalid { path: path.to_owned(), problem });
        }
        let mut file = File::open(path).map_err(unreadable)?;
        let mut head = Vec::new();
        (&mut file).take(parquet::MAGIC.len() as u64).read_to_end(&mut head).map_err(unreadable)?;
        file.rewind().map_err(unreadable)?;
        let opened = if head == parquet::MAGIC {
            ParquetFile::open(file, metadata.len()).map(Self::Parquet)
        } else {
            CsvReader::new(BufReader::with_capacity(1 << 16, file), required).map(Self::Csv)
        };
        opened.map_err(|Problem { text, row, .. }| {
            let place = row.map_or(String::new(), |row| format!("line {row}: "));
            DataError::Invalid { path: path.to_owned(), problem: format!("{place}{text}") }
        })
    }

    /// The names of the columns.
    pub(super) fn columns(&self) -> &[String] {
        match self {
            Self::Csv(reader) => reader.columns(),
            Self::Parquet(file) => file.columns(),
        }
    }

    /// The noun for the place of a row.
    pub(super) fn row_noun(&self) -> &'static str {
        match self {
            Self::Csv(_) => "line",
            Self::Parquet(_) => "row",
        }
    }

    /// The place of a problem in the words of the file's format.
    pub(super) fn describe(&self, Problem { row, column, text }: Problem) -> String {
        let row = row.map(|row| format!("{} {row}", self.row_noun()));
        let column = column.and_then(|column| self.columns().get(column));
        let column = column.map(|name| format!("column `{}`", printable(name)));
        match (row, column) {
            (Some(row), Some(column)) => format!("{row}, {column}: {text}"),
            (Some(one), None) | (None, Some(one)) => format!("{one}: {text}"),
            (None, None) => text,
        }
    }

    /// Reads all rows. Only the columns `wanted` are read.
    pub(super) fn read(&mut self, wanted: &[usize], callback: RowCallback<'_>) -> Result<(), Problem> {
        match self {
            Self::Parquet(file) => file.read(wanted, callback),
            Self::Csv(reader) => {
                while reader.next_row()? {
                    callback(reader.row_line(), reader)?;
                }
                Ok(())
            }
        }
    }
}

/// A text for a message: without control characters, and shortened.
pub(super) fn printable(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    let mut shown: String = text.chars().take(MAX_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_CHARS).is_some() {
        shown.push('…');
    }
    shown
}
