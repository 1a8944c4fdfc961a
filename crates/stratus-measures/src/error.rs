//! Errors of labels and predictions.

/// An error in labels, predictions or scores, or two results that cannot be merged. Nothing has been counted
/// then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetricError {
    /// A label is beyond the classes.
    #[error(
        "label {label} at position {position} is out of range: there are {classes} classes, 0 to \
         {classes}-1; negative labels are ignored"
    )]
    LabelOutOfRange {
        /// The label.
        label: i32,
        /// Its index in the labels.
        position: usize,
        /// The number of classes.
        classes: usize,
    },
    /// A prediction is beyond the classes.
    #[error("prediction {prediction} at position {position} is out of range: there are {classes} classes")]
    PredictionOutOfRange {
        /// The prediction.
        prediction: i64,
        /// Its index in the predictions.
        position: usize,
        /// The number of classes.
        classes: usize,
    },
    /// The numbers of labels and predictions differ.
    #[error("expected {labels} predictions, one per label, found {predictions}")]
    LengthMismatch {
        /// The number of labels.
        labels: usize,
        /// The number of predictions.
        predictions: usize,
    },
    /// The number of labels differs from the number of pixels.
    #[error("expected {height}×{width} labels, one per pixel, found {labels}")]
    ImageSizeMismatch {
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// The number of labels.
        labels: usize,
    },
    /// The image or the number of classes is too large for boundary F1.
    #[error("{found} {items} exceed the limit of {max} for boundary F1")]
    LimitExceeded {
        /// The count.
        found: usize,
        /// The counted items: "rows", "pixels" or "classes".
        items: &'static str,
        /// The largest accepted count.
        max: usize,
    },
    /// The two results have different numbers of classes.
    #[error("cannot add counts of {found} classes to counts of {classes} classes")]
    ClassCountMismatch {
        /// The number of classes.
        classes: usize,
        /// The number of classes of the other result.
        found: usize,
    },
    /// The two boundary scores have different tolerances.
    #[error("cannot add boundary scores with different tolerances")]
    ToleranceMismatch,
    /// A serialised confusion matrix is not square.
    #[error("row {row} of the confusion matrix has {found} counts, expected {classes}")]
    RowLength {
        /// The row.
        row: usize,
        /// The number of rows.
        classes: usize,
        /// The number of counts in the row.
        found: usize,
    },
    /// The numbers of outputs and targets differ, or are no multiple of the number of columns.
    #[error("{outputs} outputs and {targets} targets are no rows of {columns} columns")]
    TableSizeMismatch {
        /// The number of columns.
        columns: usize,
        /// The number of outputs.
        outputs: usize,
        /// The number of targets.
        targets: usize,
    },
    /// An output is NaN or infinite, or a target is infinite.
    #[error("the {item} of sample {sample} in column {column} is not a finite number")]
    NotFinite {
        /// The wrong value: "output" or "target".
        item: &'static str,
        /// The sample, counted from 0 within its table.
        sample: usize,
        /// The label or target, counted from 0.
        column: usize,
    },
    /// Two tables, or a table and its thresholds, have different numbers of columns.
    #[error("expected {columns} columns, one per label or target, found {found}")]
    ColumnCountMismatch {
        /// The number of columns.
        columns: usize,
        /// The number of columns of the other.
        found: usize,
    },
    /// Bytes that are no table of scores.
    #[error("{bytes} bytes are not a table of scores")]
    DamagedTable {
        /// The number of bytes.
        bytes: usize,
    },
}
