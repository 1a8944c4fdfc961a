//! The median of many values in bounded memory.

/// Maximum number of stored values. With more, the median is over at least half that number of evenly spaced
/// values.
const MAX_SAMPLES: usize = 16_384;

/// Stores every value, later every second, every fourth, ….
#[derive(Clone, Debug)]
pub(crate) struct Samples {
    values: Vec<i64>,
    stride: u64,
    seen: u64,
}

impl Default for Samples {
    fn default() -> Self {
        Self { values: Vec::new(), stride: 1, seen: 0 }
    }
}

impl Samples {
    pub(crate) fn push(&mut self, value: i128) {
        // The stride is a power of two, which avoids a slow division.
        if self.seen & (self.stride - 1) == 0 {
            let clamped = value.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
            self.values.push(clamped as i64);
        }
        self.seen += 1;
        if self.values.len() == MAX_SAMPLES {
            let mut keep = false;
            self.values.retain(|_| {
                keep = !keep;
                keep
            });
            self.stride *= 2;
        }
    }

    /// The median; 0 without values.
    pub(crate) fn median(mut self) -> f64 {
        let n = self.values.len();
        if n == 0 {
            return 0.0;
        }
        let (below, &mut upper, _) = self.values.select_nth_unstable(n / 2);
        let lower = if n.is_multiple_of(2) { below.iter().copied().max().unwrap_or(upper) } else { upper };
        lower as f64 / 2.0 + upper as f64 / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn median(values: impl IntoIterator<Item = i128>) -> f64 {
        let mut samples = Samples::default();
        values.into_iter().for_each(|value| samples.push(value));
        samples.median()
    }

    #[test]
    fn median_is_exact_for_few_values_and_close_for_many() {
        assert_eq!(median([]), 0.0);
        assert_eq!(median([7]), 7.0);
        assert_eq!(median([9, 1, 4, 2]), 3.0);
        assert_eq!(median([-5, 5, i128::MAX]), 5.0);
        let many = median((0..1_000_000).map(|i| i * 7919 % 1_000_003));
        assert!((many / 500_000.0 - 1.0).abs() < 0.02, "{many}");
    }
}
