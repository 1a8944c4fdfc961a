//! The functions of activations and their derivatives, in f32 and without branches. A new activation is an
//! `impl` here.

use super::{Constants, NativeActivation, exponential};
use stratus_graph::ops::{Elu, Gelu, HardSigmoid, HardSwish, LeakyRelu, Mish, Sigmoid, Silu, Softplus, Tanh};

/// The smallest argument of [`exponential`].
const MIN_EXP_ARGUMENT: f32 = -87.0;

/// `exp(-|x|)`, 0 where f32 has hardly any precision left. NaN is propagated.
#[inline(always)]
fn exp_of_negative_size(x: f32) -> f32 {
    let y = -x.abs();
    // Comparisons in this direction propagate NaN.
    let e = exponential(if y < MIN_EXP_ARGUMENT { MIN_EXP_ARGUMENT } else { y });
    if y < MIN_EXP_ARGUMENT { 0.0 } else { e }
}

impl NativeActivation for Elu {
    /// `exp(x) - 1` is computed near 0 by its Taylor series, whose seventh term is 5e-8 of the first at most.
    #[inline(always)]
    fn value(x: f32, [alpha, _]: Constants) -> f32 {
        let mut series = 1.0 / 720.0;
        for coefficient in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0] {
            series = x.mul_add(series, coefficient);
        }
        let difference = exp_of_negative_size(x) - 1.0;
        let negative = alpha * if x > -0.25 { x * series } else { difference };
        if x > 0.0 { x } else { negative }
    }

    #[inline(always)]
    fn derivative(x: f32, [alpha, _]: Constants) -> f32 {
        let negative = alpha * exp_of_negative_size(x);
        if x > 0.0 { 1.0 } else { negative }
    }
}

/// The variable of [`TAIL`] is `1 / (1 + TAIL_SLOPE * |x|)`.
const TAIL_SLOPE: f32 = 0.3;

/// Φ(-|x|) exp(x²/2) / t as a polynomial in t, lowest power first, for the normal distribution Φ. Reweighted
/// least squares on 400 Chebyshev nodes for |x| up to 14: relative error 1.5e-7 in exact arithmetic over the
/// whole tail.
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

/// The density of the normal distribution at 0, φ(0) = 1 / √(2π).
const DENSITY_AT_ZERO: f32 = 0.398_942_3;

/// Φ(x), and φ(x) / φ(0).
///
/// Φ is computed from its tail as `t · polynomial(t) · exp(-x²/2)` with `t = 1 / (1 + 0.3 |x|)`: relative
/// error 1.5e-6 to the end of the tail.
#[inline(always)]
fn normal(x: f32) -> [f32; 2] {
    let bell = exponential((-0.5 * x * x).max(MIN_EXP_ARGUMENT));
    let t = 1.0 / x.abs().mul_add(TAIL_SLOPE, 1.0);
    let mut sum = TAIL[7];
    for coefficient in [TAIL[6], TAIL[5], TAIL[4], TAIL[3], TAIL[2], TAIL[1], TAIL[0]] {
        sum = t.mul_add(sum, coefficient);
    }
    let tail = t * sum * bell;
    [if x < 0.0 { tail } else { 1.0 - tail }, bell]
}

impl NativeActivation for Gelu {
    #[inline(always)]
    fn value(x: f32, _: Constants) -> f32 {
        x * normal(x)[0]
    }

    #[inline(always)]
    fn derivative(x: f32, _: Constants) -> f32 {
        let [distribution, bell] = normal(x);
        // The bell is bounded from below, so its product with a large `x` would not be nearly 0.
        let x = if -0.5 * x * x < MIN_EXP_ARGUMENT { 0.0 } else { x };
        (x * DENSITY_AT_ZERO).mul_add(bell, distribution)
    }
}

impl NativeActivation for HardSigmoid {
    #[inline(always)]
    fn value(x: f32, [width, shift]: Constants) -> f32 {
        let y = x + shift;
        // Comparisons in this direction propagate NaN.
        let y = if y < 0.0 { 0.0 } else { y };
        (if y > width { width } else { y }) / width
    }

    #[inline(always)]
    fn derivative(x: f32, [width, shift]: Constants) -> f32 {
        let slope = if x.is_nan() { x } else { 1.0 / width };
        if x <= -shift || x >= width - shift { 0.0 } else { slope }
    }
}

/// The constants of the hard sigmoid in [`HardSwish`].
const SWISH_SIGMOID: Constants = [6.0, 3.0];

