//! A reader of comma-separated values (RFC 4180), which also accepts semicolons or tabs between cells, any
//! line ends except lone carriage returns, and a byte order mark.

use std::io::{BufRead, Read};

use super::source::{Cell, Problem, Row};

/// The maximum length of a row in bytes.
const MAX_ROW_BYTES: usize = 1 << 20;
/// The separators of cells, the most common first.
const DELIMITERS: [u8; 3] = *b",;\t";

/// Reads rows one at a time, into memory that is reused.
pub(super) struct CsvReader<R> {
    input: R,
    delimiter: u8,
    columns: Vec<String>,
    /// The line that was read last, and the first line of the row; counted from 1.
    line: u64,
    first_line: u64,
    raw: Vec<u8>,
    /// The text of the row, and the range of each cell in it.
    text: String,
    cells: Vec<(u32, u32)>,
}

impl<R> CsvReader<R> {
    /// The text of a cell of the row.
    fn text_of(&self, column: usize) -> &str {
        let range = self.cells.get(column).map(|&(start, end)| start as usize..end as usize);
        range.and_then(|range| self.text.get(range)).unwrap_or_default()
    }
}

impl<R: BufRead> CsvReader<R> {
    /// Reads the first row, the names of the columns.
    pub(super) fn new(input: R, required: &str) -> Result<Self, Problem> {
        let mut reader = Self {
            input,
            delimiter: DELIMITERS[0],
            columns: Vec::new(),
            line: 0,
            first_line: 0,
            raw: Vec::new(),
            text: String::new(),
            cells: Vec::new(),
        };
        if !reader.read_line()? {
            return Err(Problem::whole("is empty; expected a row with the names of the columns".to_owned()));
        }
        match reader.raw[..] {
            [0xef, 0xbb, 0xbf, ..] => drop(reader.raw.drain(..3)),
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
                return Err(Problem::whole("is UTF-16; save it as UTF-8".to_owned()));
            }
            _ => {}
        }
        reader.delimiter = delimiter_of(&reader.raw, required);
        reader.split_row()?;
        reader.columns = (0..reader.cells.len()).map(|cell| reader.text_of(cell).trim().to_owned()).collect();
        Ok(reader)
    }

    /// The names of the columns.
    pub(super) fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Reads the next row; false after the last. Blank lines are skipped.
    pub(super) fn next_row(&mut self) -> Result<bool, Problem> {
        loop {
            if !self.read_line()? {
                return Ok(false);
            }
            if !self.raw.is_empty() {
                break;
            }
        }
        self.split_row()?;
        let (found, expected) = (self.cells.len(), self.columns.len());
        if found != expected {
            return Err(self.problem(None, format!("{found} cells, but {expected} columns")));
        }
        Ok(true)
    }

    /// The first line of the row.
    pub(super) fn row_line(&self) -> u64 {
        self.first_line
    }

    fn problem(&self, column: Option<usize>, text: String) -> Problem {
        Problem { row: Some(self.first_line), column, text }
    }

    /// Reads a line without its end into `raw`; false at the end of the file.
    fn read_line(&mut self) -> Result<bool, Problem> {
        self.raw.clear();
        let limit = MAX_ROW_BYTES as u64 + 1;
        let read = (&mut self.input).take(limit).read_until(b'\n', &mut self.raw);
        let count = read.map_err(|cause| self.problem(None, cause.to_string()))?;
        if count == 0 {
            return Ok(false);
        }
        self.line += 1;
        self.first_line = self.line;
        if count > MAX_ROW_BYTES {
            return Err(self.problem(None, format!("is longer than {MAX_ROW_BYTES} bytes")));
        }
        for end in [b'\n', b'\r'] {
            if self.raw.last() == Some(&end) {
                self.raw.pop();
            }
        }
        Ok(true)
    }

    /// Splits the row that begins with the line in `raw` into cells.
    fn split_row(&mut self) -> Result<(), Problem> {
        self.first_line = self.line;
        self.cells.clear();
        let mut text = std::mem::take(&mut self.text).into_bytes();
        text.clear();
        if self.raw.contains(&b'"') {
            self.split_quoted(&mut text)?;
        } else {
            let mut start = 0;
            for end in
                self.raw.iter().enumerate().filter(|(_, byte)| **byte == self.delimiter).map(|(at, _)| at)
            {
                self.cells.push((start as u32, end as u32));
                start = end + 1;
            }
            self.cells.push((start as u32, self.raw.len() as u32));
            text.extend_from_slice(&self.raw);
        }
        let column_at = |at: usize| self.cells.iter().position(|&(_, end)| at < end as usize);
        if let Some(at) = text.iter().position(|&byte| byte == 0 || byte == b'\r') {
            let problem = match text[at] {
                0 => "contains a zero byte: the file is not text, or damaged",
                _ => "contains a carriage return; save the file with the line ends of Linux or Windows",
            };
            return Err(self.problem(column_at(at), problem.to_owned()));
        }
        self.text = String::from_utf8(text).map_err(|error| {
            let column = column_at(error.utf8_error().valid_up_to());
            self.problem(column, "is not UTF-8; save the file as UTF-8".to_owned())
        })?;
        Ok(())
    }

    /// Splits a row with quotes, whose cells may continue in the next lines.
    fn split_quoted(&mut self, text: &mut Vec<u8>) -> Result<(), Problem> {
        let first_line = self.line;
        let mut at = 0;
        loop {
            let start = text.len() as u32;
            if self.raw.get(at) == Some(&b'"') {
                at += 1;
                loop {
                    match (self.raw.get(at), self.raw.get(at + 1)) {
                        (Some(b'"'), Some(b'"')) => {
                            text.push(b'"');
                            at += 2;
                        }
                        (Some(b'"'), _) => {
                            at += 1;
                            break;
                        }
                        (Some(&byte), _) => {
                            text.push(byte);
                            at += 1;
                        }
                        (None, _) => {
                            text.push(b'\n');
                            let has_line = text.len() <= MAX_ROW_BYTES && self.read_line()?;
                            self.first_line = first_line;
                            if !has_line {
                                let column = Some(self.cells.len());
                                return Err(
                                    self.problem(column, "has a quote that is never closed".to_owned())
                                );
                            }
                            at = 0;
                        }
                    }
                }
                if self.raw.get(at).is_some_and(|&byte| byte != self.delimiter) {
                    let problem = "has text after a closing quote; write a quote in a cell twice".to_owned();
                    return Err(self.problem(Some(self.cells.len()), problem));
                }
            } else {
                let rest = &self.raw[at..];
                let end = rest.iter().position(|&byte| byte == self.delimiter).unwrap_or(rest.len());
                text.extend_from_slice(&rest[..end]);
                at += end;
            }
            self.cells.push((start, text.len() as u32));
            if at >= self.raw.len() {
                return Ok(());
            }
            // A delimiter at the end of the line is followed by an empty cell.
            at += 1;
        }
    }
}

