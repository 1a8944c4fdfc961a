//! A range of numbers: `uniform = [a, b]` or `log_uniform = [a, b]`.

use toml::de::{DeTable, DeValue};

/// The significant decimal digits of drawn numbers: more would only lengthen names and tables.
const SIGNIFICANT_DIGITS: usize = 4;

/// The largest integer that every smaller one has an `f64` for.
const MAX_EXACT_INTEGER: f64 = (1_u64 << 53) as f64;

/// A range of numbers, both ends included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NumberRange {
    low: f64,
    high: f64,
    is_logarithmic: bool,
    is_integer: bool,
}

impl NumberRange {
    /// Reads `{ uniform = [a, b] }` or `{ log_uniform = [a, b] }`. `is_integer` if the key's values are.
    pub(crate) fn read(table: &DeTable<'_>, is_integer: bool) -> Result<Self, String> {
        let mut entries = table.iter();
        let (Some((name, value)), None) = (entries.next(), entries.next()) else {
            return Err("must have one of uniform, log_uniform and choice".to_owned());
        };
        let name = name.get_ref().as_ref();
        let is_logarithmic = name == "log_uniform";
        let ends = match value.get_ref() {
            DeValue::Array(ends) => ends.iter().map(|end| parse_number(end.get_ref())).collect(),
            _ => None,
        };
        let ends: Vec<f64> = ends.unwrap_or_default();
        let [low, high] = ends[..] else {
            return Err(format!("needs two finite numbers, like {name} = [0.001, 0.1]"));
        };
        if low >= high {
            return Err(format!("begins at {low}, which is not below its end {high}"));
        }
        if is_logarithmic && low <= 0.0 {
            return Err(format!("begins at {low}; a logarithmic range begins above 0"));
        }
        if !(high - low).is_finite() {
            return Err("is too wide".to_owned());
        }
        if is_integer && [low, high].iter().any(|end| end.fract() != 0.0 || end.abs() > MAX_EXACT_INTEGER) {
            return Err(format!("is of integers, but its ends are {low} and {high}"));
        }
        Ok(Self { low, high, is_logarithmic, is_integer })
    }

    /// The number of values; `None` if they are not counted.
    pub(crate) fn count(&self) -> Option<usize> {
        self.is_integer.then_some((self.high - self.low + 1.0) as usize)
    }

    /// The range in which positions are uniform. Every integer has a range of its own, of length 1.
    fn scale(&self) -> (f64, f64) {
        let (low, high) = match self.is_integer {
            true => (self.low - 0.5, self.high + 0.5),
            false => (self.low, self.high),
        };
        if self.is_logarithmic { (low.ln(), high.ln()) } else { (low, high) }
    }

    /// Formats the value at a position in [0, 1).
    pub(crate) fn value_at(&self, position: f64) -> String {
        let (start, end) = self.scale();
        let scaled = start + (end - start) * position;
        let number = if self.is_logarithmic { scaled.exp() } else { scaled };
        if self.is_integer {
            return number.round().clamp(self.low, self.high).to_string();
        }
        let digits = SIGNIFICANT_DIGITS - 1;
        let rounded: f64 = format!("{number:.digits$e}").parse().unwrap_or(number);
        rounded.clamp(self.low, self.high).to_string()
    }

    /// The position of a value in [0, 1); `None` if it is not in the range.
    pub(crate) fn position_of(&self, value: &str) -> Option<f64> {
        let number: f64 = value.parse().ok()?;
        let is_inside = (self.low..=self.high).contains(&number);
        if !is_inside || (self.is_integer && number.fract() != 0.0) {
            return None;
        }
        let (start, end) = self.scale();
        let scaled = if self.is_logarithmic { number.ln() } else { number };
        Some(((scaled - start) / (end - start)).clamp(0.0, 1.0 - f64::EPSILON))
    }
}

fn parse_number(value: &DeValue<'_>) -> Option<f64> {
    let text = match value {
        DeValue::Integer(number) if number.radix() == 10 => number.as_str(),
        DeValue::Float(number) => number.as_str(),
        _ => return None,
    };
    text.replace('_', "").parse().ok().filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str, is_integer: bool) -> Result<NumberRange, String> {
        NumberRange::read(DeTable::parse(text).unwrap().get_ref(), is_integer)
    }

    #[test]
    fn logarithmic_range_spreads_evenly_over_magnitudes() {
        let rates = range("log_uniform = [1e-4, 0.1]", false).unwrap();
        assert_eq!(rates.value_at(0.0), "0.0001");
        assert_eq!(rates.value_at(0.5), "0.003162");
        assert_eq!(rates.value_at(1.0 - f64::EPSILON), "0.1");
    }

    #[test]
    fn integers_are_equally_likely_up_to_both_ends() {
        let batches = range("uniform = [3, 6]", true).unwrap();
        assert_eq!(batches.count(), Some(4));
        let values: Vec<String> = (0..8).map(|at| batches.value_at(f64::from(at) / 8.0)).collect();
        assert_eq!(values, ["3", "3", "4", "4", "5", "5", "6", "6"]);
        let widths = range("log_uniform = [1, 1000]", true).unwrap();
        assert_eq!((widths.value_at(0.0).as_str(), widths.value_at(0.999_999).as_str()), ("1", "1000"));
    }

    #[test]
    fn position_is_that_of_the_value() {
        for (text, is_integer) in [
            ("uniform = [-1, 2]", false),
            ("log_uniform = [0.5, 32]", false),
            ("uniform = [0, 100]", true),
            ("log_uniform = [1, 512]", true),
        ] {
            let range = range(text, is_integer).unwrap();
            for step in 0..50 {
                let value = range.value_at(f64::from(step) / 50.0);
                let position = range.position_of(&value).unwrap();
                assert!((0.0..1.0).contains(&position), "{text}: {value}");
                assert_eq!(range.value_at(position), value, "{text}");
            }
            assert_eq!(range.position_of("1e9"), None);
            assert_eq!(range.position_of("wide"), None);
        }
    }

    #[test]
    fn refuses_ranges_that_contain_nothing() {
        for (text, is_integer, expected) in [
            ("uniform = [2, 1]", false, "begins at 2, which is not below its end 1"),
            ("log_uniform = [0, 1]", false, "a logarithmic range begins above 0"),
            ("uniform = [1]", false, "needs two finite numbers"),
            ("uniform = [1, inf]", false, "needs two finite numbers"),
            ("uniform = [-1.7e308, 1.7e308]", false, "is too wide"),
            ("uniform = [1.5, 3]", true, "is of integers, but its ends are 1.5 and 3"),
            ("uniform = [1, 2]\nchoice = [1]", false, "must have one of"),
        ] {
            let problem = range(text, is_integer).unwrap_err();
            assert!(problem.contains(expected), "{text}: {problem}");
        }
    }
}
