//! How far results may be from those of the reference.

use crate::{Case, Class};
use stratus_engine::Precision;

/// The least norm that differences are measured against, in units of the tolerance: results that should be
/// zero may be off by rounding.
const SMALL: f64 = 0.05;

impl Case {
    /// How far a result may be from the reference, relative to its norm. Inputs are the same bits and sums
    /// are kept in at least single precision, so that only results stored as bf16 or f16 may be as far as
    /// its rounding.
    #[must_use]
    pub fn tolerance(precision: Precision, class: Class) -> f64 {
        match (precision, class) {
            (Precision::F64, _) => 1e-12,
            (Precision::Bf16, Class::Compute) => 5e-3,
            (Precision::F16, Class::Compute) => 6.25e-4,
            (Precision::F32 | Precision::Bf16 | Precision::F16, _) => 1e-5,
        }
    }

    /// Compares the results of two runs of this case.
    ///
    /// # Errors
    /// Which result differs, and by how much.
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
            let tolerance = Self::tolerance(precision, operand.class);
            match operand.class {
                Class::Index => compare_indices(expected, got),
                // Each number stands for itself: a miscounted hit must not hide behind the number of samples.
                Class::Metrics => expected
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

/// Winners may differ where values are equal but for rounding: at most one, and one in two hundred.
fn compare_indices(expected: &[f64], got: &[f64]) -> Result<(), String> {
    let different = expected.iter().zip(got).filter(|(expected, got)| expected != got).count();
    let allowed = 1 + expected.len() / 200;
    if different > allowed || expected.len() != got.len() {
        return Err(format!("{different} of {} indices differ, {allowed} may", expected.len()));
    }
    Ok(())
}

/// Compares a tensor with the expected one: the norm of the difference against the expected norm, and each
/// element's difference against the largest expected element.
///
/// # Errors
/// By how much they differ, or where something is not a number.
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
    if difference > tolerance * (reference + SMALL) {
        return Err(format!(
            "the difference has norm {difference:.3e}, the expected tensor {reference:.3e}; allowed is \
             {tolerance:.0e} of it"
        ));
    }
    let largest = expected.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    for (position, (expected, got)) in expected.iter().zip(got).enumerate() {
        if (expected - got).abs() > 4.0 * tolerance * (largest + SMALL) {
            return Err(format!("element {position} is {got}, expected {expected}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparison_finds_what_differs() {
        assert_eq!(compare(&[1.0, -2.0], &[1.0, -2.0], 1e-12), Ok(()));
        assert!(compare(&[1.0, -2.0], &[1.0, -2.001], 1e-5).is_err());
        assert!(compare(&[1.0], &[f64::NAN], 1.0).unwrap_err().contains("element 0 is NaN"));
        // One wrong element of many: the norm would let it pass.
        let expected = vec![1.0; 10_000];
        let mut got = expected.clone();
        got[77] = 1.5;
        assert!(compare(&expected, &got, 1e-2).unwrap_err().contains("element 77"));
        assert!(compare(&[0.0], &[1e-4], 1e-5).is_err());
        assert!(compare(&[1.0, 2.0], &[1.0], 1.0).is_err());
    }
}
