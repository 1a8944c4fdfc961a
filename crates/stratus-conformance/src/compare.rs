//! Comparison of results with those of the reference.

use crate::{Case, DTypeClass};
use stratus_engine::Precision;

/// The minimum norm that differences are relative to, in units of the tolerance, because results that should
/// be zero may be off by rounding.
const MIN_NORM_IN_TOLERANCES: f64 = 0.05;

impl Case {
    /// The tolerance of a result, relative to its norm. Inputs are bitwise equal and sums are kept in at
    /// least single precision, so only results stored as bf16 or f16 may differ by their rounding.
    #[must_use]
    pub fn tolerance(precision: Precision, class: DTypeClass) -> f64 {
        match (precision, class) {
            (Precision::F64, _) => 1e-12,
            (Precision::Bf16, DTypeClass::Compute) => 5e-3,
            (Precision::F16, DTypeClass::Compute) => 6.25e-4,
            (Precision::F32 | Precision::Bf16 | Precision::F16, _) => 1e-5,
        }
    }

    /// Compares the results of two runs of this case.
    ///
    /// # Errors
    /// The result that differs, and by how much.
    pub fn compare(
        &self,
        precision: Precision,
        expected: &[Vec<f64>],
        got: &[Vec<f64>],
    ) -> Result<(), String> {
        if expected.len() != got.len() {
            return Err(format!("case `{}`: {} results, expected {}", self.name, got.len(), expected.len()));
        }
        for ((operand, expected), got) in self.results().zip(expected).zip(got) {
            let tolerance = Self::tolerance(precision, operand.dtype_class);
            match operand.dtype_class {
                DTypeClass::Index => compare_indices(expected, got),
                DTypeClass::Bytes => compare_bytes(expected, got),
                // Each value is compared separately: a wrong count must not be hidden by larger values.
                DTypeClass::Metrics => expected
                    .iter()
                    .zip(got)
                    .try_for_each(|(&expected, &got)| compare(&[expected], &[got], tolerance)),
                _ => compare(expected, got, tolerance),
            }
            .map_err(|problem| format!("case `{}` {precision}, `{}`: {problem}", self.name, operand.name))?;
        }
        Ok(())
    }
}

/// Compares argmax indices, which may differ if values are equal up to rounding: at most one, plus one in two
/// hundred.
fn compare_indices(expected: &[f64], got: &[f64]) -> Result<(), String> {
    let different = expected.iter().zip(got).filter(|(expected, got)| expected != got).count();
    let allowed = 1 + expected.len() / 200;
    if different > allowed || expected.len() != got.len() {
        return Err(format!("{different} of {} indices differ, at most {allowed} allowed", expected.len()));
    }
    Ok(())
}

/// Compares quantised numbers, which may be rounded to the neighbouring byte if they are halfway between two:
/// at most one, plus one in a hundred.
fn compare_bytes(expected: &[f64], got: &[f64]) -> Result<(), String> {
    let pairs = || expected.iter().zip(got);
    if let Some(position) = pairs().position(|(expected, got)| (expected - got).abs() > 1.0) {
        return Err(format!("byte {position} is {}, expected {}", got[position], expected[position]));
    }
    let different = pairs().filter(|(expected, got)| expected != got).count();
    let allowed = 1 + expected.len() / 100;
    if different > allowed || expected.len() != got.len() {
        return Err(format!("{different} of {} bytes differ, at most {allowed} allowed", expected.len()));
    }
    Ok(())
}

/// Compares a tensor with the expected one: the norm of the difference relative to the expected norm, and
/// each element's difference relative to the largest expected element.
///
/// # Errors
/// The difference, or the position of a value that is not finite.
pub fn compare(expected: &[f64], got: &[f64], tolerance: f64) -> Result<(), String> {
    if expected.len() != got.len() {
        return Err(format!("{} elements, expected {}", got.len(), expected.len()));
    }
    if let Some(position) = got.iter().position(|value| !value.is_finite()) {
        return Err(format!("element {position} is {}, expected {}", got[position], expected[position]));
    }
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = norm(&mut expected.iter().zip(got).map(|(a, b)| a - b));
    let reference = norm(&mut expected.iter().copied());
    if difference > tolerance * (reference + MIN_NORM_IN_TOLERANCES) {
        return Err(format!(
            "the difference has norm {difference:.3e}, the expected tensor {reference:.3e}; the tolerance is \
             {tolerance:.0e} of it"
        ));
    }
    let largest = expected.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    for (position, (expected, got)) in expected.iter().zip(got).enumerate() {
        if (expected - got).abs() > 4.0 * tolerance * (largest + MIN_NORM_IN_TOLERANCES) {
            return Err(format!("element {position} is {got}, expected {expected}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compare_detects_differences() {
        assert_eq!(compare(&[1.0, -2.0], &[1.0, -2.0], 1e-12), Ok(()));
        assert!(compare(&[1.0, -2.0], &[1.0, -2.001], 1e-5).is_err());
        assert!(compare(&[1.0], &[f64::NAN], 1.0).unwrap_err().contains("element 0 is NaN"));
        // One wrong element among many would pass by the norm.
        let expected = vec![1.0; 10_000];
        let mut got = expected.clone();
        got[77] = 1.5;
        assert!(compare(&expected, &got, 1e-2).unwrap_err().contains("element 77"));
        assert!(compare(&[0.0], &[1e-4], 1e-5).is_err());
        assert!(compare(&[1.0, 2.0], &[1.0], 1.0).is_err());
    }
}
