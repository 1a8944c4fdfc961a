//! `classes.csv`: what the last validation measured of each class.

use std::fmt::{self, Write};
use std::path::Path;

use stratus_measures::ClassMeasures;

use crate::{Result, atomic};

/// The columns, in the order they are written.
pub const COLUMNS: [&str; 6] = ["class", "name", "samples", "accuracy", "iou", "bf"];

/// The classes as CSV, with a header. What does not exist is empty. Shares are written as the shortest
/// decimal that reads back as the same bits.
#[must_use]
pub fn to_csv(classes: &[ClassMeasures]) -> String {
    let mut text = COLUMNS.join(",");
    text.push('\n');
    for ClassMeasures { class, name, samples, accuracy, iou, bf } in classes {
        let [accuracy, iou, bf] = [accuracy, iou, bf].map(|share| Shortest(*share));
        // A string takes every write.
        let _ = writeln!(text, "{class},{},{samples},{accuracy},{iou},{bf}", Field(name));
    }
    text
}

/// Replaces `path` by the classes as CSV.
pub fn write(path: &Path, classes: &[ClassMeasures]) -> Result<()> {
    atomic::write(path, to_csv(classes).as_bytes())
}

/// A confusion matrix as CSV: a line for each true class, with how often it was predicted to be each.
#[must_use]
pub fn confusion_to_csv<'a>(names: &[&str], rows: impl Iterator<Item = &'a [u64]>) -> String {
    let mut text = String::from("class");
    names.iter().for_each(|name| _ = write!(text, ",{}", Field(name)));
    text.push('\n');
    for (name, row) in names.iter().zip(rows) {
        let _ = write!(text, "{}", Field(name));
        row.iter().for_each(|count| _ = write!(text, ",{count}"));
        text.push('\n');
    }
    text
}

/// Whether a text is a confusion matrix as [`confusion_to_csv`] writes it: a line for each class of the
/// header, in its order.
#[must_use]
pub fn is_confusion(text: &str) -> bool {
    let mut lines = text.lines();
    let Some(mut names) = lines.next().and_then(|head| head.strip_prefix("class")) else { return false };
    let rows: Vec<&str> = lines.collect();
    for row in &rows {
        // The columns before the counts.
        let name = row.rsplitn(rows.len() + 1, ',').last().unwrap_or_default();
        let Some(rest) = names.strip_prefix(',').and_then(|names| names.strip_prefix(name)) else {
            return false;
        };
        names = rest;
    }
    names.is_empty() && !rows.is_empty()
}

/// The names of the classes in a file that [`write()`] wrote, by their position. `None` where there is no
/// such file, or it is another's.
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

/// The text up to the closing quote, and what follows the comma behind it.
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

/// The shortest decimal with the same bits, or nothing.
struct Shortest(Option<f64>);

impl fmt::Display for Shortest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |value| write!(f, "{value:?}"))
    }
}

/// A text as a field of RFC 4180: quoted where it has a comma, a quote or a line break.
struct Field<'a>(&'a str);

impl fmt::Display for Field<'_> {
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
    fn what_does_not_exist_is_empty_and_names_are_quoted() {
        let class = |class, name: &str, accuracy, iou| ClassMeasures {
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
    fn names_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("classes.csv");
        let names = ["sky", "a \"b\", c", "", "line\nbreak", "\""];
        let class = |(class, name): (usize, &&str)| ClassMeasures {
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
    fn a_confusion_matrix_is_known_by_its_form() {
        let rows: [&[u64]; 2] = [&[3, 0], &[1, 2]];
        assert!(is_confusion(&confusion_to_csv(&["7", "b,c\"d"], rows.into_iter())));
        for other in ["", "class", "class,a,b\n", "class,a,b\na,1,2\n", "name,a\na,1\n", "class,a\nb,1\n"] {
            assert!(!is_confusion(other), "{other:?}");
        }
    }

    #[test]
    fn a_confusion_matrix_has_a_line_a_class() {
        let rows: [&[u64]; 2] = [&[3, 0], &[1, 2]];
        assert_eq!(
            confusion_to_csv(&["a", "b,c"], rows.into_iter()),
            "class,a,\"b,c\"\na,3,0\n\"b,c\",1,2\n"
        );
    }
}
