//! The Gaussian error linear unit.

use super::activation::ActivationFunction;
use std::f64::consts::PI;
use stratus_graph::ops::Gelu;

/// The density of the standard normal distribution.
fn density(x: f64) -> f64 {
    (-0.5 * x * x).exp() / (2.0 * PI).sqrt()
}

/// The distribution function of the standard normal distribution in full precision: 1/2 plus the density
/// times the series `x + x^3 / 3 + x^5 / (3 * 5) + ...`, whose terms have the same sign (Abramowitz, Stegun:
/// "Handbook of mathematical functions", 26.2.11).
fn distribution(x: f64) -> f64 {
    // Beyond this the tail is below the precision of f64.
    if x.abs() > 9.0 {
        return f64::from(u8::from(x > 0.0));
    }
    let (mut term, mut sum) = (x, x);
    for odd in (3..400).step_by(2) {
        term *= x * x / f64::from(odd);
        sum += term;
        if term.abs() <= f64::EPSILON * 0.01 * sum.abs() {
            break;
        }
    }
    0.5 + density(x) * sum
}

impl ActivationFunction for Gelu {
    fn value(x: f64) -> f64 {
        x * distribution(x)
    }

    fn derivative(x: f64) -> f64 {
        distribution(x) + x * density(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the tables of Abramowitz and Stegun (26.1) and, far out, of the continued fraction 26.2.14.
    #[test]
    fn distribution_matches_published_tables() {
        for (x, expected) in [
            (0.0, 0.5),
            (0.5, 0.691_462_461_274_013_1),
            (1.0, 0.841_344_746_068_542_9),
            (2.0, 0.977_249_868_051_820_8),
            (3.0, 0.998_650_101_968_369_9),
            (6.0, 1.0 - 9.865_876_450_376_98e-10),
            (12.0, 1.0),
        ] {
            assert!((distribution(x) - expected).abs() < 1e-15, "{x}: {}", distribution(x));
            assert!((distribution(-x) - (1.0 - expected)).abs() < 1e-15, "{x}");
        }
        assert!(distribution(f64::NAN).is_nan());
    }
}
