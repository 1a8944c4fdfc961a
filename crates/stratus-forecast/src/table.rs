//! Tables of measurements: comma-separated, with a header, without quotes. Files are untrusted: lengths and
//! values are validated.

use crate::error::{Error, Result};

/// Maximum size of a table.
pub(crate) const MAX_FILE_BYTES: usize = 64 << 20;
/// Maximum value in a table; no count or time is larger.
const MAX_FIGURE: f64 = 1e15;

/// A table whose lines all have the fields of its header.
#[derive(Debug)]
pub(crate) struct Table<'a> {
    file: &'a str,
    heading: Vec<&'a str>,
    rows: Vec<(usize, Vec<&'a str>)>,
}

/// A line of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    table: &'a Table<'a>,
    line: usize,
    fields: &'a [&'a str],
}

impl<'a> Table<'a> {
    pub fn parse(file: &'a str, text: &'a str) -> Result<Self> {
        let problem = |problem: String| Error::File { file: file.to_owned(), problem };
        if text.len() > MAX_FILE_BYTES {
            return Err(problem(format!("it has {} bytes; the limit is {MAX_FILE_BYTES}", text.len())));
        }
        let mut lines = text.lines().enumerate();
        let heading: Vec<&str> = match lines.next() {
            Some((_, line)) => line.split(',').map(str::trim).collect(),
            None => return Err(problem("it is empty".to_owned())),
        };
        let mut rows = Vec::new();
        for (position, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
            let fields: Vec<&str> = line.split(',').map(str::trim).collect();
            if fields.len() != heading.len() {
                let problem = format!("it has {} fields, but the header has {}", fields.len(), heading.len());
                return Err(Error::Table { file: file.to_owned(), line: position + 1, problem });
            }
            rows.push((position + 1, fields));
        }
        Ok(Self { file, heading, rows })
    }

    pub fn column(&self, name: &str) -> Result<usize> {
        self.heading.iter().position(|known| *known == name).ok_or_else(|| Error::File {
            file: self.file.to_owned(),
            problem: format!("missing column `{name}`; found {}", self.heading.join(", ")),
        })
    }

    pub fn rows(&'a self) -> impl Iterator<Item = Row<'a>> {
        self.rows.iter().map(|(line, fields)| Row { table: self, line: *line, fields })
    }
}

impl<'a> Row<'a> {
    pub fn text(&self, column: usize) -> &'a str {
        self.fields[column]
    }

    /// The line of the file.
    pub fn line(&self) -> usize {
        self.line
    }

    /// A number of at least 0.
    pub fn number(&self, column: usize) -> Result<f64> {
        let text = self.text(column);
        let number = text.parse::<f64>().ok().filter(|number| (0.0..=MAX_FIGURE).contains(number));
        number.ok_or_else(|| {
            self.problem(format!(
                "{} must be a number from 0 to {MAX_FIGURE:e}, but is `{text}`",
                self.table.heading[column]
            ))
        })
    }

    /// A number above 0.
    pub fn count(&self, column: usize) -> Result<f64> {
        let number = self.number(column)?;
        if number > 0.0 {
            return Ok(number);
        }
        Err(self.problem(format!("{} must be above 0", self.table.heading[column])))
    }

    /// A number of at least 0, or `default` if the field is empty.
    pub fn count_or(&self, column: usize, default: f64) -> Result<f64> {
        if self.text(column).is_empty() { Ok(default) } else { self.number(column) }
    }

    pub fn problem(&self, problem: String) -> Error {
        Error::Table { file: self.table.file.to_owned(), line: self.line, problem }
    }
}
