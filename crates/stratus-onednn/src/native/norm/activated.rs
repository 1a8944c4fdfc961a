//! Batch norm with an activation other than ReLU: the loops of [`super::loops`] with `z = scale · x + shift`,
//! `y = f(z)` and `g = dy f'(z)`.

use crate::native::activation::{ActivationLoop, Constants, NativeActivation};
use crate::native::simd::{Element, IsaLevel, multiversion, prefetch_step, steps_ahead};

/// `y = f(z)`. `steps` are the distances between periods in `x` and `y`.
pub(super) struct Affine<'a, X, Y> {
    pub level: IsaLevel,
    pub x: &'a [X],
    /// Scale and shift over a period.
    pub constants: [&'a [f32]; 2],
    pub steps: [usize; 2],
    pub y: &'a mut [Y],
}

impl<X: Element, Y: Element> ActivationLoop for Affine<'_, X, Y> {
    fn run<F: NativeActivation>(self, function: Constants) {
        affine::<F, X, Y>(self.level, function, self.x, self.constants, self.steps, self.y);
    }
}

/// Adds Σ g to `first` and Σ g (x - mean) to `second`.
pub(super) struct GradientSums<'a, X, Y> {
    pub level: IsaLevel,
    pub x: &'a [X],
    pub dy: &'a [Y],
    /// Scale, shift and mean over a period.
    pub constants: [&'a [f32]; 3],
    pub steps: [usize; 2],
    pub first: &'a mut [f32],
    pub second: &'a mut [f32],
}

impl<X: Element, Y: Element> ActivationLoop for GradientSums<'_, X, Y> {
    fn run<F: NativeActivation>(self, function: Constants) {
        let Self { level, x, dy, constants, steps, first, second } = self;
        gradient_sums::<F, X, Y>(level, function, x, dy, constants, steps, first, second);
    }
}

/// `dx = scale * g + slope * x + offset`
pub(super) struct Gradient<'a, X, Y> {
    pub level: IsaLevel,
    pub x: &'a [X],
    pub dy: &'a [Y],
    /// Scale, shift, slope and offset over a period.
    pub constants: [&'a [f32]; 4],
    pub steps: [usize; 2],
    pub dx: &'a mut [Y],
}

impl<X: Element, Y: Element> ActivationLoop for Gradient<'_, X, Y> {
    fn run<F: NativeActivation>(self, function: Constants) {
        gradient::<F, X, Y>(self.level, function, self.x, self.dy, self.constants, self.steps, self.dx);
    }
}

/// The product of a derivative and a gradient. Where an activation is constant, no gradient passes, not
/// even an infinite one.
#[inline(always)]
fn gradient_through(derivative: f32, gradient: f32) -> f32 {
    if derivative == 0.0 { 0.0 } else { derivative * gradient }
}

multiversion! {
    fn affine / affine_body [F: NativeActivation, X: Element, Y: Element] [F, X, Y] (
        function: Constants, x: &[X], constants: [&[f32]; 2], steps: [usize; 2], y: &mut [Y],
    )
}

#[inline(always)]
fn affine_body<F: NativeActivation, X: Element, Y: Element>(
    function: Constants,
    x: &[X],
    [scale, shift]: [&[f32]; 2],
    steps: [usize; 2],
    y: &mut [Y],
) {
    let (period, ahead) = (scale.len(), steps_ahead::<X>(steps[0]));
    for (x, y) in x.chunks(steps[0]).zip(y.chunks_mut(steps[1])) {
        let n = x.len().min(period);
        let (x, y, scale, shift) = (&x[..n], &mut y[..n], &scale[..n], &shift[..n]);
        // The hardware prefetcher does not follow a slice of a map.
        if steps[0] > period {
            prefetch_step(x, ahead);
        }
        for i in 0..n {
            y[i] = Y::store(F::value(x[i].load().mul_add(scale[i], shift[i]), function));
        }
    }
}

multiversion! {
    fn gradient_sums / gradient_sums_body [F: NativeActivation, X: Element, Y: Element] [F, X, Y] (
        function: Constants,
        x: &[X],
        dy: &[Y],
        constants: [&[f32]; 3],
        steps: [usize; 2],
        first: &mut [f32],
        second: &mut [f32],
    )
}

#[inline(always)]
#[allow(clippy::too_many_arguments)] // Inner loops take slices and constants.
fn gradient_sums_body<F: NativeActivation, X: Element, Y: Element>(
    function: Constants,
    x: &[X],
    dy: &[Y],
    [scale, shift, mean]: [&[f32]; 3],
    steps: [usize; 2],
    first: &mut [f32],
    second: &mut [f32],
) {
    let period = scale.len();
    let ahead = (steps_ahead::<X>(steps[0]), steps_ahead::<Y>(steps[1]));
    for (x, dy) in x.chunks(steps[0]).zip(dy.chunks(steps[1])) {
        // Equal lengths of all slices: no bounds checks in the inner loop.
        let n = x.len().min(period);
        let (x, dy, scale, shift, mean) = (&x[..n], &dy[..n], &scale[..n], &shift[..n], &mean[..n]);
        let (first, second) = (&mut first[..n], &mut second[..n]);
        prefetch_step(x, ahead.0);
        prefetch_step(dy, ahead.1);
        for i in 0..n {
            let value = x[i].load();
            let derivative = F::derivative(value.mul_add(scale[i], shift[i]), function);
            let g = gradient_through(derivative, dy[i].load());
            first[i] += g;
            // Not fused, as in `loops`.
            second[i] += g * (value - mean[i]);
        }
    }
}

multiversion! {
    fn gradient / gradient_body [F: NativeActivation, X: Element, Y: Element] [F, X, Y] (
        function: Constants,
        x: &[X],
        dy: &[Y],
        constants: [&[f32]; 4],
        steps: [usize; 2],
        dx: &mut [Y],
    )
}

#[inline(always)]
fn gradient_body<F: NativeActivation, X: Element, Y: Element>(
    function: Constants,
    x: &[X],
    dy: &[Y],
    [scale, shift, slope, offset]: [&[f32]; 4],
    [step, dy_step]: [usize; 2],
    dx: &mut [Y],
) {
    let period = scale.len();
    let ahead = (steps_ahead::<X>(step), steps_ahead::<Y>(dy_step));
    for ((x, dy), dx) in x.chunks(step).zip(dy.chunks(dy_step)).zip(dx.chunks_mut(step)) {
        let n = x.len().min(period);
        let (x, dy, dx) = (&x[..n], &dy[..n], &mut dx[..n]);
        let (scale, shift, slope, offset) = (&scale[..n], &shift[..n], &slope[..n], &offset[..n]);
        prefetch_step(x, ahead.0);
        prefetch_step(dy, ahead.1);
        for i in 0..n {
            let value = x[i].load();
            let derivative = F::derivative(value.mul_add(scale[i], shift[i]), function);
            let g = gradient_through(derivative, dy[i].load());
            dx[i] = Y::store(g.mul_add(scale[i], value.mul_add(slope[i], offset[i])));
        }
    }
}
