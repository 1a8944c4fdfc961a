//! The piecewise-linear sigmoid, and hard swish, its product with the input.

use super::activation::ActivationFunction;
use stratus_graph::ops::{HardSigmoid, HardSwish};

/// The absolute value of the points where the pieces meet.
const BEND: f64 = 3.0;

impl ActivationFunction for HardSigmoid {
    fn value(x: f64) -> f64 {
        // `clamp` propagates NaN.
        (x + BEND).clamp(0.0, 6.0) / 6.0
    }

    /// 0 where the pieces meet, as in PyTorch.
    fn derivative(x: f64) -> f64 {
        if x.is_nan() {
            return x;
        }
        if x > -BEND && x < BEND { 1.0 / 6.0 } else { 0.0 }
    }
}

impl ActivationFunction for HardSwish {
    fn value(x: f64) -> f64 {
        x * HardSigmoid::value(x)
    }

    /// `x / 3 + 1 / 2` between the points where the pieces meet, and 0 and 1 at these points, as in PyTorch.
    fn derivative(x: f64) -> f64 {
        if x <= -BEND {
            0.0
        } else if x >= BEND {
            1.0
        } else {
            x / 3.0 + 0.5
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `torch.nn.functional.hardsigmoid` and `hardswish`, and their gradients, in f64.
    #[test]
    fn matches_pytorch() {
        for (x, sigmoid, slope, swish, swish_slope) in [
            (-4.0, 0.0, 0.0, 0.0, 0.0),
            (-3.0, 0.0, 0.0, 0.0, 0.0),
            (-1.5, 0.25, 1.0 / 6.0, -0.375, 0.0),
            (0.0, 0.5, 1.0 / 6.0, 0.0, 0.5),
            (1.5, 0.75, 1.0 / 6.0, 1.125, 1.0),
            (3.0, 1.0, 0.0, 3.0, 1.0),
            (5.0, 1.0, 0.0, 5.0, 1.0),
        ] {
            assert_eq!([HardSigmoid::value(x), HardSigmoid::derivative(x)], [sigmoid, slope], "{x}");
            assert_eq!([HardSwish::value(x), HardSwish::derivative(x)], [swish, swish_slope], "{x}");
        }
        let functions =
            [HardSigmoid::value, HardSigmoid::derivative, HardSwish::value, HardSwish::derivative];
        assert!(functions.iter().all(|f| f(f64::NAN).is_nan()));
    }
}
