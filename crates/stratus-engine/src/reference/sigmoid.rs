//! The logistic sigmoid, and SiLU, its product with the input.

use super::activation::ActivationFunction;
use stratus_graph::ops::{Sigmoid, Silu};

impl ActivationFunction for Sigmoid {
    fn value(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    /// `σ(x) (1 - σ(x))`, without cancellation.
    fn derivative(x: f64) -> f64 {
        Self::value(x) * Self::value(-x)
    }
}

impl ActivationFunction for Silu {
    fn value(x: f64) -> f64 {
        x * Sigmoid::value(x)
    }

    fn derivative(x: f64) -> f64 {
        Sigmoid::value(x) + x * Sigmoid::derivative(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Digits of 1 / (1 + e^-x) and of its multiples; the minimum of SiLU, where `x = -1 - W(1/e)` with
    /// Lambert's W, is `-W(1/e)`.
    #[test]
    fn matches_published_values() {
        let near = |got: f64, expected: f64| {
            assert!((got - expected).abs() <= 1e-15 * expected.abs().max(1e-3), "{got}, expected {expected}");
        };
        for (x, sigmoid, derivative) in [
            (0.0, 0.5, 0.25),
            (1.0, 0.731_058_578_630_004_9, 0.196_611_933_241_481_86),
            (-2.0, 0.119_202_922_022_117_55, 0.104_993_585_403_506_5),
            (800.0, 1.0, 0.0),
            (-800.0, 0.0, 0.0),
        ] {
            near(Sigmoid::value(x), sigmoid);
            near(Sigmoid::derivative(x), derivative);
            near(Silu::value(x), x * sigmoid);
            near(Silu::derivative(x), sigmoid + x * derivative);
        }
        let w = 0.278_464_542_761_073_8;
        near(Silu::value(-1.0 - w), -w);
        assert!(Silu::derivative(-1.0 - w).abs() < 1e-15);
        assert!(Sigmoid::value(f64::NAN).is_nan() && Silu::derivative(f64::NAN).is_nan());
    }
}
