//! The sigmoid, `σ(x) = 1 / (1 + exp(-x))`, and SiLU, `x σ(x)`.

use super::activation::{ActivationFunction, exp_of_negative};
use stratus_graph::ops::{Sigmoid, Silu};

/// σ(x) and its derivative, from `e = exp(-|x|)`, which cannot overflow:
///
/// ```text
/// s = 1 / (1 + e)      σ(|x|) = s,   σ(-|x|) = e s      σ'(x) = σ(x) σ(-x) = e s²
/// ```
///
/// Relative error 5e-7; 0 below -87, where f32 has hardly any precision left.
#[inline(always)]
fn sigmoid(x: f32) -> [f32; 2] {
    const MIN_EXP_ARGUMENT: f32 = -87.0;
    let y = -x.abs();
    // Comparisons in this direction propagate NaN.
    let e = exp_of_negative(if y < MIN_EXP_ARGUMENT { MIN_EXP_ARGUMENT } else { y });
    let e = if y < MIN_EXP_ARGUMENT { 0.0 } else { e };
    let s = 1.0 / (1.0 + e);
    [if x < 0.0 { e * s } else { s }, e * s * s]
}

impl ActivationFunction for Sigmoid {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        sigmoid(x)[0]
    }

    #[inline(always)]
    fn derivative(x: f32) -> f32 {
        sigmoid(x)[1]
    }
}

impl ActivationFunction for Silu {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        x * sigmoid(x)[0]
    }

    #[inline(always)]
    fn derivative(x: f32) -> f32 {
        let [value, derivative] = sigmoid(x);
        x.mul_add(derivative, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_accurate_to_the_end_of_its_tail() {
        for step in -8700..=8700 {
            let x = step as f32 * 1e-2;
            let exact = |x: f64| 1.0 / (1.0 + (-x).exp());
            let (value, other) = (exact(f64::from(x)), exact(f64::from(-x)));
            for (got, expected) in sigmoid(x).into_iter().zip([value, value * other]) {
                let error = (f64::from(got) - expected).abs() / expected;
                assert!(error < 5e-7, "{x}: {got}, expected {expected}");
            }
        }
    }

    #[test]
    fn does_not_overflow_and_propagates_nan() {
        let far = [-f32::MAX, -1e30, -90.0, 90.0, 1e30, f32::MAX];
        assert_eq!(far.map(Sigmoid::value), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        assert_eq!(far.map(Sigmoid::derivative), [0.0; 6]);
        assert_eq!(far.map(Silu::value), [0.0, 0.0, 0.0, 90.0, 1e30, f32::MAX]);
        assert_eq!(far.map(Silu::derivative), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        assert_eq!([f32::INFINITY, f32::NEG_INFINITY].map(Sigmoid::value), [1.0, 0.0]);
        assert_eq!(Silu::value(f32::INFINITY), f32::INFINITY);
        let functions =
            [Sigmoid::value, Sigmoid::derivative, Silu::value, Silu::derivative].map(|f| f(f32::NAN));
        assert!(functions.iter().all(|y| y.is_nan()), "{functions:?}");
    }
}
