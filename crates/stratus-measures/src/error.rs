//! What can be wrong with labels and predictions.

/// Why labels and predictions cannot be measured. Where it is found nothing has been counted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// A label beyond the classes.
    #[error(
        "label {label} at position {position} is out of range: there are {classes} classes, 0 to \
         {classes}-1; negative labels are ignored"
    )]
    Label {
        /// The label.
        label: i32,
        /// Its index in the labels.
        position: usize,
        /// How many classes there are.
        classes: usize,
    },
    /// A prediction that is no class.
    #[error("prediction {prediction} at position {position} is out of range: there are {classes} classes")]
    Prediction {
        /// The prediction.
        prediction: i64,
        /// Its index in the predictions.
        position: usize,
        /// How many classes there are.
        classes: usize,
    },
    /// Not a prediction for every label.
    #[error("there are {predictions} predictions for {labels} labels; each label needs one")]
    Lengths {
        /// How many labels there are.
        labels: usize,
        /// How many predictions there are.
        predictions: usize,
    },
    /// Labels that do not fill their image.
    #[error("an image of {height}×{width} pixels has {labels} labels")]
    Image {
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// How many labels there are.
        labels: usize,
    },
    /// More than boundaries are compared of.
    #[error("{found} {what} are more than the {most} that boundary scores are made for")]
    Limit {
        /// How much there is.
        found: usize,
        /// Of what.
        what: &'static str,
        /// How much is accepted.
        most: usize,
    },
    /// Counts of other classes.
    #[error("counts of {found} classes cannot be added to those of {classes}")]
    Classes {
        /// How many classes there are.
        classes: usize,
        /// How many the others have.
        found: usize,
    },
    /// Scores of another tolerance.
    #[error("boundary scores of different tolerances cannot be added up")]
    Tolerance,
    /// Rows that are no square matrix.
    #[error("row {row} of a confusion matrix of {classes} classes has {found} counts")]
    Row {
        /// The row.
        row: usize,
        /// How many rows there are.
        classes: usize,
        /// How many counts it has.
        found: usize,
    },
}
