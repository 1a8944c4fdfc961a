//! GELU: `y = x Φ(x)`, `dx = dy (Φ(x) + x φ(x))`, with the normal distribution Φ and its density φ.
//!
//! Φ is computed from its tail as `t · polynomial(t) · exp(-x²/2)` with `t = 1 / (1 + 0.3 |x|)`: relative
//! error 1.5e-6 to the end of the tail, and branch-free, so that the loops are vectorised.

use super::activation::{ActivationFunction, exp_of_negative};
use stratus_graph::ops::Gelu;

/// The variable of [`TAIL`] is `1 / (1 + TAIL_SLOPE * |x|)`.
const TAIL_SLOPE: f32 = 0.3;

/// Φ(-|x|) exp(x²/2) / t as a polynomial in t, lowest power first. Reweighted least squares on 400 Chebyshev
/// nodes for |x| up to 14: relative error 1.5e-7 in exact arithmetic over the whole tail.
const TAIL: [f32; 8] = [
    0.119_629_3,
    0.120_753_96,
    0.099_913_48,
    0.128_561_68,
    -0.053_683_73,
    0.206_353_6,
    -0.157_203_14,
    0.035_674_788,
];

/// φ(0) = 1 / √(2π).
const DENSITY_AT_ZERO: f32 = 0.398_942_3;

/// Φ(x), and φ(x) / φ(0).
#[inline(always)]
fn normal(x: f32) -> [f32; 2] {
    let bell = exp_of_negative((-0.5 * x * x).max(-87.0));
    let t = 1.0 / x.abs().mul_add(TAIL_SLOPE, 1.0);
    let mut sum = TAIL[7];
    for coefficient in [TAIL[6], TAIL[5], TAIL[4], TAIL[3], TAIL[2], TAIL[1], TAIL[0]] {
        sum = t.mul_add(sum, coefficient);
    }
    let tail = t * sum * bell;
    [if x < 0.0 { tail } else { 1.0 - tail }, bell]
}

impl ActivationFunction for Gelu {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        x * normal(x)[0]
    }

    #[inline(always)]
    fn derivative(x: f32) -> f32 {
        let [distribution, bell] = normal(x);
        (x * DENSITY_AT_ZERO).mul_add(bell, distribution)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The series of the reference backend, whose own tests compare it with tables.
    fn exact(x: f64) -> [f64; 2] {
        let bell = (-0.5 * x * x).exp();
        let (mut term, mut sum) = (x.abs(), x.abs());
        for odd in (3..400).step_by(2) {
            term *= x * x / f64::from(odd);
            sum += term;
        }
        let tail = 0.5 - bell / (2.0 * std::f64::consts::PI).sqrt() * sum;
        [if x < 0.0 { tail } else { 1.0 - tail }, bell]
    }

    #[test]
    fn the_distribution_is_accurate_to_the_end_of_its_tail() {
        for step in -4000..=4000 {
            let x = step as f32 * 1e-3;
            let [distribution, bell] = normal(x);
            let expected = exact(f64::from(x));
            for (got, expected) in [(distribution, expected[0]), (bell, expected[1])] {
                let error = (f64::from(got) - expected).abs() / expected;
                assert!(error < 1.5e-6, "{x}: {got}, expected {expected}");
            }
        }
        // Further out, where the series above loses its digits: the continued fraction of the tail
        // (Abramowitz and Stegun, 26.2.14).
        for x in [4.0_f64, 5.5, 8.0, 12.0, 13.0] {
            let fraction = (1..200).rev().fold(x, |below, k| x + f64::from(k) / below);
            let expected = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt() / fraction;
            let error = (f64::from(normal(-x as f32)[0]) - expected).abs() / expected;
            assert!(error < 1e-5, "{x}: off by {error}");
        }
    }

    #[test]
    fn nan_and_infinity_are_propagated() {
        let y = [f32::NAN, f32::INFINITY, -100.0, 100.0].map(Gelu::value);
        assert!(y[0].is_nan() && y[1] == f32::INFINITY && y[3] == 100.0);
        assert!(y[2].abs() < 1e-30, "{}", y[2]);
        let dx = [f32::NAN, -100.0, 100.0].map(Gelu::derivative);
        assert!(dx[0].is_nan() && dx[1].abs() < 1e-30 && dx[2] == 1.0, "{dx:?}");
    }
}
