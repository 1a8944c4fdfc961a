//! Parsing of lines: the header, which names the columns, and the rows below it.

use std::marker::PhantomData;

use super::rows::{Row, Task};

/// Parses the rows of a file whose header it has read.
///
/// Columns are found by their names in the header, so that a file with additional columns is parsed too, and
/// one of an earlier version that lacks new columns.
#[derive(Debug)]
pub struct RowParser<R> {
    task: Task,
    /// The position of each of the row's columns in the file; `None` for a new column that the file lacks.
    columns: Vec<Option<usize>>,
    row: PhantomData<fn() -> R>,
}

impl<R: Row> RowParser<R> {
    /// Reads a header, without its line end.
    ///
    /// # Errors
    /// The reason, if a column is missing.
    pub fn from_header(line: &[u8]) -> Result<Self, String> {
        let header = String::from_utf8_lossy(line);
        let names: Vec<&str> = header.split(',').map(str::trim).collect();
        // If no task matches, the columns of the first one are reported as missing.
        let is_new = |column: &&str| R::NEW_COLUMNS.contains(column);
        let has_all =
            |task: &Task| R::columns(*task).iter().all(|column| names.contains(column) || is_new(column));
        let task = Task::ALL.into_iter().find(has_all).unwrap_or_default();
        let mut columns = Vec::new();
        for column in R::columns(task) {
            let position = names.iter().position(|name| *name == column);
            if position.is_none() && !is_new(&column) {
                return Err(format!("has no column {column}"));
            }
            columns.push(position);
        }
        Ok(Self { task, columns, row: PhantomData })
    }

    /// The task of the run that wrote the file, detected from its columns.
    #[must_use]
    pub fn task(&self) -> Task {
        self.task
    }

    /// Parses a row, without its line end.
    ///
    /// # Errors
    /// The reason, if a field is missing or invalid.
    pub fn parse(&self, line: &[u8]) -> Result<R, String> {
        let text = std::str::from_utf8(line).map_err(|_| "not UTF-8".to_owned())?;
        let found: Vec<&str> = text.split(',').collect();
        let field = |column: &Option<usize>| column.map_or(Some(""), |i| found.get(i).copied());
        let fields: Option<Vec<&str>> = self.columns.iter().map(field).collect();
        let fields = fields.ok_or_else(|| format!("only {} fields", found.len()))?;
        R::parse(self.task, &fields).map_err(|column| format!("invalid {column}"))
    }
}
