//! `classes.csv`: the metrics of each class, label or target in the last validation.

use std::iter::once;
use std::path::Path;

use serde::{Deserialize, Serialize};
use stratus_measures::{ClassMetrics, LabelMetrics, TargetMetrics};

use crate::{Result, atomic, csv};

/// The columns for classes, in order.
const COLUMNS: [&str; 6] = ["class", "name", "samples", "accuracy", "iou", "bf"];
/// The columns for labels, in order. Those after `auc` are of the label's own threshold.
const LABEL_COLUMNS: [&str; 11] = [
    "label",
    "name",
    "positives",
    "negatives",
    "missing",
    "average_precision",
    "auc",
    "threshold",
    "precision",
    "recall",
    "f1",
];
/// The columns for targets, in order.
const TARGET_COLUMNS: [&str; 8] = ["target", "name", "samples", "missing", "mean", "mae", "rmse", "r2"];
/// Maximum length of a file whose names are read.
const MAX_BYTES: u64 = 16 << 20;

/// The metrics of each output of a network: of classes, labels or targets, by its task. The other lists are
/// empty, and not serialised.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputMetrics {
    /// Of classes, of images or pixels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassMetrics>,
    /// Of labels; thresholds are probabilities.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<LabelMetrics>,
    /// Of targets, in their units.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetMetrics>,
}

impl OutputMetrics {
    /// The number of outputs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.classes.len() + self.labels.len() + self.targets.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The names of the outputs, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let classes = self.classes.iter().map(|class| &class.name);
        let labels = self.labels.iter().map(|label| &label.name);
        classes.chain(labels).chain(self.targets.iter().map(|target| &target.name)).map(String::as_str)
    }

    /// The metrics as CSV, with a header. Missing values are empty. Fractions and numbers are written as the
    /// shortest decimal that parses to the same bits.
    #[must_use]
    pub fn to_csv(&self) -> String {
        if !self.labels.is_empty() {
            return csv::to_text(once(LABEL_COLUMNS.map(str::to_owned)).chain(self.labels.iter().map(label_row)));
        }
        if !self.targets.is_empty() {
            let rows = self.targets.iter().map(target_row);
            return csv::to_text(once(TARGET_COLUMNS.map(str::to_owned)).chain(rows));
        }
        csv::to_text(once(COLUMNS.map(str::to_owned)).chain(self.classes.iter().map(class_row)))
    }
}

fn class_row(metrics: &ClassMetrics) -> [String; 6] {
    let ClassMetrics { class, name, samples, accuracy, iou, bf } = metrics;
    let [accuracy, iou, bf] = [*accuracy, *iou, *bf].map(csv::exact);
    [class.to_string(), name.clone(), samples.to_string(), accuracy, iou, bf]
}

fn label_row(metrics: &LabelMetrics) -> [String; 11] {
    let LabelMetrics { label, name, positives, negatives, missing, average_precision, auc, at_chosen, .. } =
        metrics;
    let [positives, negatives, missing] = [positives, negatives, missing].map(u64::to_string);
    let [average_precision, auc] = [*average_precision, *auc].map(csv::exact);
    let threshold = at_chosen.map(|point| f64::from(point.threshold));
    let [precision, recall, f1] = match at_chosen {
        Some(point) => [point.precision, point.recall, point.f1].map(csv::exact),
        None => Default::default(),
    };
    [
        label.to_string(),
        name.clone(),
        positives,
        negatives,
        missing,
        average_precision,
        auc,
        csv::exact(threshold),
        precision,
        recall,
        f1,
    ]
}

fn target_row(metrics: &TargetMetrics) -> [String; 8] {
    let TargetMetrics { target, name, samples, missing, mean, mae, rmse, r2 } = metrics;
    let [mean, mae, rmse, r2] = [*mean, *mae, *rmse, *r2].map(csv::exact);
    [target.to_string(), name.clone(), samples.to_string(), missing.to_string(), mean, mae, rmse, r2]
}

/// Replaces `path` by the metrics as CSV.
pub fn write(path: &Path, outputs: &OutputMetrics) -> Result<()> {
    atomic::write(path, outputs.to_csv().as_bytes())
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

/// The names in a file written by [`write()`], by class, label or target. `None` if there is no such file or its format
/// differs.
#[must_use]
pub fn read_names(path: &Path) -> Option<Vec<String>> {
    let text = stratus_base::read_at_most(path, MAX_BYTES).ok()?;
    let mut reader = ::csv::Reader::from_reader(&text[..]);
    let header = reader.headers().ok()?;
    let is_known =
        header.iter().eq(COLUMNS) || header.iter().eq(LABEL_COLUMNS) || header.iter().eq(TARGET_COLUMNS);
    is_known.then_some(())?;
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
            OutputMetrics { classes: classes.into(), ..OutputMetrics::default() }.to_csv(),
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
        let classes = names.iter().enumerate().map(class).collect();
        write(&path, &OutputMetrics { classes, ..OutputMetrics::default() }).unwrap();
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
