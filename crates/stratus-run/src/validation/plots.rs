//! `curves.csv` and `points.csv`: precision–recall curves of labels, and predicted over true numbers.

use std::path::Path;

use serde::Serialize;

use crate::{Error, Result, atomic, csv};

/// The columns of a file of curves, in order.
const CURVE_COLUMNS: [&str; 5] = ["epoch", "label", "threshold", "recall", "precision"];
/// The columns of a file of points, in order.
const POINT_COLUMNS: [&str; 4] = ["epoch", "target", "number", "predicted"];
/// The maximum number of labels with a curve: those with the lowest average precision.
pub const MAX_CURVES: usize = 100;
/// The maximum number of points of a curve.
pub const MAX_CURVE_POINTS: usize = 100;
/// The maximum number of targets with points: those with the lowest R².
pub const MAX_POINT_TARGETS: usize = 12;
/// The maximum number of points of a target.
pub const MAX_TARGET_POINTS: usize = 1000;
/// The maximum size of a file that is read.
const MAX_BYTES: u64 = 4 << 20;

/// A point of the precision–recall curve of a label.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LabelPoint {
    /// The label.
    pub label: usize,
    /// The threshold: the smallest probability that is predicted positive.
    pub threshold: f32,
    /// The share of positive samples that is predicted positive.
    pub recall: f64,
    /// The share of positive predictions that is correct.
    pub precision: f64,
}

/// A predicted number beside the true one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TargetPoint {
    /// The target.
    pub target: usize,
    /// The true number, in the unit of the target.
    pub number: f32,
    /// The predicted number.
    pub predicted: f32,
}

/// Replaces `path` by the curves of the validation after `epoch`. Numbers are the shortest decimals that
/// parse to the same bits.
///
/// # Errors
/// If the file cannot be written.
pub fn write_curves(path: &Path, epoch: u32, points: &[LabelPoint]) -> Result<()> {
    let rows = points.iter().map(|&LabelPoint { label, threshold, recall, precision }| {
        [epoch.to_string(), label.to_string(), format!("{threshold:?}"), exact(recall), exact(precision)]
    });
    write(path, CURVE_COLUMNS, rows)
}

/// Replaces `path` by the points of the validation after `epoch`, written as those of [`write_curves`].
///
/// # Errors
/// If the file cannot be written.
pub fn write_points(path: &Path, epoch: u32, points: &[TargetPoint]) -> Result<()> {
    let rows = points.iter().map(|&TargetPoint { target, number, predicted }| {
        [epoch.to_string(), target.to_string(), format!("{number:?}"), format!("{predicted:?}")]
    });
    write(path, POINT_COLUMNS, rows)
}

/// Reads a file of [`write_curves`].
///
/// # Errors
/// If the file cannot be read, is too large, or has a row that [`write_curves`] does not write.
pub fn read_curves(path: &Path) -> Result<Vec<LabelPoint>> {
    let is_share = |value: f64| (0.0..=1.0).contains(&value);
    read(path, CURVE_COLUMNS, MAX_CURVES * MAX_CURVE_POINTS, |fields| {
        let [label, threshold, recall, precision] = fields else { return None };
        let point = LabelPoint {
            label: label.parse().ok()?,
            threshold: threshold.parse().ok()?,
            recall: recall.parse().ok()?,
            precision: precision.parse().ok()?,
        };
        let shares = [point.threshold.into(), point.recall, point.precision];
        shares.into_iter().all(is_share).then_some(point)
    })
}

/// Reads a file of [`write_points`].
///
/// # Errors
/// As [`read_curves`].
pub fn read_points(path: &Path) -> Result<Vec<TargetPoint>> {
    read(path, POINT_COLUMNS, MAX_POINT_TARGETS * MAX_TARGET_POINTS, |fields| {
        let [target, number, predicted] = fields else { return None };
        let point = TargetPoint {
            target: target.parse().ok()?,
            number: number.parse().ok()?,
            predicted: predicted.parse().ok()?,
        };
        (point.number.is_finite() && point.predicted.is_finite()).then_some(point)
    })
}

fn exact(value: f64) -> String {
    csv::exact(Some(value))
}

/// Replaces `path` by rows whose first field is the epoch.
fn write<const COLUMNS: usize>(
    path: &Path,
    columns: [&str; COLUMNS],
    rows: impl Iterator<Item = [String; COLUMNS]>,
) -> Result<()> {
    let text = csv::to_text(std::iter::once(columns.map(str::to_owned)).chain(rows));
    atomic::write(path, text.as_bytes())
}

/// Reads the rows of [`write()`]. `parse` takes the fields after the epoch.
fn read<T, const COLUMNS: usize>(
    path: &Path,
    columns: [&str; COLUMNS],
    max_rows: usize,
    parse: impl Fn(&[&str]) -> Option<T>,
) -> Result<Vec<T>> {
    let damaged = |reason: String| Error::damaged(path, reason, "restore it from a copy, or remove it");
    let text = stratus_base::read_text_at_most(path, MAX_BYTES).map_err(Error::io("read", path))?;
    let mut lines = text.lines();
    let header = columns.join(",");
    if lines.next() != Some(&header) {
        return Err(damaged(format!("line 1 is not {header}")));
    }
    let mut rows = Vec::new();
    for (number, line) in (2..).zip(lines) {
        if rows.len() == max_rows {
            return Err(damaged(format!("it has more than {max_rows} rows")));
        }
        // A longer line has one field too many.
        let fields: Vec<&str> = line.splitn(COLUMNS + 1, ',').collect();
        let row = match &fields[..] {
            [epoch, rest @ ..] if epoch.parse::<u32>().is_ok() => parse(rest),
            _ => None,
        };
        rows.push(row.ok_or_else(|| damaged(format!("line {number} is not a row of {header}")))?);
    }
    Ok(rows)
}
