//! The types in which predictions come.

use crate::MeasureError;

/// An integer that names a class.
pub trait ClassNumber: Copy {
    /// Its index; what is negative becomes larger than any number of classes.
    fn index(self) -> usize;
    /// Its value, for messages.
    fn value(self) -> i64;
}

macro_rules! class_numbers {
    ($($type:ty),*) => {
        $(impl ClassNumber for $type {
            // A negative number becomes one of the upper half of `usize`.
            fn index(self) -> usize { self as usize }
            fn value(self) -> i64 { i64::from(self) }
        })*
    };
}

class_numbers!(u8, u16, u32, i32);

/// Checks that there is a prediction for every label, and that each is a class or, of the labels, negative.
pub(crate) fn check<P: ClassNumber>(
    labels: &[i32],
    predictions: &[P],
    classes: usize,
) -> Result<(), MeasureError> {
    if labels.len() != predictions.len() {
        return Err(MeasureError::Lengths { labels: labels.len(), predictions: predictions.len() });
    }
    // Maxima first, which are vectorised; the place only where something is wrong.
    let beyond = |label: i32| label >= 0 && label as usize >= classes;
    if labels.iter().copied().max().is_some_and(beyond)
        && let Some(position) = labels.iter().position(|&label| beyond(label))
    {
        return Err(MeasureError::Label { label: labels[position], position, classes });
    }
    if predictions.iter().map(|prediction| prediction.index()).max().is_some_and(|index| index >= classes)
        && let Some(position) = predictions.iter().position(|prediction| prediction.index() >= classes)
    {
        let prediction = predictions[position].value();
        return Err(MeasureError::Prediction { prediction, position, classes });
    }
    Ok(())
}
