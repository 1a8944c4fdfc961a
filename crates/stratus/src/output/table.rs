//! Rows of cells, lined up, and made as narrow as a terminal is.

use super::wrap::wrap;
use std::borrow::Cow;
use std::fmt;
use stratus_report::names;

/// Columns between two cells.
const GAP: usize = 2;
/// The first column, mostly names of layers or runs, is not shortened below this before others are left out.
const NAMES: usize = 28;
/// Nor below this where nothing more can be left out.
const SHORTEST: usize = 12;
/// Prose is not wrapped to fewer columns.
const PROSE: usize = 24;

/// Lines up columns: the first to the left, the others to the right. The first row is the heading.
pub fn table<R: AsRef<[String]>>(rows: &[R]) -> String {
    Table::new(rows).to_string()
}

/// A table that may have to be narrower than its cells are.
#[derive(Clone, Debug)]
pub struct Table<'a> {
    rows: Vec<Vec<&'a str>>,
    width: Option<usize>,
    optional: &'a [&'a str],
    prose: bool,
    whole_names: bool,
}

impl<'a> Table<'a> {
    /// A table of these rows, as wide as they are. The first row is the heading.
    pub fn new<R: AsRef<[String]>>(rows: &'a [R]) -> Self {
        let rows = rows.iter().map(|row| row.as_ref().iter().map(String::as_str).collect()).collect();
        Table { rows, width: None, optional: &[], prose: false, whole_names: false }
    }

    /// In at most so many columns, if that can be: names in the first column are shortened, then `optional`
    /// columns left out, first come, first gone. The table says which those are.
    #[must_use]
    pub fn within(mut self, width: Option<usize>, optional: &'a [&'a str]) -> Self {
        (self.width, self.optional) = (width, optional);
        self
    }

    /// The last column is prose: to the left, and wrapped.
    #[must_use]
    pub fn prose(mut self) -> Self {
        self.prose = true;
        self
    }

    /// The first column is copied from, such as the paths of runs: nothing of it is left out.
    #[must_use]
    pub fn whole_names(mut self) -> Self {
        self.whole_names = true;
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

    /// Columns that all columns but the first take, gaps included.
    fn rest(&self) -> usize {
        let mut widths = self.widths();
        if let Some(last) = widths.last_mut().filter(|_| self.prose) {
            *last = PROSE.min(*last);
        }
        widths.iter().skip(1).map(|width| width + GAP).sum()
    }

    /// Leaves out columns until the first has room; says which.
    fn leave_out(&mut self, width: usize) -> Vec<&'a str> {
        let mut without = Vec::new();
        for name in self.optional {
            let names = self.widths().first().copied().unwrap_or(0);
            let first = if self.whole_names { names } else { names.min(NAMES) };
            if first + self.rest() <= width {
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
        let without = self.width.map_or_else(Vec::new, |width| narrow.leave_out(width));
        let mut widths = narrow.widths();
        let mut names: Vec<Cow<'_, str>> =
            narrow.rows.iter().map(|row| row.first().copied().unwrap_or("").into()).collect();
        if let (Some(width), Some(first)) = (self.width, widths.first_mut()) {
            let room = width.saturating_sub(narrow.rest()).max(SHORTEST);
            if *first > room && !self.whole_names {
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
                } else if self.prose && column == last {
                    let indent = line.chars().count() + GAP;
                    let room = self.width.map_or(usize::MAX, |width| width.saturating_sub(indent).max(PROSE));
                    let hung = wrap(cell, room).replace('\n', &format!("\n{:indent$}", ""));
                    line.push_str(&format!("{:GAP$}{hung}", ""));
                } else {
                    line.push_str(&format!("{:GAP$}{cell:>width$}", ""));
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        if !without.is_empty() {
            writeln!(f, "left out, for want of columns: {} (--json has all)", without.join(", "))?;
        }
        Ok(())
    }
}

/// Lines up names and what they stand for.
pub fn pairs(rows: &[(String, String)]) -> String {
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
    fn columns_line_up() {
        let rows = rows(&[&["layer", "ms"], &["conv_1", "1.5"], &["größe", "12.25"]]);
        assert_eq!(table(&rows), "layer      ms\nconv_1    1.5\ngröße   12.25\n");
        assert_eq!(pairs(&[("a".into(), "b".into()), ("long".into(), String::new())]), "a     b\nlong\n");
    }

    #[test]
    fn columns_are_left_out_in_the_stated_order_and_named() {
        let rows = rows(&[&["run", "loss", "time", "score"], &["a", "0.1234", "0:07", "98 %"]]);
        let wide = Table::new(&rows).within(Some(26), &["time", "loss"]).to_string();
        assert_eq!(wide, "run    loss  time  score\na    0.1234  0:07   98 %\n");
        let narrow = Table::new(&rows).within(Some(20), &["time", "loss"]).to_string();
        assert_eq!(
            narrow,
            "run    loss  score\na    0.1234   98 %\n\
             left out, for want of columns: time (--json has all)\n"
        );
        // Nothing is left out of what goes to another program.
        assert_eq!(Table::new(&rows).within(None, &["time"]).to_string(), wide);
    }

    #[test]
    fn names_are_shortened_and_stay_different() {
        let rows = rows(&[&["layer", "ms"], &["layer1.0.conv1.a", "1.0"], &["layer2.0.conv1.a", "2.0"]]);
        let text = Table::new(&rows).within(Some(18), &[]).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= 18), "{text}");
        assert_ne!(lines[1].split(' ').next(), lines[2].split(' ').next(), "{text}");
    }

    #[test]
    fn prose_hangs_under_itself() {
        let rows = rows(&[&["machine", "what"], &["t4", "a card of some watts, from its data sheet"]]);
        let text = Table::new(&rows).prose().within(Some(35), &[]).to_string();
        assert_eq!(text, "machine  what\nt4       a card of some watts, from\n         its data sheet\n");
    }
}
