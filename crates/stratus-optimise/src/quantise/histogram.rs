//! Histograms of the numbers of a map, and the ranges that follow from them.

/// The numbers of bins on either side of 0.
const BINS: usize = 4096;

/// The bytes of a range.
const BYTES: f64 = 255.0;

/// The share of the numbers that [`RangeMethod::Percentile`] keeps, on either side of 0.
const KEPT_SHARE: f64 = 0.9999;

/// The shares of the widest range that [`RangeMethod::LeastSquares`] compares, in hundredths.
const COMPARED_PERCENT: std::ops::RangeInclusive<usize> = 20..=100;

/// The range of a map's numbers; it contains 0. Numbers outside become its first or last byte.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The lowest number, at most 0.
    pub low: f32,
    /// The highest number, at least 0.
    pub high: f32,
}

/// The way in which a range follows from the numbers of calibration images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeMethod {
    /// From the lowest to the highest number.
    MinimumMaximum,
    /// Without the outermost ten-thousandth of the numbers on either side of 0.
    Percentile,
    /// The part of the widest range with the least sum of squared errors.
    LeastSquares,
}

impl RangeMethod {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::MinimumMaximum, Self::Percentile, Self::LeastSquares];

    /// Its name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MinimumMaximum => "minimum and maximum",
            Self::Percentile => "percentile",
            Self::LeastSquares => "least squares",
        }
    }
}

/// The numbers of a map, counted in bins of equal width around 0. The width doubles when a larger number is
/// added, so the counts do not depend on the order of the numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// The width of a bin; 0 before the first number that is not 0.
    width: f32,
    /// The counts of negative and of positive numbers, by magnitude.
    counts: [Vec<u64>; 2],
    zeros: u64,
    lowest: f32,
    highest: f32,
}

impl Default for Histogram {
    fn default() -> Self {
        let counts = [vec![0; BINS], vec![0; BINS]];
        Self { width: 0.0, counts, zeros: 0, lowest: 0.0, highest: 0.0 }
    }
}

impl Histogram {
    /// Adds numbers; those that are not finite are ignored.
    pub fn add(&mut self, numbers: &[f32]) {
        let (mut low, mut high) = (0.0_f32, 0.0_f32);
        for &number in numbers.iter().filter(|number| number.is_finite()) {
            (low, high) = (low.min(number), high.max(number));
        }
        self.widen(high.max(-low));
        (self.lowest, self.highest) = (self.lowest.min(low), self.highest.max(high));
        let factor = f64::from(self.width).recip();
        for &number in numbers.iter().filter(|number| number.is_finite()) {
            if number == 0.0 {
                self.zeros += 1;
                continue;
            }
            let bin = (f64::from(number.abs()) * factor) as usize;
            self.counts[usize::from(number > 0.0)][bin.min(BINS - 1)] += 1;
        }
    }

    /// Widens the bins until `magnitude` is within the last one, not at its end.
    fn widen(&mut self, magnitude: f32) {
        if magnitude == 0.0 {
            return;
        }
        if self.width == 0.0 {
            // A power of two, so that the bins of all histograms are those of one family.
            let exponent = (f64::from(magnitude) / BINS as f64).log2().floor() + 1.0;
            self.width = (exponent.exp2() as f32).max(f32::MIN_POSITIVE);
        }
        while f64::from(self.width) * (BINS as f64) <= f64::from(magnitude) {
            self.width *= 2.0;
            for counts in &mut self.counts {
                for bin in 0..BINS / 2 {
                    counts[bin] = counts[2 * bin] + counts[2 * bin + 1];
                }
                counts[BINS / 2..].fill(0);
            }
        }
    }

    /// The range of the numbers by a method.
    #[must_use]
    pub fn range(&self, method: RangeMethod) -> Range {
        match method {
            RangeMethod::MinimumMaximum => Range { low: self.lowest, high: self.highest },
            RangeMethod::Percentile => {
                let reach = |side: usize, bound: f32| self.percentile(side).min(bound);
                Range { low: -reach(0, -self.lowest), high: reach(1, self.highest) }
            }
            RangeMethod::LeastSquares => self.least_squares(),
        }
    }