impl NativeActivation for HardSwish {
    #[inline(always)]
    fn value(x: f32, _: Constants) -> f32 {
        // -∞ · 0 counts as 0, as for any other very small number.
        let share = HardSigmoid::value(x, SWISH_SIGMOID);
        if x <= -3.0 { 0.0 } else { x * share }
    }

    #[inline(always)]
    fn derivative(x: f32, _: Constants) -> f32 {
        let between = x.mul_add(1.0 / 3.0, 0.5);
        let above = if x >= 3.0 { 1.0 } else { between };
        if x <= -3.0 { 0.0 } else { above }
    }
}

/// ReLU or nothing, for the loops that it is part of. The constants are the smallest result, and the largest
/// input that passes no gradient: NaN if all do.
#[derive(Clone, Copy, Debug)]
pub struct Rectifier;

impl Rectifier {
    /// The constants that change nothing.
    pub const NONE: Constants = [f32::NEG_INFINITY, f32::NAN];

    /// The constants of ReLU.
    pub const RELU: Constants = [0.0, 0.0];
}

impl NativeActivation for Rectifier {
    #[inline(always)]
    fn value(x: f32, [floor, _]: Constants) -> f32 {
        // A comparison that propagates NaN, so that a diverged run is noticed.
        if x <= floor { floor } else { x }
    }

    #[inline(always)]
    fn derivative(x: f32, constants: Constants) -> f32 {
        Self::gradient(x, 1.0, constants)
    }

    #[inline(always)]
    fn gradient(x: f32, dy: f32, [_, threshold]: Constants) -> f32 {
        // Comparisons with NaN are false, so nothing is masked.
        if x <= threshold { 0.0 } else { dy }
    }
}

/// ReLU with a ceiling, the first constant, for the loops that it is part of.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClippedRelu;

impl NativeActivation for ClippedRelu {
    #[inline(always)]
    fn value(x: f32, [ceiling, _]: Constants) -> f32 {
        // Comparisons in this direction propagate NaN.
        let y = if x <= 0.0 { 0.0 } else { x };
        if y >= ceiling { ceiling } else { y }
    }

    #[inline(always)]
    fn derivative(x: f32, [ceiling, _]: Constants) -> f32 {
        if x <= 0.0 || x >= ceiling { 0.0 } else { 1.0 }
    }
}

impl NativeActivation for LeakyRelu {
    #[inline(always)]
    fn value(x: f32, [alpha, _]: Constants) -> f32 {
        x * if x > 0.0 { 1.0 } else { alpha }
    }

    #[inline(always)]
    fn derivative(x: f32, [alpha, _]: Constants) -> f32 {
        let below = if x.is_nan() { x } else { alpha };
        if x > 0.0 { 1.0 } else { below }
    }
}

/// `t = tanh(ln(1 + exp(x)))` and `1 - t²`, from `e = exp(-|x|)`, which cannot overflow:
///
/// ```text
/// x >= 0    t = (1 + 2e) / (1 + 2e + 2e²)    1 - t² = (2e (1 + e))² / (1 + 2e + 2e²)²
/// x < 0     t = (e² + 2e) / (e² + 2e + 2)    1 - t² = (2 (1 + e))² / (e² + 2e + 2)²
/// ```
#[inline(always)]
fn tanh_of_softplus(x: f32, e: f32) -> [f32; 2] {
    let (above, below) = (e.mul_add(2.0, 1.0), e.mul_add(e, 2.0 * e));
    let denominators = [(2.0 * e).mul_add(e, above), below + 2.0];
    let is_negative = x < 0.0;
    let inverse = 1.0 / if is_negative { denominators[1] } else { denominators[0] };
    let root = 2.0 * (1.0 + e) * inverse * if is_negative { 1.0 } else { e };
    [inverse * if is_negative { below } else { above }, root * root]
}

impl NativeActivation for Mish {
    #[inline(always)]
    fn value(x: f32, _: Constants) -> f32 {
        x * tanh_of_softplus(x, exp_of_negative_size(x))[0]
    }

    #[inline(always)]
    fn derivative(x: f32, _: Constants) -> f32 {
        let e = exp_of_negative_size(x);
        let [tanh, slope] = tanh_of_softplus(x, e);
        let s = 1.0 / (1.0 + e);
        let sigmoid = if x < 0.0 { e * s } else { s };
        (x * sigmoid).mul_add(slope, tanh)
    }
}

