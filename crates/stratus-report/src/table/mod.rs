//! Tables with typed columns, written row by row as CSV or Parquet: memory is bounded however long they are.

mod parquet;

use std::io::{self, Write};
use std::path::Path;

use parquet::ParquetWriter;

use crate::text::csv_field;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Whole numbers, 64 bits with a sign.
    Whole,
    /// Numbers, f64.
    Number,
    /// UTF-8.
    Text,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub kind: Kind,
}

impl Column {
    /// A column.
    pub fn new(name: impl Into<String>, kind: Kind) -> Self {
        Self { name: name.into(), kind }
    }
}

/// A field of a row; of the kind of its column, or nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Field<'a> {
    /// There is no value.
    None,
    /// A whole number.
    Whole(i64),
    /// A number.
    Number(f64),
    /// A text.
    Text(&'a str),
}

impl From<Option<f64>> for Field<'_> {
    fn from(value: Option<f64>) -> Self {
        value.map_or(Self::None, Self::Number)
    }
}

/// What a table is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text, as RFC 4180 has it.
    Csv,
    /// Apache Parquet, compressed with gzip.
    Parquet,
}

impl Format {
    /// The format of a file, by the end of its name.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "csv" => Some(Self::Csv),
            "parquet" => Some(Self::Parquet),
            _ => None,
        }
    }
}

/// Writes a table.
pub struct TableWriter<'w> {
    sink: Sink<'w>,
    columns: Vec<Column>,
    rows: u64,
}

enum Sink<'w> {
    Csv { out: &'w mut dyn Write, line: String },
    Parquet(ParquetWriter<'w>),
}

impl<'w> TableWriter<'w> {
    /// Begins a table.
    ///
    /// # Errors
    /// Where `out` cannot be written.
    pub fn new(out: &'w mut dyn Write, format: Format, columns: Vec<Column>) -> io::Result<Self> {
        let sink = match format {
            Format::Csv => {
                let names: Vec<_> = columns.iter().map(|column| csv_field(&column.name)).collect();
                writeln!(out, "{}", names.join(","))?;
                Sink::Csv { out, line: String::new() }
            }
            Format::Parquet => Sink::Parquet(ParquetWriter::new(out, &columns)?),
        };
        Ok(Self { sink, columns, rows: 0 })
    }

    /// Writes a row, a field for each column.
    ///
    /// # Errors
    /// Where there are more or fewer fields than columns, or one is of another kind; where the table cannot
    /// be written.
    pub fn row(&mut self, fields: &[Field<'_>]) -> io::Result<()> {
        let fits = |(column, field): (&Column, &Field<'_>)| {
            matches!(
                (column.kind, field),
                (_, Field::None)
                    | (Kind::Whole, Field::Whole(_))
                    | (Kind::Number, Field::Number(_))
                    | (Kind::Text, Field::Text(_))
            )
        };
        if fields.len() != self.columns.len() || !self.columns.iter().zip(fields).all(fits) {
            let names: Vec<&str> = self.columns.iter().map(|column| column.name.as_str()).collect();
            let problem = format!("{fields:?} is no row of {}", names.join(", "));
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        self.rows += 1;
        match &mut self.sink {
            Sink::Csv { out, line } => {
                line.clear();
                for (at, field) in fields.iter().enumerate() {
                    if at > 0 {
                        line.push(',');
                    }
                    match field {
                        Field::None => {}
                        Field::Whole(number) => line.push_str(&number.to_string()),
                        // The shortest decimal that reads back as the same bits.
                        Field::Number(number) => line.push_str(&format!("{number:?}")),
                        Field::Text(text) => line.push_str(&csv_field(text)),
                    }
                }
                writeln!(out, "{line}")
            }
            Sink::Parquet(writer) => writer.row(fields),
        }
    }

    /// Completes the table and gives the number of its rows.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn finish(self) -> io::Result<u64> {
        match self.sink {
            Sink::Csv { out, .. } => out.flush()?,
            Sink::Parquet(writer) => writer.finish()?,
        }
        Ok(self.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns() -> Vec<Column> {
        vec![
            Column::new("run", Kind::Text),
            Column::new("iteration", Kind::Whole),
            Column::new("loss, mean", Kind::Number),
        ]
    }

    #[test]
    fn csv_has_a_line_a_row() {
        let mut out = Vec::new();
        let mut table = TableWriter::new(&mut out, Format::Csv, columns()).unwrap();
        table.row(&[Field::Text("a\"b"), Field::Whole(-3), Field::Number(0.1)]).unwrap();
        table.row(&[Field::None, Field::None, Field::Number(f64::NAN)]).unwrap();
        assert_eq!(table.finish().unwrap(), 2);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "run,iteration,\"loss, mean\"\n\"a\"\"b\",-3,0.1\n,,NaN\n");
    }

    #[test]
    fn rows_of_something_else_are_refused() {
        for format in [Format::Csv, Format::Parquet] {
            let mut out = Vec::new();
            let mut table = TableWriter::new(&mut out, format, columns()).unwrap();
            table.row(&[Field::None, Field::None]).unwrap_err();
            table.row(&[Field::None, Field::Number(1.0), Field::None]).unwrap_err();
        }
    }

    #[test]
    fn formats_are_known_by_the_end_of_the_name() {
        let of = |name: &str| Format::of(Path::new(name));
        assert_eq!([of("a.csv"), of("b.c.parquet")], [Some(Format::Csv), Some(Format::Parquet)]);
        assert_eq!([of("a.txt"), of("csv")], [None, None]);
    }
}
