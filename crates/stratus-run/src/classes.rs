//! `classes.csv`: the metrics of each class in the last validation.

use std::iter::once;
use std::path::Path;

use stratus_measures::ClassMetrics;

use crate::{Result, atomic, csv};

/// The columns, in order.
const COLUMNS: [&str; 6] = ["class", "name", "samples", "accuracy", "iou", "bf"];
/// Maximum length of a file whose names are read.
const MAX_BYTES: u64 = 16 << 20;

/// Formats the classes as CSV, with a header. Missing values are empty. Fractions are written as the shortest
/// decimal that parses to the same bits.
#[must_use]
pub fn to_csv(classes: &[ClassMetrics]) -> String {
    let row = |metrics: &ClassMetrics| {
        let ClassMetrics { class, name, samples, accuracy, iou, bf } = metrics;
        let [accuracy, iou, bf] = [*accuracy, *iou, *bf].map(csv::exact);
        [class.to_string(), name.clone(), samples.to_string(), accuracy, iou, bf]
    };
    csv::to_text(once(COLUMNS.map(str::to_owned)).chain(classes.iter().map(row)))
}

/// Replaces `path` by the classes as CSV.
pub fn write(path: &Path, classes: &[ClassMetrics]) -> Result<()> {
    atomic::write(path, to_csv(classes).as_bytes())
}

/// Formats a confusion matrix as CSV: one row per true class, one column per predicted class.
#[must_use]
pub fn confusion_to_csv<'a>(names: &[&str], rows: impl Iterator<Item = &'a [u64]>) -> String {
    let row = |(name, counts): (&&str, &'a [u64])| {
        once((*name).to_owned()).chain(counts.iter().map(u64::to_string)).collect()
    };
    let header: Vec<String> = once(&"class").chain(names).map(ToString::to_string).collect();
    csv::to_text(once(header).chain(names.iter().zip(rows).map(row)))
}

/// Returns whether a text has the form that [`confusion_to_csv`] writes: one row per class of the header, in
/// order.
#[must_use]
pub fn is_confusion(text: &str) -> bool {
    let reader = ::csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
    let Ok(records) = reader.into_records().collect::<Result<Vec<_>, _>>() else { return false };
    let [header, rows @ ..] = &records[..] else { return false };
    let names = rows.iter().filter_map(|row| row.get(0));
    !rows.is_empty() && header.iter().eq(once("class").chain(names))
}

/// The class names in a file written by [`write()`], by class. `None` if there is no such file or its format
/// differs.
#[must_use]
pub fn read_names(path: &Path) -> Option<Vec<String>> {
    let text = stratus_base::read_at_most(path, MAX_BYTES).ok()?;
    let mut reader = ::csv::Reader::from_reader(&text[..]);
    reader.headers().ok()?.iter().eq(COLUMNS).then_some(())?;
    let names = reader.into_records().enumerate().map(|(class, record)| {
        let record = record.ok()?;
        (record[0].parse() == Ok(class)).then(|| record[1].to_owned())
    });
    names.collect()
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
