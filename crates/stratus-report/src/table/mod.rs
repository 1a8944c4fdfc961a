//! Tables with typed columns, written row by row as CSV or Parquet with bounded memory.

mod column;
mod parquet;

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::Path;

pub use column::{Column, ColumnType, FieldValue};
use parquet::ParquetWriter;
use stratus_run::csv;

/// The file format of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFormat {
    /// CSV (RFC 4180).
    Csv,
    /// Apache Parquet, compressed with gzip.
    Parquet,
}

impl TableFormat {
    /// The format of a file, from its extension.
    #[must_use]
    pub fn from_path(path: &Path) -> Option<Self> {
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
    Csv(Box<::csv::Writer<&'w mut dyn Write>>),
    Parquet(ParquetWriter<'w>),
}

impl<'w> TableWriter<'w> {
    /// Starts a table.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn new(out: &'w mut dyn Write, format: TableFormat, columns: Vec<Column>) -> io::Result<Self> {
        let sink = match format {
            TableFormat::Csv => {
                let mut out = csv::writer(out);
                out.write_record(columns.iter().map(|column| &column.name))?;
                Sink::Csv(Box::new(out))
            }
            TableFormat::Parquet => Sink::Parquet(ParquetWriter::new(out, &columns)?),
        };
        Ok(Self { sink, columns, rows: 0 })
    }

    /// Writes a row, with one field per column.
    ///
    /// # Errors
    /// If the number of fields or the type of a field does not match the columns, or the table cannot be
    /// written.
    pub fn row(&mut self, fields: &[FieldValue<'_>]) -> io::Result<()> {
        let fits = |(column, field): (&Column, &FieldValue<'_>)| {
            matches!(
                (column.column_type, field),
                (_, FieldValue::None)
                    | (ColumnType::Integer, FieldValue::Integer(_))
                    | (ColumnType::Float, FieldValue::Float(_))
                    | (ColumnType::Text, FieldValue::Text(_))
            )
        };
        if fields.len() != self.columns.len() || !self.columns.iter().zip(fields).all(fits) {
            let names: Vec<&str> = self.columns.iter().map(|column| column.name.as_str()).collect();
            let problem = format!("{fields:?} does not match the columns {}", names.join(", "));
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        self.rows += 1;
        match &mut self.sink {
            Sink::Csv(out) => {
                for field in fields {
                    let text: Cow<'_, str> = match field {
                        FieldValue::None => "".into(),
                        FieldValue::Integer(number) => number.to_string().into(),
                        FieldValue::Float(number) => csv::exact(Some(*number)).into(),
                        FieldValue::Text(text) => (*text).into(),
                    };
                    out.write_field(text.as_bytes())?;
                }
                Ok(out.write_record(None::<&[u8]>)?)
            }
            Sink::Parquet(writer) => writer.row(fields),
        }
    }

    /// Completes the table and returns the number of rows.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(self) -> io::Result<u64> {
        match self.sink {
            Sink::Csv(mut out) => out.flush()?,
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
            Column::new("run", ColumnType::Text),
            Column::new("iteration", ColumnType::Integer),
            Column::new("loss, mean", ColumnType::Float),
        ]
    }

    #[test]
    fn csv_has_one_line_per_row() {
        let mut out = Vec::new();
        let mut table = TableWriter::new(&mut out, TableFormat::Csv, columns()).unwrap();
        table.row(&[FieldValue::Text("a\"b"), FieldValue::Integer(-3), FieldValue::Float(0.1)]).unwrap();
        table.row(&[FieldValue::None, FieldValue::None, FieldValue::Float(f64::NAN)]).unwrap();
        assert_eq!(table.finish().unwrap(), 2);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "run,iteration,\"loss, mean\"\n\"a\"\"b\",-3,0.1\n,,NaN\n");
    }

    #[test]
    fn refuses_rows_that_do_not_match_the_columns() {
        for format in [TableFormat::Csv, TableFormat::Parquet] {
            let mut out = Vec::new();
            let mut table = TableWriter::new(&mut out, format, columns()).unwrap();
            table.row(&[FieldValue::None, FieldValue::None]).unwrap_err();
            table.row(&[FieldValue::None, FieldValue::Float(1.0), FieldValue::None]).unwrap_err();
        }
    }

    #[test]
    fn detects_the_format_from_the_file_extension() {
        let format = |name: &str| TableFormat::from_path(Path::new(name));
        assert_eq!(
            [format("a.csv"), format("b.c.parquet")],
            [Some(TableFormat::Csv), Some(TableFormat::Parquet)]
        );
        assert_eq!([format("a.txt"), format("csv")], [None, None]);
    }
}