impl<R> Row for CsvReader<R> {
    fn cell(&self, column: usize) -> Cell<'_> {
        Cell::Text(self.text_of(column))
    }
}

/// The separator of the cells of a first row: the one that gives a column of the `required` name, else the
/// one that gives most columns.
fn delimiter_of(row: &[u8], required: &str) -> u8 {
    let cells = |delimiter: u8| {
        let mut is_quoted = false;
        row.split(move |&byte| {
            is_quoted ^= byte == b'"';
            byte == delimiter && !is_quoted
        })
    };
    let has_required =
        |delimiter: u8| cells(delimiter).any(|cell| unquoted(cell.trim_ascii()) == required.as_bytes());
    let found = DELIMITERS.into_iter().find(|&delimiter| has_required(delimiter));
    let most = || DELIMITERS.into_iter().rev().max_by_key(|&delimiter| cells(delimiter).count());
    found.or_else(most).unwrap_or(DELIMITERS[0])
}

/// A cell without the quotes around it.
fn unquoted(cell: &[u8]) -> &[u8] {
    match cell {
        [b'"', inner @ .., b'"'] => inner,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &[u8]) -> Result<Vec<Vec<String>>, String> {
        let described = |problem: Problem| format!("{:?} {:?} {}", problem.row, problem.column, problem.text);
        let mut reader = CsvReader::new(text, "path").map_err(described)?;
        let mut rows = vec![reader.columns().to_vec()];
        while reader.next_row().map_err(described)? {
            rows.push((0..reader.columns().len()).map(|cell| reader.text_of(cell).to_owned()).collect());
        }
        Ok(rows)
    }

    #[test]
    fn reads_quotes_line_ends_and_delimiters() {
        let expected: Vec<Vec<String>> =
            [["path", "a b"], ["x,y.png", "1"], ["say \"hi\"", ""], ["two\nlines", "2"]]
                .map(|row| row.map(str::to_owned).to_vec())
                .to_vec();
        for text in [
            "path,a b\n\"x,y.png\",1\n\"say \"\"hi\"\"\",\n\"two\nlines\",2",
            "\u{feff}path,\"a b\"\r\n\"x,y.png\",1\r\n\r\n\"say \"\"hi\"\"\",\"\"\r\n\
             \"two\r\nlines\",2\r\n\r\n",
            "\"path\"; a b \nx,y.png;1\n\"say \"\"hi\"\"\";\n\"two\nlines\";2\n",
            "path\ta b\nx,y.png\t1\nsay \"hi\"\t\n\"two\nlines\"\t2\n",
        ] {
            assert_eq!(rows(text.as_bytes()).unwrap(), expected, "{text:?}");
        }
    }

    #[test]
    fn rejects_damaged_text_with_its_place() {
        for (text, expected) in [
            (&b""[..], "None None is empty; expected a row with the names of the columns"),
            (b"\xff\xfep\0", "None None is UTF-16; save it as UTF-8"),
            (b"path,a\nx\n", "Some(2) None 1 cells, but 2 columns"),
            (b"path,a\n\nx,1,\n", "Some(3) None 3 cells, but 2 columns"),
            (b"path,a\nx,\"1\n\n", "Some(2) Some(1) has a quote that is never closed"),
            (
                b"path,a\n\"x\"y,1\n",
                "Some(2) Some(0) has text after a closing quote; write a quote in a cell twice",
            ),
            (b"path,a\nx,caf\xe9\n", "Some(2) Some(1) is not UTF-8; save the file as UTF-8"),
            (b"path,a\n\0,1\n", "Some(2) Some(0) contains a zero byte: the file is not text, or damaged"),
            (
                b"path,a\rx,1\ry,2\r",
                "Some(1) Some(1) contains a carriage return; save the file with the line ends of Linux or \
                 Windows",
            ),
        ] {
            assert_eq!(rows(text).unwrap_err(), expected, "{text:?}");
        }
        let long = format!("path,a\n{},1\n", "x".repeat(MAX_ROW_BYTES));
        assert_eq!(rows(long.as_bytes()).unwrap_err(), "Some(2) None is longer than 1048576 bytes");
        let quoted = format!("path,a\n\"{},1\n", "x\n".repeat(MAX_ROW_BYTES));
        assert_eq!(rows(quoted.as_bytes()).unwrap_err(), "Some(2) Some(0) has a quote that is never closed");
    }
}