    /// The magnitude that [`KEPT_SHARE`] of the numbers on a side do not exceed.
    fn percentile(&self, side: usize) -> f32 {
        let counts = &self.counts[side];
        let total: u64 = counts.iter().sum();
        let kept = (KEPT_SHARE * total as f64).ceil() as u64;
        let mut seen = 0;
        for (bin, count) in counts.iter().enumerate() {
            seen += count;
            if seen >= kept && total > 0 {
                return (bin + 1) as f32 * self.width;
            }
        }
        0.0
    }

    fn least_squares(&self) -> Range {
        let part = |percent: usize| {
            let share = percent as f32 / 100.0;
            Range { low: self.lowest * share, high: self.highest * share }
        };
        let errors = COMPARED_PERCENT.map(|percent| (self.squared_error(part(percent)), percent));
        // Of equal errors the widest range.
        let best = errors.min_by(|one, other| one.0.total_cmp(&other.0).then(other.1.cmp(&one.1)));
        part(best.map_or(100, |(_, percent)| percent))
    }

    /// The sum of squared errors of the numbers as bytes of a range. Within it, errors are spread evenly over
    /// a byte.
    fn squared_error(&self, range: Range) -> f64 {
        let step = (f64::from(range.high) - f64::from(range.low)) / BYTES;
        let rounding = step * step / 12.0;
        let mut error = 0.0;
        for (counts, bound) in self.counts.iter().zip([-range.low, range.high]) {
            for (bin, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
                let beyond = (bin as f64 + 0.5) * f64::from(self.width) - f64::from(bound);
                let each = if beyond > 0.0 { beyond * beyond } else { rounding };
                error += each * count as f64;
            }
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(numbers: &[f32]) -> Histogram {
        let mut histogram = Histogram::default();
        histogram.add(numbers);
        histogram
    }

    #[test]
    fn counts_do_not_depend_on_the_order() {
        let mut numbers: Vec<f32> = (0..3000).map(|i| ((i * 7919 % 3001) as f32 - 1500.0) * 0.013).collect();
        numbers.extend([0.5, 1.0, 2.0, 16.0, -32.0]);
        let mut parts = Histogram::default();
        numbers.iter().for_each(|number| parts.add(&[*number]));
        let mut reversed = numbers.clone();
        reversed.reverse();
        assert_eq!(parts, histogram(&numbers));
        assert_eq!(histogram(&reversed), histogram(&numbers));
    }

    #[test]
    fn outliers_widen_only_the_whole_range() {
        let mut numbers = vec![1.0; 100_000];
        numbers.push(50.0);
        let histogram = histogram(&numbers);
        assert_eq!(histogram.range(RangeMethod::MinimumMaximum), Range { low: 0.0, high: 50.0 });
        let percentile = histogram.range(RangeMethod::Percentile);
        assert!((1.0..1.1).contains(&percentile.high) && percentile.low == 0.0, "{percentile:?}");
        let least = histogram.range(RangeMethod::LeastSquares);
        assert!((5.0..50.0).contains(&least.high), "{least:?}");
    }

    #[test]
    fn few_numbers_and_none_have_a_range() {
        for method in RangeMethod::ALL {
            assert_eq!(Histogram::default().range(method), Range { low: 0.0, high: 0.0 });
            let nothing = histogram(&[0.0, f32::NAN, f32::INFINITY]);
            assert_eq!(nothing.range(method), Range { low: 0.0, high: 0.0 });
            let range = histogram(&[-3.0, 1e-30]).range(method);
            assert!(range.low <= -0.6 && range.low >= -3.0 && range.high >= 0.0, "{method:?} {range:?}");
        }
        let huge = histogram(&[f32::MAX, f32::MIN]);
        assert_eq!(huge.range(RangeMethod::MinimumMaximum), Range { low: f32::MIN, high: f32::MAX });
    }
}