/// σ(x) = 1 / (1 + e) with `e = exp(-x)`, and its derivative σ(x) σ(-x) = e σ(x)². Relative error 5e-7.
/// Results below `exp(-87)`, for which f32 has hardly any precision left, are 0.
#[inline(always)]
fn sigmoid(x: f32) -> [f32; 2] {
    // Comparisons in this direction propagate NaN.
    let bounded = if x > -MIN_EXP_ARGUMENT { -MIN_EXP_ARGUMENT } else { x };
    let bounded = if bounded < MIN_EXP_ARGUMENT { MIN_EXP_ARGUMENT } else { bounded };
    let e = exponential(-bounded);
    let s = 1.0 / (1.0 + e);
    let s = if x < MIN_EXP_ARGUMENT { 0.0 } else { s };
    [s, if x > -MIN_EXP_ARGUMENT { 0.0 } else { e * s * s }]
}

impl NativeActivation for Sigmoid {
    #[inline(always)]
    fn value(x: f32, _: Constants) -> f32 {
        sigmoid(x)[0]
    }

    #[inline(always)]
    fn derivative(x: f32, _: Constants) -> f32 {
        sigmoid(x)[1]
    }
}

impl NativeActivation for Silu {
    #[inline(always)]
    fn value(x: f32, _: Constants) -> f32 {
        x * sigmoid(x)[0]
    }

    #[inline(always)]
    fn derivative(x: f32, _: Constants) -> f32 {
        let [value, derivative] = sigmoid(x);
        x.mul_add(derivative, value)
    }
}

/// `ln(1 + e)` for `e` from 0 to 1: `2 artanh(z)` with `z = e / (2 + e)`, at most 1/3. The ninth term of the
/// series is 1e-9 of the first at most.
#[inline(always)]
fn log_of_one_plus(e: f32) -> f32 {
    let z = e / (2.0 + e);
    let square = z * z;
    let mut series = 1.0 / 15.0;
    for coefficient in [1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0] {
        series = square.mul_add(series, coefficient);
    }
    2.0 * z * series
}

impl NativeActivation for Softplus {
    #[inline(always)]
    fn value(x: f32, _: Constants) -> f32 {
        let tail = log_of_one_plus(exp_of_negative_size(x));
        // Comparisons in this direction propagate NaN.
        (if x < 0.0 { 0.0 } else { x }) + tail
    }

    #[inline(always)]
    fn derivative(x: f32, _: Constants) -> f32 {
        sigmoid(x)[0]
    }
}

impl NativeActivation for Tanh {
    /// From `e = exp(-2|x|)`, near 0 from the Taylor series, whose seventh term is 2e-7 of the first at most.
    #[inline(always)]
    fn value(x: f32, _: Constants) -> f32 {
        let e = exp_of_negative_size(2.0 * x);
        let size = (1.0 - e) / (1.0 + e);
        let square = x * x;
        let mut series = -1382.0 / 155_925.0;
        for coefficient in [62.0 / 2835.0, -17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0, 1.0] {
            series = square.mul_add(series, coefficient);
        }
        if x.abs() < 0.3 { x * series } else { size.copysign(x) }
    }

