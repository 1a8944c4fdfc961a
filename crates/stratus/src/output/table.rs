//! Tables whose columns are aligned, and narrowed to the width of a terminal.

use super::wrap::wrap;
use std::borrow::Cow;
use std::fmt;
use stratus_report::names;

/// Columns between two cells.
const COLUMN_GAP: usize = 2;
/// Columns below which names (the first column) are shortened only after optional columns were dropped.
const PREFERRED_NAME_COLUMNS: usize = 28;
/// Columns below which names are never shortened.
const MIN_NAME_COLUMNS: usize = 12;
/// Columns below which prose is never wrapped.
const MIN_PROSE_COLUMNS: usize = 24;

/// Aligns the first column to the left, the others to the right. The first row is the heading.
pub fn table<R: AsRef<[String]>>(rows: &[R]) -> String {
    Table::new(rows).to_string()
}

/// A table that can be narrowed to a maximum width.
#[derive(Clone, Debug)]
pub struct Table<'a> {
    rows: Vec<Vec<&'a str>>,
    width: Option<usize>,
    optional: &'a [&'a str],
    wrap_last_column: bool,
    keep_names_whole: bool,
}

impl<'a> Table<'a> {
    /// A table of unlimited width. The first row is the heading.
    pub fn new<R: AsRef<[String]>>(rows: &'a [R]) -> Self {
        let rows = rows.iter().map(|row| row.as_ref().iter().map(String::as_str).collect()).collect();
        Table { rows, width: None, optional: &[], wrap_last_column: false, keep_names_whole: false }
    }

    /// Limits the width: shortens names in the first column, then drops `optional` columns in order. A last
    /// line names the dropped columns.
    #[must_use]
    pub fn max_width(mut self, width: Option<usize>, optional: &'a [&'a str]) -> Self {
        (self.width, self.optional) = (width, optional);
        self
    }

    /// Aligns the last column to the left and wraps it.
    #[must_use]
    pub fn wrap_last_column(mut self) -> Self {
        self.wrap_last_column = true;
        self
    }

    /// Never shortens the first column: users copy paths from it.
    #[must_use]
    pub fn keep_names_whole(mut self) -> Self {
        self.keep_names_whole = true;
        self
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths = Vec::new();
        for row in &self.rows {
            widths.resize(widths.len().max(row.len()), 0);
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        widths
    }

    /// The width of all columns except the first, gaps included.
    fn other_columns_width(&self) -> usize {
        let mut widths = self.widths();
        if let Some(last) = widths.last_mut().filter(|_| self.wrap_last_column) {
            *last = MIN_PROSE_COLUMNS.min(*last);
        }
        widths.iter().skip(1).map(|width| width + COLUMN_GAP).sum()
    }

    /// Drops optional columns until the first fits; returns their names.
    fn drop_optional_columns(&mut self, width: usize) -> Vec<&'a str> {
        let mut without = Vec::new();
        for name in self.optional {
            let names = self.widths().first().copied().unwrap_or(0);
            let first = if self.keep_names_whole { names } else { names.min(PREFERRED_NAME_COLUMNS) };
            if first + self.other_columns_width() <= width {
                break;
            }
            let heading = self.rows.first();
            if let Some(at) = heading.and_then(|heading| heading.iter().position(|head| head == name)) {
                for row in self.rows.iter_mut().filter(|row| at < row.len()) {
                    row.remove(at);
                }
                without.push(*name);
            }
        }
        without
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut narrow = self.clone();
        let without = self.width.map_or_else(Vec::new, |width| narrow.drop_optional_columns(width));
        let mut widths = narrow.widths();
        let mut names: Vec<Cow<'_, str>> =
            narrow.rows.iter().map(|row| row.first().copied().unwrap_or("").into()).collect();
        if let (Some(width), Some(first)) = (self.width, widths.first_mut()) {
            let room = width.saturating_sub(narrow.other_columns_width()).max(MIN_NAME_COLUMNS);
            if *first > room && !self.keep_names_whole {
                let whole: Vec<String> = names.iter().map(|name| name.clone().into_owned()).collect();
                names = names::shorten(&whole, room).into_iter().map(Cow::Owned).collect();
                *first = room;
            }
        }
        let last = widths.len().saturating_sub(1);
        for (row, name) in narrow.rows.iter().zip(&names) {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(widths.iter().copied()).enumerate() {
                if column == 0 {
                    line.push_str(&format!("{name:<width$}"));
                } else if self.wrap_last_column && column == last {
                    let indent = line.chars().count() + COLUMN_GAP;
                    let room = self
                        .width
                        .map_or(usize::MAX, |width| width.saturating_sub(indent).max(MIN_PROSE_COLUMNS));
                    let hung = wrap(cell, room).replace('\n', &format!("\n{:indent$}", ""));
                    line.push_str(&format!("{:COLUMN_GAP$}{hung}", ""));
                } else {
                    line.push_str(&format!("{:COLUMN_GAP$}{cell:>width$}", ""));
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        if !without.is_empty() {
            writeln!(f, "columns hidden: {} (--json shows all)", without.join(", "))?;
        }
        Ok(())
    }
}

/// Aligns names and their values in two columns.
pub fn key_value_list(rows: &[(String, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:<width$}  {value}").trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect()
    }

    #[test]
    fn columns_are_aligned() {
        let rows = rows(&[&["layer", "ms"], &["conv_1", "1.5"], &["größe", "12.25"]]);
        assert_eq!(table(&rows), "layer      ms\nconv_1    1.5\ngröße   12.25\n");
        assert_eq!(
            key_value_list(&[("a".into(), "b".into()), ("long".into(), String::new())]),
            "a     b\nlong\n"
        );
    }

    #[test]
    fn optional_columns_are_dropped_in_order_and_named() {
        let rows = rows(&[&["run", "loss", "time", "score"], &["a", "0.1234", "0:07", "98 %"]]);
        let wide = Table::new(&rows).max_width(Some(26), &["time", "loss"]).to_string();
        assert_eq!(wide, "run    loss  time  score\na    0.1234  0:07   98 %\n");
        let narrow = Table::new(&rows).max_width(Some(20), &["time", "loss"]).to_string();
        assert_eq!(
            narrow,
            "run    loss  score\na    0.1234   98 %\n\
             columns hidden: time (--json shows all)\n"
        );
        // Without a maximum width all columns are shown.
        assert_eq!(Table::new(&rows).max_width(None, &["time"]).to_string(), wide);
    }

    #[test]
    fn shortened_names_stay_distinct() {
        let rows = rows(&[&["layer", "ms"], &["layer1.0.conv1.a", "1.0"], &["layer2.0.conv1.a", "2.0"]]);
        let text = Table::new(&rows).max_width(Some(18), &[]).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= 18), "{text}");
        assert_ne!(lines[1].split(' ').next(), lines[2].split(' ').next(), "{text}");
    }

    #[test]
    fn wrapped_prose_is_indented_to_its_column() {
        let rows = rows(&[&["machine", "what"], &["t4", "a card of some watts, from its data sheet"]]);
        let text = Table::new(&rows).wrap_last_column().max_width(Some(35), &[]).to_string();
        assert_eq!(text, "machine  what\nt4       a card of some watts, from\n         its data sheet\n");
    }
}
