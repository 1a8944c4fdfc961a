//! Activations: `y = f(x)`, `dx = dy f'(x)`. The loops are here, the functions in [`functions`]: branch-free,
//! so that the compiler vectorises the loops.

mod functions;
mod in_place;

pub(crate) use functions::Rectifier;
pub use in_place::activate_in_place;

use super::elementwise::CpuContext;
use super::simd::{Element, multiversion};
use functions::ClippedRelu;
use stratus_engine::ops::FusedActivation;
use stratus_graph::ops::{Activation, HardSwish, LeakyRelu, MAX_CONSTANTS, Mish, Silu};

/// The constants of an activation's function: see [`stratus_graph::ops::ActivationFunction::constants`].
pub type Constants = [f32; MAX_CONSTANTS];

/// An activation in f32. NaN is propagated.
pub trait NativeActivation: 'static {
    /// `f(x)`
    fn value(x: f32, constants: Constants) -> f32;
    /// `f'(x)`
    fn derivative(x: f32, constants: Constants) -> f32;

    /// `dy f'(x)`. Where the activation is constant, no gradient passes, not even an infinite one.
    #[inline(always)]
    fn gradient(x: f32, dy: f32, constants: Constants) -> f32 {
        let derivative = Self::derivative(x, constants);
        if derivative == 0.0 { 0.0 } else { dy * derivative }
    }
}

/// A loop over a map that includes the function of an activation.
pub(crate) trait ActivationLoop {
    /// Runs the loop with a function and its constants.
    fn run<F: NativeActivation>(self, constants: Constants);
}

/// Runs a loop with the function of an activation after a batch norm: see [`FusedActivation::after_norm`].
///
/// # Panics
/// For another activation, which no verified program has.
pub(super) fn run_activated(activation: FusedActivation, body: impl ActivationLoop) {
    match activation {
        FusedActivation::Identity => body.run::<Rectifier>(Rectifier::NONE),
        FusedActivation::Relu { ceiling: None } => body.run::<Rectifier>(Rectifier::RELU),
        FusedActivation::Relu { ceiling: Some(ceiling) } => body.run::<ClippedRelu>([ceiling, 0.0]),
        FusedActivation::Activation(activation) => match activation {
            Activation::HardSwish(_) => body.run::<HardSwish>(activation.constants()),
            Activation::LeakyRelu(_) => body.run::<LeakyRelu>(activation.constants()),
            Activation::Mish(_) => body.run::<Mish>(activation.constants()),
            Activation::Silu(_) => body.run::<Silu>(activation.constants()),
            other => unreachable!("a batch norm with {}", other.name()),
        },
    }
}

impl CpuContext {
    /// `y = f(x)`
    pub fn activation<F: NativeActivation, A: Element, B: Element>(
        &self,
        constants: Constants,
        x: &[A],
        y: &mut [B],
    ) {
        self.for_ranges(y, &|range, y| forward::<F, A, B>(self.level, constants, &x[range], y));
    }

    /// `dx = dy f'(x)`
    pub fn activation_backward<F: NativeActivation, A: Element, B: Element>(
        &self,
        constants: Constants,
        x: &[A],
        dy: &[B],
        dx: &mut [B],
    ) {
        self.for_ranges(dx, &|range, dx| {
            backward::<F, A, B>(self.level, constants, &x[range.clone()], &dy[range], dx);
        });
    }
}

multiversion! {
    fn forward / forward_body [F: NativeActivation, A: Element, B: Element] [F, A, B]
    (constants: Constants, x: &[A], y: &mut [B])
}

#[inline(always)]
fn forward_body<F: NativeActivation, A: Element, B: Element>(constants: Constants, x: &[A], y: &mut [B]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = B::store(F::value(x.load(), constants));
    }
}

multiversion! {
    fn backward / backward_body [F: NativeActivation, A: Element, B: Element] [F, A, B]
    (constants: Constants, x: &[A], dy: &[B], dx: &mut [B])
}

#[inline(always)]
fn backward_body<F: NativeActivation, A: Element, B: Element>(
    constants: Constants,
    x: &[A],
    dy: &[B],
    dx: &mut [B],
) {
    for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
        *dx = B::store(dy.load() * F::derivative(x.load(), constants));
    }
}

/// `exp(y)` for `-87 <= y <= 87`, relative error below 2e-7: `2ⁿ eʳ` with an integer n and `|r| <= ln 2 / 2`.
#[inline(always)]
pub(super) fn exponential(y: f32) -> f32 {
    // Adding 1.5 · 2²³ rounds to an integer.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts; the products of the first with exponents are exact.
    const LN2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let shifted = y.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2[1], n.mul_add(-LN2[0], y));
    // Reweighted least squares of the relative error on 400 Chebyshev nodes, with the first two terms of the
    // Taylor series: 1.1e-7 in exact arithmetic.
    let mut sum = 0.008_312_525;
    for coefficient in [0.041_890_115, 0.166_671_14, 0.499_992_3, 1.0, 1.0] {
        sum = r.mul_add(sum, coefficient);
    }
    // The integer is in the low bits of the sum that rounded it.
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    sum * power
}
