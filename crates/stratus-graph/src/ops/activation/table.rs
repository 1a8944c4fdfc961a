//! The table of activations. A new one is a line in [`with_activations!`](crate::with_activations), its type
//! with its attributes, and its function with its derivative, all in this file. The CPU backend then does not
//! compile without its function, and the tests of the GPU backend fail.

use super::{ActivationAttributes, ActivationFunction, ActivationSpec, OnnxOperator};
use crate::ShapeError;
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// Calls a macro with the type and the name of every activation, sorted by name. The graph, the kernels'
/// names, and the kernels of each backend are generated from it.
#[macro_export]
macro_rules! with_activations {
    ($callback:ident) => {
        $callback! {
            Elu "elu",
            Gelu "gelu",
            HardSigmoid "hard_sigmoid",
            HardSwish "hard_swish",
            LeakyRelu "leaky_relu",
            Mish "mish",
            Sigmoid "sigmoid",
            Silu "silu",
            Softplus "softplus",
            Tanh "tanh",
        }
    };
}

/// Defines the type of an activation by its documentation and its attributes with their defaults.
macro_rules! activation {
    ($(#[$meta:meta])* $name:ident) => {
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        $(#[$meta])*
        pub struct $name;

        impl ActivationAttributes for $name {
            const NAMES: &'static [&'static str] = &[];

            fn values(&self) -> Vec<f32> {
                Vec::new()
            }

            fn from_values(_values: &[f32]) -> Self {
                Self
            }
        }
    };
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $attribute:ident = $default:expr,)+ }) => {
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        $(#[$meta])*
        pub struct $name {
            $($(#[$doc])* pub $attribute: f32,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($attribute: $default,)+ }
            }
        }

        impl ActivationAttributes for $name {
            const NAMES: &'static [&'static str] = &[$(stringify!($attribute)),+];

            fn values(&self) -> Vec<f32> {
                vec![$(self.$attribute),+]
            }

            fn from_values(values: &[f32]) -> Self {
                let (mut values, default) = (values.iter().copied(), Self::default());
                Self { $($attribute: values.next().unwrap_or(default.$attribute),)+ }
            }
        }
    };
}

activation! {
    /// The exponential linear unit (Clevert, Unterthiner, Hochreiter: "Fast and accurate deep network
    /// learning by exponential linear units", 2015).
    Elu {
        /// The negated limit of `y` for `x → -∞`.
        alpha = 1.0,
    }
}

impl ActivationFunction for Elu {
    const SPEC: ActivationSpec = ActivationSpec {
        formula: "`x` above 0, else `alpha (exp(x) - 1)`",
        onnx: Some(OnnxOperator { name: "Elu", since: 6, defaults: &[1.0] }),
        ..ActivationSpec::DEFAULT
    };

    fn value(&self, x: f64) -> f64 {
        if x > 0.0 { x } else { f64::from(self.alpha) * x.exp_m1() }
    }

    fn derivative(&self, x: f64) -> f64 {
        if x > 0.0 { 1.0 } else { f64::from(self.alpha) * x.exp() }
    }
}

activation! {
    /// The Gaussian error linear unit (Hendrycks, Gimpel: "Gaussian error linear units", 2016), exact, as by
    /// default in PyTorch: `y = x * P(z <= x)` for `z` of the standard normal distribution.
    Gelu
}

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
    const SPEC: ActivationSpec = ActivationSpec {
        formula: "exact, without the tanh approximation",
        onnx: Some(OnnxOperator { name: "Gelu", since: 20, defaults: &[] }),
        ..ActivationSpec::DEFAULT
    };

    fn value(&self, x: f64) -> f64 {
        x * distribution(x)
    }

    fn derivative(&self, x: f64) -> f64 {
        distribution(x) + x * density(x)
    }
}

activation! {
    /// A piecewise-linear sigmoid, `y = min(max(alpha x + beta, 0), 1)`; by default as in PyTorch and
    /// MobileNetV3 (Howard et al.: "Searching for MobileNetV3", 2019), `min(max(x + 3, 0), 6) / 6`.
    #[serde(from = "Option<StoredHardSigmoid>", into = "Option<StoredHardSigmoid>")]
    HardSigmoid {
        /// The slope of the middle piece, more than 0. The float next to 1/6 counts as 1/6.
        alpha = 1.0 / 6.0,
        /// The value at 0.
        beta = 0.5,
    }
}

