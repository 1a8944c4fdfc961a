//! Statistics of measurements.

/// Sorts the values and returns their median: for an even count the mean of the middle two. `None` without
/// values.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    let &upper = values.get(middle)?;
    Some(if values.len().is_multiple_of(2) { (values[middle - 1] + upper) / 2.0 } else { upper })
}

/// The value below which a share of the sorted values lies, `share` from 0 to 1: the nearest of them. `None`
/// without values.
#[must_use]
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last as f64 * share.clamp(0.0, 1.0)).round() as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::{median, quantile};

    #[test]
    fn quantiles_are_the_nearest_values() {
        let values = [1.0, 2.0, 3.0, 4.0, 5.0];
        for (share, expected) in [(0.0, 1.0), (0.5, 3.0), (0.9, 5.0), (0.6, 3.0), (1.0, 5.0), (7.0, 5.0)] {
            assert_eq!(quantile(&values, share), Some(expected), "{share}");
        }
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 1.0]), Some(1.5));
        assert_eq!(median(&mut []), None);
    }
}
