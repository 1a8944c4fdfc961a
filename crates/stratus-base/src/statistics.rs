//! Statistics of measurements.

/// Sorts the values and returns their median: for an even count the mean of the middle two. `None` without
/// values.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    let &upper = values.get(middle)?;
    Some(if values.len().is_multiple_of(2) { (values[middle - 1] + upper) / 2.0 } else { upper })
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 1.0]), Some(1.5));
        assert_eq!(median(&mut []), None);
    }
}