/// The attributes of a [`HardSigmoid`] in a plan. The default is stored as nothing, like a hard sigmoid in
/// plans that are older than its attributes.
#[derive(Serialize, Deserialize)]
struct StoredHardSigmoid {
    alpha: f32,
    beta: f32,
}

impl From<Option<StoredHardSigmoid>> for HardSigmoid {
    fn from(stored: Option<StoredHardSigmoid>) -> Self {
        stored.map_or_else(Self::default, |StoredHardSigmoid { alpha, beta }| Self { alpha, beta })
    }
}

impl From<HardSigmoid> for Option<StoredHardSigmoid> {
    fn from(sigmoid: HardSigmoid) -> Self {
        let HardSigmoid { alpha, beta } = sigmoid;
        (sigmoid != HardSigmoid::default()).then_some(StoredHardSigmoid { alpha, beta })
    }
}

impl HardSigmoid {
    /// The width of the middle piece and the negated `x` at which it begins: 6 and 3 by default.
    fn width_and_shift(&self) -> [f64; 2] {
        let is_sixth = self.alpha == Self::default().alpha;
        let width = if is_sixth { 6.0 } else { f64::from(self.alpha).recip() };
        [width, f64::from(self.beta) * width]
    }
}

impl ActivationFunction for HardSigmoid {
    const SPEC: ActivationSpec = ActivationSpec {
        formula: "`min(max(alpha x + beta, 0), 1)`",
        is_never_negative: true,
        has_zero_gradient_interval: true,
        onnx: Some(OnnxOperator { name: "HardSigmoid", since: 6, defaults: &[0.2, 0.5] }),
    };

    fn value(&self, x: f64) -> f64 {
        let [width, shift] = self.width_and_shift();
        // `clamp` propagates NaN.
        (x + shift).clamp(0.0, width) / width
    }

    /// 0 where the pieces meet, as in PyTorch.
    fn derivative(&self, x: f64) -> f64 {
        if x.is_nan() {
            return x;
        }
        let [width, shift] = self.width_and_shift();
        if x > -shift && x < width - shift { 1.0 / width } else { 0.0 }
    }

    /// The width of the middle piece and the negated `x` at which it begins. The defaults are exact in f32.
    fn constants(&self) -> [f32; 2] {
        self.width_and_shift().map(|constant| constant as f32)
    }

    fn check(&self) -> Result<(), ShapeError> {
        // The width must be a number in single precision.
        if self.alpha >= f32::MIN_POSITIVE {
            return Ok(());
        }
        Err(ShapeError::new(format!("`alpha` must be > 0, got {}", self.alpha)))
    }
}

activation! {
    /// SiLU with the piecewise-linear sigmoid (Howard et al.: "Searching for MobileNetV3", 2019),
    /// `y = x min(max(x + 3, 0), 6) / 6`.
    HardSwish
}

impl ActivationFunction for HardSwish {
    const SPEC: ActivationSpec = ActivationSpec {
        formula: "`x` times its hard sigmoid",
        has_zero_gradient_interval: true,
        onnx: Some(OnnxOperator { name: "HardSwish", since: 14, defaults: &[] }),
        ..ActivationSpec::DEFAULT
    };

    fn value(&self, x: f64) -> f64 {
        x * HardSigmoid::default().value(x)
    }

    /// `x / 3 + 1 / 2` between the points where the pieces meet, and 0 and 1 at these points, as in PyTorch.
    fn derivative(&self, x: f64) -> f64 {
        if x <= -3.0 {
            0.0
        } else if x >= 3.0 {
            1.0
        } else {
            x / 3.0 + 0.5
        }
    }
}

activation! {
    /// ReLU with a slope below 0 (Maas, Hannun, Ng: "Rectifier nonlinearities improve neural network acoustic
    /// models", 2013).
    LeakyRelu {
        /// The slope below 0.
        alpha = 0.01,
    }
}

