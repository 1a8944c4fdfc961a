//! `classes.csv`: the metrics of each class in the last validation.

use std::fmt::{self, Write};
use std::path::Path;

use stratus_measures::ClassMetrics;

use crate::csv::ExactDecimal;
use crate::{Result, atomic};

/// The columns, in order.
pub const COLUMNS: [&str; 6] = ["class", "name", "samples", "accuracy", "iou", "bf"];

/// Formats the classes as CSV, with a header. Missing values are empty. Fractions are written as the shortest
/// decimal that parses to the same bits.
#[must_use]
pub fn to_csv(classes: &[ClassMetrics]) -> String {
    let mut text = COLUMNS.join(",");
    text.push('\n');
    for ClassMetrics { class, name, samples, accuracy, iou, bf } in classes {
        let [accuracy, iou, bf] = [accuracy, iou, bf].map(|fraction| ExactDecimal(*fraction));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{class},{},{samples},{accuracy},{iou},{bf}", QuotedField(name));
    }
    text
}

/// Replaces `path` by the classes as CSV.
pub fn write(path: &Path, classes: &[ClassMetrics]) -> Result<()> {
    atomic::write(path, to_csv(classes).as_bytes())
}

/// Formats a confusion matrix as CSV: one row per true class, one column per predicted class.
#[must_use]
pub fn confusion_to_csv<'a>(names: &[&str], rows: impl Iterator<Item = &'a [u64]>) -> String {
    let mut text = String::from("class");
    names.iter().for_each(|name| _ = write!(text, ",{}", QuotedField(name)));
    text.push('\n');
    for (name, row) in names.iter().zip(rows) {
        let _ = write!(text, "{}", QuotedField(name));
        row.iter().for_each(|count| _ = write!(text, ",{count}"));
        text.push('\n');
    }
    text
}

/// Returns whether a text has the form that [`confusion_to_csv`] writes: one row per class of the header, in
/// order.
#[must_use]
pub fn is_confusion(text: &str) -> bool {
    let mut lines = text.lines();
    let Some(mut names) = lines.next().and_then(|head| head.strip_prefix("class")) else { return false };
    let rows: Vec<&str> = lines.collect();
    for row in &rows {
        // The name is everything before the counts; it may contain commas.
        let name = row.rsplitn(rows.len() + 1, ',').last().unwrap_or_default();
        let Some(rest) = names.strip_prefix(',').and_then(|names| names.strip_prefix(name)) else {
            return false;
        };
        names = rest;
    }
    names.is_empty() && !rows.is_empty()
}

/// The class names in a file written by [`write()`], by class. `None` if there is no such file or its format
/// differs.
#[must_use]
pub fn read_names(path: &Path) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(path).ok()?;
    let mut rest = text.strip_prefix(&COLUMNS.join(","))?.strip_prefix('\n')?;
    let mut names = Vec::new();
    while !rest.is_empty() {
        let (class, after) = rest.split_once(',')?;
        if class.parse() != Ok(names.len()) {
            return None;
        }
        let (name, after) = match after.strip_prefix('"') {
            None => after.split_once(',').map(|(name, after)| (name.to_owned(), after))?,
            Some(quoted) => unquoted(quoted)?,
        };
        names.push(name);
        rest = after.split_once('\n')?.1;
    }
    Some(names)
}

/// The text up to the closing quote, and the rest after the comma that follows it.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut rest = text;
    loop {
        let (part, after) = rest.split_once('"')?;
        name.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => {
                name.push('"');
                rest = after;
            }
            None => return Some((name, after.strip_prefix(',')?)),
        }
    }
}

/// A field of RFC 4180: quoted if it contains a comma, a quote or a line break.
struct QuotedField<'a>(&'a str);

impl fmt::Display for QuotedField<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.contains([',', '"', '\n', '\r']) {
            write!(f, "\"{}\"", self.0.replace('"', "\"\""))
        } else {
            f.write_str(self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_values_are_empty_and_names_are_quoted() {
        let class = |class, name: &str, accuracy, iou| ClassMetrics {
            class,
            name: name.to_owned(),
            samples: 7,
            accuracy,
            iou,
            bf: None,
        };
        let classes = [class(0, "sky", Some(0.1 + 0.2), Some(1.0)), class(1, "a \"b\", c", None, None)];
        assert_eq!(
            to_csv(&classes),
            "class,name,samples,accuracy,iou,bf\n0,sky,7,0.30000000000000004,1.0,\n\
             1,\"a \"\"b\"\", c\",7,,,\n"
        );
    }

    #[test]
    fn names_survive_a_round_trip() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("classes.csv");
        let names = ["sky", "a \"b\", c", "", "line\nbreak", "\""];
        let class = |(class, name): (usize, &&str)| ClassMetrics {
            class,
            name: (*name).to_owned(),
            samples: 0,
            accuracy: None,
            iou: Some(0.5),
            bf: None,
        };
        write(&path, &names.iter().enumerate().map(class).collect::<Vec<_>>()).unwrap();
        assert_eq!(read_names(&path).unwrap(), names);
        for text in ["", "class,name\n", "class,name,samples,accuracy,iou,bf\n1,sky,0,,,\n"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read_names(&path), None, "{text:?}");
        }
    }

    #[test]
    fn recognises_a_confusion_matrix() {
        let rows: [&[u64]; 2] = [&[3, 0], &[1, 2]];
        assert!(is_confusion(&confusion_to_csv(&["7", "b,c\"d"], rows.into_iter())));
        for other in ["", "class", "class,a,b\n", "class,a,b\na,1,2\n", "name,a\na,1\n", "class,a\nb,1\n"] {
            assert!(!is_confusion(other), "{other:?}");
        }
    }

    #[test]
    fn confusion_matrix_has_a_row_per_class() {
        let rows: [&[u64]; 2] = [&[3, 0], &[1, 2]];
        assert_eq!(
            confusion_to_csv(&["a", "b,c"], rows.into_iter()),
            "class,a,\"b,c\"\na,3,0\n\"b,c\",1,2\n"
        );
    }
}
