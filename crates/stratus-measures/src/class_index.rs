//! The integer types of predictions.

use crate::MetricError;

/// The index of a class, as an integer of any width.
pub trait ClassIndex: Copy {
    /// The index of the class. A negative value becomes larger than any number of classes.
    fn as_index(self) -> usize;
    /// The value, for messages.
    fn value(self) -> i64;
}

macro_rules! class_indices {
    ($($type:ty),*) => {
        $(impl ClassIndex for $type {
            // A negative value wraps to the upper half of `usize`.
            fn as_index(self) -> usize { self as usize }
            fn value(self) -> i64 { i64::from(self) }
        })*
    };
}

class_indices!(u8, u16, u32, i32);

/// Checks that there is a prediction for every label, that every prediction is a class, and that every label
/// is a class or negative.
pub(crate) fn check_classes<P: ClassIndex>(
    labels: &[i32],
    predictions: &[P],
    classes: usize,
) -> Result<(), MetricError> {
    if labels.len() != predictions.len() {
        return Err(MetricError::LengthMismatch { labels: labels.len(), predictions: predictions.len() });
    }
    // The maximum is vectorised; the position is searched only after a failure.
    let beyond = |label: i32| label >= 0 && label as usize >= classes;
    if labels.iter().copied().max().is_some_and(beyond)
        && let Some(position) = labels.iter().position(|&label| beyond(label))
    {
        return Err(MetricError::LabelOutOfRange { label: labels[position], position, classes });
    }
    if predictions.iter().map(|prediction| prediction.as_index()).max().is_some_and(|index| index >= classes)
        && let Some(position) = predictions.iter().position(|prediction| prediction.as_index() >= classes)
    {
        let prediction = predictions[position].value();
        return Err(MetricError::PredictionOutOfRange { prediction, position, classes });
    }
    Ok(())
}