impl ActivationFunction for LeakyRelu {
    const SPEC: ActivationSpec = ActivationSpec {
        formula: "`x` above 0, else `alpha x`",
        onnx: Some(OnnxOperator { name: "LeakyRelu", since: 6, defaults: &[0.01] }),
        ..ActivationSpec::DEFAULT
    };

    fn value(&self, x: f64) -> f64 {
        x * self.derivative(x)
    }

    fn derivative(&self, x: f64) -> f64 {
        if x.is_nan() {
            return x;
        }
        if x > 0.0 { 1.0 } else { f64::from(self.alpha) }
    }
}

activation! {
    /// `y = x tanh(ln(1 + exp(x)))` (Misra: "Mish: a self regularized non-monotonic activation function",
    /// 2019).
    Mish
}

impl ActivationFunction for Mish {
    const SPEC: ActivationSpec = ActivationSpec {
        formula: "`x tanh(ln(1 + exp(x)))`",
        onnx: Some(OnnxOperator { name: "Mish", since: 18, defaults: &[] }),
        ..ActivationSpec::DEFAULT
    };

    fn value(&self, x: f64) -> f64 {
        x * softplus(x).tanh()
    }

    /// `t + x σ(x) (1 - t²)` with `t = tanh(ln(1 + exp(x)))`; `1 - t² = 1 / cosh²`, without cancellation.
    fn derivative(&self, x: f64) -> f64 {
        let softplus = softplus(x);
        softplus.tanh() + x * Sigmoid.value(x) * softplus.cosh().powi(-2)
    }
}

/// `ln(1 + exp(x))`, without overflow.
fn softplus(x: f64) -> f64 {
    let tail = (-x.abs()).exp().ln_1p();
    if x > 0.0 { x + tail } else { tail }
}

activation! {
    /// The logistic sigmoid, `y = 1 / (1 + exp(-x))`.
    Sigmoid
}

impl ActivationFunction for Sigmoid {
    const SPEC: ActivationSpec = ActivationSpec {
        is_never_negative: true,
        onnx: Some(OnnxOperator { name: "Sigmoid", since: 6, defaults: &[] }),
        ..ActivationSpec::DEFAULT
    };

    fn value(&self, x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    /// `σ(x) (1 - σ(x))`, without cancellation.
    fn derivative(&self, x: f64) -> f64 {
        self.value(x) * self.value(-x)
    }
}

activation! {
    /// The sigmoid-weighted linear unit (Elfwing, Uchibe, Doya: "Sigmoid-weighted linear units for neural
    /// network function approximation in reinforcement learning", 2017), also called swish:
    /// `y = x / (1 + exp(-x))`.
    Silu
}

impl ActivationFunction for Silu {
    const SPEC: ActivationSpec =
        ActivationSpec { formula: "`x` times its sigmoid", ..ActivationSpec::DEFAULT };

    fn value(&self, x: f64) -> f64 {
        x * Sigmoid.value(x)
    }

    fn derivative(&self, x: f64) -> f64 {
        Sigmoid.value(x) + x * Sigmoid.derivative(x)
    }
}

activation! {
    /// `y = ln(1 + exp(x))` (Dugas et al.: "Incorporating second-order functional knowledge for better option
    /// pricing", 2001).
    Softplus
}

impl ActivationFunction for Softplus {
    const SPEC: ActivationSpec = ActivationSpec {
        formula: "`ln(1 + exp(x))`",
        is_never_negative: true,
        onnx: Some(OnnxOperator { name: "Softplus", since: 1, defaults: &[] }),
        ..ActivationSpec::DEFAULT
    };

    fn value(&self, x: f64) -> f64 {
        softplus(x)
    }

    fn derivative(&self, x: f64) -> f64 {
        Sigmoid.value(x)
    }
}

activation! {
    /// The hyperbolic tangent.
    Tanh
}

impl ActivationFunction for Tanh {
    const SPEC: ActivationSpec = ActivationSpec {
        onnx: Some(OnnxOperator { name: "Tanh", since: 6, defaults: &[] }),
        ..ActivationSpec::DEFAULT
    };

    fn value(&self, x: f64) -> f64 {
        x.tanh()
    }

