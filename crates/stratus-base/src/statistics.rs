//! Statistics of measurements.

/// The mean of values that are added one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean {
    sum: f64,
    count: u64,
}

impl Mean {
    /// Adds a value, if it is known and finite.
    pub fn add(&mut self, value: Option<f64>) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            self.sum += value;
            self.count += 1;
        }
    }

    /// The mean of the values so far. `None` without values.
    #[must_use]
    pub fn mean(self) -> Option<f64> {
        Some(self.sum / self.count as f64).filter(|mean| mean.is_finite())
    }
}

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
    use super::{Mean, median, quantile};

    #[test]
    fn unknown_values_do_not_count_in_a_mean() {
        let mut mean = Mean::default();
        assert_eq!(mean.mean(), None);
        for value in [Some(1.0), None, Some(f64::NAN), Some(f64::INFINITY), Some(4.0)] {
            mean.add(value);
        }
        assert_eq!(mean.mean(), Some(2.5));
    }

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
