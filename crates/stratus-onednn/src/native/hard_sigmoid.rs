//! The piecewise linear sigmoid, `min(max(x + 3, 0), 6) / 6`, and hard swish, its product with `x`.

use super::activation::ActivationFunction;
use stratus_graph::ops::{HardSigmoid, HardSwish};

impl ActivationFunction for HardSigmoid {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        let y = x + 3.0;
        // Comparisons in this direction propagate NaN.
        let y = if y < 0.0 { 0.0 } else { y };
        (if y > 6.0 { 6.0 } else { y }) / 6.0
    }

    #[inline(always)]
    fn derivative(x: f32) -> f32 {
        let slope = if x.is_nan() { x } else { 1.0 / 6.0 };
        if x <= -3.0 || x >= 3.0 { 0.0 } else { slope }
    }
}

impl ActivationFunction for HardSwish {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        // -∞ · 0 counts as 0, as for any other very small number.
        let share = HardSigmoid::value(x);
        if x <= -3.0 { 0.0 } else { x * share }
    }

    #[inline(always)]
    fn derivative(x: f32) -> f32 {
        let between = x.mul_add(1.0 / 3.0, 0.5);
        let above = if x >= 3.0 { 1.0 } else { between };
        if x <= -3.0 { 0.0 } else { above }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_meet_at_their_boundaries() {
        let near =
            |got: f32, expected: f64| assert!((f64::from(got) - expected).abs() < 3e-7, "{got} {expected}");
        for step in -600..=600 {
            let x = step as f32 * 1e-2;
            let share = ((f64::from(x) + 3.0) / 6.0).clamp(0.0, 1.0);
            near(HardSigmoid::value(x), share);
            near(HardSwish::value(x), f64::from(x) * share);
        }
        let places = [-4.0, -3.0, 0.0, 3.0, 4.0];
        assert_eq!(places.map(HardSigmoid::derivative), [0.0, 0.0, 1.0 / 6.0, 0.0, 0.0]);
        assert_eq!(places.map(HardSwish::derivative), [0.0, 0.0, 0.5, 1.0, 1.0]);
    }

    #[test]
    fn does_not_overflow_and_propagates_nan() {
        let far = [-f32::MAX, -1e30, 1e30, f32::MAX];
        assert_eq!(far.map(HardSigmoid::value), [0.0, 0.0, 1.0, 1.0]);
        assert_eq!(far.map(HardSwish::value), [0.0, 0.0, 1e30, f32::MAX]);
        assert_eq!([f32::NEG_INFINITY, f32::INFINITY].map(HardSwish::value), [0.0, f32::INFINITY]);
        let functions =
            [HardSigmoid::value, HardSigmoid::derivative, HardSwish::value, HardSwish::derivative]
                .map(|f| f(f32::NAN));
        assert!(functions.iter().all(|y| y.is_nan()), "{functions:?}");
    }
}