    /// `1 / cosh²`, without cancellation.
    fn derivative(&self, x: f64) -> f64 {
        x.cosh().powi(-2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Digits of tanh, 1 - tanh², ln(1 + e^x) and the logistic function.
    #[test]
    fn tanh_and_softplus_match_published_values() {
        for (x, tanh, slope, softplus, sigmoid) in [
            (0.0, 0.0, 1.0, std::f64::consts::LN_2, 0.5),
            (
                1.0,
                0.761_594_155_955_764_9,
                0.419_974_341_614_026_1,
                1.313_261_687_518_222_8,
                0.731_058_578_630_004_9,
            ),
            (
                -1.0,
                -0.761_594_155_955_764_9,
                0.419_974_341_614_026_1,
                0.313_261_687_518_222_8,
                0.268_941_421_369_995_1,
            ),
            (800.0, 1.0, 0.0, 800.0, 1.0),
            (-800.0, -1.0, 0.0, 0.0, 0.0),
        ] {
            near(Tanh.value(x), tanh);
            near(Tanh.derivative(x), slope);
            near(Softplus.value(x), softplus);
            near(Softplus.derivative(x), sigmoid);
        }
    }

    /// Values of the tables of Abramowitz and Stegun (26.1) and, far out, of the continued fraction 26.2.14.
    #[test]
    fn the_normal_distribution_matches_published_tables() {
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

    /// `torch.nn.functional.hardsigmoid` and `hardswish`, and their gradients, in f64.
    #[test]
    fn piecewise_linear_activations_match_pytorch() {
        let sigmoid = HardSigmoid::default();
        for (x, y, slope, swish, swish_slope) in [
            (-4.0, 0.0, 0.0, 0.0, 0.0),
            (-3.0, 0.0, 0.0, 0.0, 0.0),
            (-1.5, 0.25, 1.0 / 6.0, -0.375, 0.0),
            (0.0, 0.5, 1.0 / 6.0, 0.0, 0.5),
            (1.5, 0.75, 1.0 / 6.0, 1.125, 1.0),
            (3.0, 1.0, 0.0, 3.0, 1.0),
            (5.0, 1.0, 0.0, 5.0, 1.0),
        ] {
            assert_eq!([sigmoid.value(x), sigmoid.derivative(x)], [y, slope], "{x}");
            assert_eq!([HardSwish.value(x), HardSwish.derivative(x)], [swish, swish_slope], "{x}");
        }
        // Exact in binary: slope 1/4, from 0 at -1 to 1 at 3.
        let other = HardSigmoid { alpha: 0.25, beta: 0.25 };
        let places = [-2.0, -1.0, 0.0, 2.0, 3.0];
        assert_eq!(places.map(|x| other.value(x)), [0.0, 0.0, 0.25, 0.75, 1.0]);
        assert_eq!(places.map(|x| other.derivative(x)), [0.0, 0.0, 0.25, 0.25, 0.0]);
    }

    /// Digits of 1 / (1 + e^-x) and of its multiples; the minimum of SiLU, where `x = -1 - W(1/e)` with
    /// Lambert's W, is `-W(1/e)`.
    #[test]
    fn sigmoid_and_silu_match_published_values() {
        for (x, sigmoid, derivative) in [
            (0.0, 0.5, 0.25),
            (1.0, 0.731_058_578_630_004_9, 0.196_611_933_241_481_86),
            (-2.0, 0.119_202_922_022_117_55, 0.104_993_585_403_506_5),
            (800.0, 1.0, 0.0),
            (-800.0, 0.0, 0.0),
        ] {
            near(Sigmoid.value(x), sigmoid);
            near(Sigmoid.derivative(x), derivative);
            near(Silu.value(x), x * sigmoid);
            near(Silu.derivative(x), sigmoid + x * derivative);
        }
        let w = 0.278_464_542_761_073_8;
        near(Silu.value(-1.0 - w), -w);
        assert!(Silu.derivative(-1.0 - w).abs() < 1e-15);
    }

    fn near(got: f64, expected: f64) {
        assert!((got - expected).abs() <= 1e-15 * expected.abs().max(1e-3), "{got}, expected {expected}");
    }
}
