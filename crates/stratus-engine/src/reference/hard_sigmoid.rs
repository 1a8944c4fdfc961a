//! The sigmoid in three straight pieces, and hard swish, its product with the input.

use super::activation::ActivationFunction;
use stratus_graph::ops::{HardSigmoid, HardSwish};

/// Where the pieces meet.
const BEND: f64 = 3.0;

impl ActivationFunction for HardSigmoid {
    fn value(x: f64) -> f64 {
        // `clamp` lets NaN pass.
        (x + BEND).clamp(0.0, 6.0) / 6.0
    }

    /// As PyTorch has it, 0 where the pieces meet.
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

    /// `x / 3 + 1 / 2` between the places where the pieces meet; there as PyTorch has it, 0 and 1.
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
    fn values_are_those_of_pytorch() {
        for (x, sigmoid, slope, swish, of_swish) in [
            (-4.0, 0.0, 0.0, 0.0, 0.0),
            (-3.0, 0.0, 0.0, 0.0, 0.0),
            (-1.5, 0.25, 1.0 / 6.0, -0.375, 0.0),
            (0.0, 0.5, 1.0 / 6.0, 0.0, 0.5),
            (1.5, 0.75, 1.0 / 6.0, 1.125, 1.0),
            (3.0, 1.0, 0.0, 3.0, 1.0),
            (5.0, 1.0, 0.0, 5.0, 1.0),
        ] {
            assert_eq!([HardSigmoid::value(x), HardSigmoid::derivative(x)], [sigmoid, slope], "{x}");
            assert_eq!([HardSwish::value(x), HardSwish::derivative(x)], [swish, of_swish], "{x}");
        }
        let functions =
            [HardSigmoid::value, HardSigmoid::derivative, HardSwish::value, HardSwish::derivative];
        assert!(functions.iter().all(|f| f(f64::NAN).is_nan()));
    }
}