    #[inline(always)]
    fn derivative(x: f32, _: Constants) -> f32 {
        let e = exp_of_negative_size(2.0 * x);
        let s = 1.0 / (1.0 + e);
        4.0 * e * s * s
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_graph::ops::Activation;

    /// An activation on both sides: in f32 with its constants, and in f64.
    struct Both {
        name: &'static str,
        native: [Box<dyn Fn(f32) -> f32>; 2],
        exact: Activation,
    }

    macro_rules! list_activations {
        ($($name:ident $kind:literal,)*) => {
            /// Every activation, with its default attributes and with others.
            fn activations() -> Vec<Both> {
                let both = |exact: Activation| {
                    let constants = exact.constants();
                    let native: [Box<dyn Fn(f32) -> f32>; 2] = match exact {
                        $(Activation::$name(_) => [
                            Box::new(move |x| stratus_graph::ops::$name::value(x, constants)),
                            Box::new(move |x| stratus_graph::ops::$name::derivative(x, constants)),
                        ],)*
                    };
                    Both { name: exact.name(), native, exact }
                };
                Activation::examples().into_iter().map(both).collect()
            }
        };
    }

    stratus_graph::with_activations!(list_activations);

    /// Values and derivatives are as accurate as f32 allows near every `x`, to the ends of the tails.
    #[test]
    fn functions_are_accurate() {
        for Both { name, native: [value, derivative], exact } in activations() {
            for step in -16_000..=16_000 {
                let x = step as f32 * 1e-3 + 1e-4;
                let wide = f64::from(x);
                for (got, expected, scale) in [
                    (value(x), exact.value(wide), wide.abs().clamp(1e-3, 1.0)),
                    (derivative(x), exact.derivative(wide), 1.0),
                ] {
                    let error = (f64::from(got) - expected).abs();
                    let allowed = 2e-6 * expected.abs() + 5e-7 * scale;
                    assert!(error < allowed, "{name} at {x}: {got}, expected {expected}");
                }
            }
        }
    }

    #[test]
    fn functions_do_not_overflow_and_propagate_nan() {
        for Both { name, native: [value, derivative], exact } in activations() {
            for x in [-200.0, -90.0, 90.0, 200.0] {
                let expected = [exact.value(f64::from(x)), exact.derivative(f64::from(x))];
                for (got, expected) in [value(x), derivative(x)].into_iter().zip(expected) {
                    let error = (f64::from(got) - expected).abs();
                    assert!(error <= 1e-6 * expected.abs() + 1e-30, "{name} at {x}: {got}, {expected}");
                }
            }
            assert!(value(f32::NAN).is_nan() && derivative(f32::NAN).is_nan(), "{name}");
            let far = value(f32::INFINITY);
            assert_eq!(f64::from(far), exact.value(f64::INFINITY), "{name}");
        }
        let (none, sigmoid) = ([0.0; 2], SWISH_SIGMOID);
        let far = [-f32::MAX, -1e30, -90.0, 90.0, 1e30, f32::MAX];
        assert_eq!(far.map(|x| HardSigmoid::value(x, sigmoid)), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        assert_eq!(far.map(|x| HardSwish::value(x, none)), [0.0, 0.0, 0.0, 90.0, 1e30, f32::MAX]);
        assert_eq!(far.map(|x| Sigmoid::value(x, none)), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        assert_eq!(far.map(|x| Sigmoid::derivative(x, none)), [0.0; 6]);
        for value in [Silu::value, Mish::value] {
            assert_eq!(far.map(|x| value(x, none)), [0.0, 0.0, 0.0, 90.0, 1e30, f32::MAX]);
        }
        for derivative in [Silu::derivative, Mish::derivative] {
            assert_eq!(far.map(|x| derivative(x, none)), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        }
        assert_eq!(HardSwish::value(f32::NEG_INFINITY, none), 0.0);
        assert_eq!(Sigmoid::value(f32::NEG_INFINITY, none), 0.0);
        let far = [-f32::MAX, -1e30, 100.0, 1e30, f32::MAX];
        assert_eq!(far.map(|x| Gelu::value(x, none)), [0.0, 0.0, 100.0, 1e30, f32::MAX]);
        assert_eq!(far.map(|x| Gelu::derivative(x, none)), [0.0, 0.0, 1.0, 1.0, 1.0]);
        assert_eq!([f32::NEG_INFINITY, f32::INFINITY].map(|x| Gelu::derivative(x, none)), [0.0, 1.0]);
    }

    /// The series of the reference backend, whose own tests compare it with tables.
    fn exact_normal(x: f64) -> [f64; 2] {
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
    fn the_normal_distribution_is_accurate_to_the_end_of_its_tail() {
        for step in -4000..=4000 {
            let x = step as f32 * 1e-3;
            let [distribution, bell] = normal(x);
            let expected = exact_normal(f64::from(x));
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
    fn the_sigmoid_is_accurate_to_the_end_of_its_tail() {
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
    fn pieces_meet_at_their_boundaries() {
        let [sigmoid, none] = [SWISH_SIGMOID, [0.0; 2]];
        let near =
            |got: f32, expected: f64| assert!((f64::from(got) - expected).abs() < 3e-7, "{got} {expected}");
        for step in -600..=600 {
            let x = step as f32 * 1e-2;
            let share = ((f64::from(x) + 3.0) / 6.0).clamp(0.0, 1.0);
            near(HardSigmoid::value(x, sigmoid), share);
            near(HardSwish::value(x, none), f64::from(x) * share);
        }
        let places = [-4.0, -3.0, 0.0, 3.0, 4.0];
        let slopes = places.map(|x| HardSigmoid::derivative(x, sigmoid));
        assert_eq!(slopes, [0.0, 0.0, 1.0 / 6.0, 0.0, 0.0]);
        assert_eq!(places.map(|x| HardSwish::derivative(x, none)), [0.0, 0.0, 0.5, 1.0, 1.0]);
        assert_eq!(places.map(|x| HardSigmoid::value(x, sigmoid)), [0.0, 0.0, 0.5, 1.0, 1.0]);
    }
}
