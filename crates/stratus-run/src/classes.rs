//! `classes.csv`: the metrics of each class, label or target in the last validation.

use std::iter::once;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use stratus_measures::{ClassMetrics, LabelMetrics, TargetMetrics};

use crate::{Error, Result, atomic, csv};

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
/// Maximum length of a file that is read.
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
            return csv::to_text(
                once(LABEL_COLUMNS.map(str::to_owned)).chain(self.labels.iter().map(label_row)),
            );
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
    let LabelMetrics {
        label, name, positives, negatives, missing, average_precision, auc, at_chosen, ..
    } = metrics;
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

/// The names in a file written by [`write()`], by class, label or target. `None` if there is no such file or
/// its format differs.
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

/// The metrics of a label, as a file of [`write()`] has them. `None` is undefined.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LabelRow {
    /// The label.
    pub label: usize,
    /// Its name.
    pub name: String,
    /// The number of images with the label.
    pub positives: u64,
    /// The number of images without it.
    pub negatives: u64,
    /// The number of images for which it is not known.
    pub missing: u64,
    /// Average precision.
    pub average_precision: Option<f64>,
    /// The area under the ROC curve.
    pub auc: Option<f64>,
    /// The threshold that maximises F1, a probability.
    pub threshold: Option<f64>,
    /// The precision at this threshold.
    pub precision: Option<f64>,
    /// The recall at this threshold.
    pub recall: Option<f64>,
    /// F1 at this threshold.
    pub f1: Option<f64>,
}

/// Reads the metrics of labels from a file of [`write()`].
///
/// # Errors
/// If the file cannot be read, is too large, or is not one of labels.
pub fn read_labels(path: &Path) -> Result<Vec<LabelRow>> {
    read(path, LABEL_COLUMNS, |index, fields| {
        let [label, name, counts @ .., average_precision, auc, threshold, precision, recall, f1] = fields;
        let [positives, negatives, missing] = counts;
        Some(LabelRow {
            label: parsed(label).filter(|label| *label == index)?,
            name: (*name).to_owned(),
            positives: parsed(positives)?,
            negatives: parsed(negatives)?,
            missing: parsed(missing)?,
            average_precision: optional(average_precision)?,
            auc: optional(auc)?,
            threshold: optional(threshold)?,
            precision: optional(precision)?,
            recall: optional(recall)?,
            f1: optional(f1)?,
        })
    })
}

/// Reads the metrics of targets from a file of [`write()`].
///
/// # Errors
/// As [`read_labels`], if the file is not one of targets.
pub fn read_targets(path: &Path) -> Result<Vec<TargetMetrics>> {
    read(path, TARGET_COLUMNS, |index, [target, name, samples, missing, mean, mae, rmse, r2]| {
        Some(TargetMetrics {
            target: parsed(target).filter(|target| *target == index)?,
            name: (*name).to_owned(),
            samples: parsed(samples)?,
            missing: parsed(missing)?,
            mean: optional(mean)?,
            mae: optional(mae)?,
            rmse: optional(rmse)?,
            r2: optional(r2)?,
        })
    })
}

/// Reads the rows of a file with these columns. `parse` takes the number of a row, from 0, and its fields.
fn read<T, const COLUMNS: usize>(
    path: &Path,
    columns: [&str; COLUMNS],
    parse: impl Fn(usize, &[&str; COLUMNS]) -> Option<T>,
) -> Result<Vec<T>> {
    let damaged = |reason: String| Error::damaged(path, reason, "restore it from a copy, or remove it");
    let text = stratus_base::read_at_most(path, MAX_BYTES).map_err(Error::io("read", path))?;
    let mut reader = ::csv::Reader::from_reader(&text[..]);
    if !reader.headers().is_ok_and(|header| header.iter().eq(columns)) {
        return Err(damaged(format!("line 1 is not {}", columns.join(","))));
    }
    let rows = reader.into_records().enumerate().map(|(number, record)| {
        let record = record.map_err(|error| damaged(error.to_string()))?;
        let fields: Vec<&str> = record.iter().collect();
        let row = <&[&str; COLUMNS]>::try_from(&fields[..]).ok().and_then(|fields| parse(number, fields));
        row.ok_or_else(|| damaged(format!("row {} is not one of {}", number + 1, columns.join(","))))
    });
    rows.collect()
}

fn parsed<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

/// A finite number, or an empty text.
fn optional(text: &str) -> Option<Option<f64>> {
    if text.is_empty() { Some(None) } else { parsed(text).filter(|value: &f64| value.is_finite()).map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_measures::{LabelScores, ScoreTable, TargetErrors};

    #[test]
    fn metrics_of_labels_and_targets_survive_a_round_trip() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("classes.csv");
        let mut table = ScoreTable::new(2);
        let outputs = [0.3, -1.5, -0.2, 0.1, 2.0, 0.7, 0.4, -0.1];
        table.append(&outputs, &[1.0, f32::NAN, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0]).unwrap();
        let names = |index: usize| ["a \"b\", c\n", ""][index].to_owned();
        let labels = LabelScores::new(&table, LabelScores::LOGIT_THRESHOLD, names).labels;
        write(&path, &OutputMetrics { labels: labels.clone(), ..OutputMetrics::default() }).unwrap();
        let read = read_labels(&path).unwrap();
        assert_eq!(read.len(), 2);
        for (line, label) in read.iter().zip(&labels) {
            assert_eq!((line.label, &line.name, line.missing), (label.label, &label.name, label.missing));
            assert_eq!([line.positives, line.negatives], [label.positives, label.negatives]);
            assert_eq!([line.average_precision, line.auc], [label.average_precision, label.auc]);
            let chosen = label.at_chosen;
            assert_eq!(line.threshold, chosen.map(|point| f64::from(point.threshold)));
            let shares = chosen.map_or([None; 3], |point| [point.precision, point.recall, point.f1]);
            assert_eq!([line.precision, line.recall, line.f1], shares);
        }
        // The second label has no positives.
        assert!(read[0].f1.is_some() && read[1].average_precision.is_none() && read[1].threshold.is_none());
        read_targets(&path).unwrap_err();
        let targets = TargetErrors::new(&table, names).targets;
        write(&path, &OutputMetrics { targets: targets.clone(), ..OutputMetrics::default() }).unwrap();
        assert_eq!(read_targets(&path).unwrap(), targets);
        read_labels(&path).unwrap_err();
    }

    #[test]
    fn damaged_metrics_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("classes.csv");
        let header = "target,name,samples,missing,mean,mae,rmse,r2\n";
        for row in ["1,a,1,0,,,,", "0,a,1,0,,,,NaN", "0,a,-1,0,,,,", "0,a,1,0,,,", "0,a,1,0,x,,,", "0"] {
            std::fs::write(&path, format!("{header}{row}\n")).unwrap();
            let error = read_targets(&path).unwrap_err().to_string();
            assert!(error.contains("classes.csv is damaged"), "{row}: {error}");
        }
        std::fs::write(&path, format!("{header}0,a,1,0,,,,\n")).unwrap();
        assert_eq!(read_targets(&path).unwrap().len(), 1);
        assert!(read_labels(&path).unwrap_err().to_string().contains("line 1 is not label,name"));
    }

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
