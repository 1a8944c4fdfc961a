//! Ratios and means that may be undefined.

/// The mean of the values that are not `None`, if there are any.
pub(crate) fn mean(values: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    let (sum, count) = values.into_iter().flatten().fold((0.0, 0u32), |(sum, n), value| (sum + value, n + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// `part / whole`, or `None` if `whole` is 0.
pub(crate) fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
