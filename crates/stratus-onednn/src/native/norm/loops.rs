//! The inner loops of batch norm: along pixels, with constants that repeat with a `period` of elements.
//!
//! A `step` is the distance between two periods. It equals the period, unless the map is a channel slice of a
//! larger one; then a period is a pixel's channels, and other channels are in between.
//!
//! An activation `f` is part of the loops: `z = scale · x + shift`, `y = f(z)`, `g = dy f'(z)`.

use crate::native::activation::{ActivationLoop, Constants, NativeActivation};
use crate::native::simd::{Element, IsaLevel, multiversion, prefetch_step, steps_ahead};

/// `y = f(z)`. `steps` are the distances between periods in `x` and `y`.
pub(crate) struct Affine<'a, X, Y> {
    pub level: IsaLevel,
    pub x: &'a [X],
    /// Scale and shift over a period.
    pub constants: [&'a [f32]; 2],
    pub steps: [usize; 2],
    pub y: &'a mut [Y],
}

impl<X: Element, Y: Element> ActivationLoop for Affine<'_, X, Y> {
    fn run<F: NativeActivation>(self, activation: Constants) {
        affine::<F, X, Y>(self.level, activation, self.x, self.constants, self.steps, self.y);
    }
}

/// Adds Σ g to `first` and Σ g (x - mean) to `second`.
pub(crate) struct GradientSums<'a, X, Y> {
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
    fn run<F: NativeActivation>(self, activation: Constants) {
        let Self { level, x, dy, constants, steps, first, second } = self;
        gradient_sums::<F, X, Y>(level, activation, x, dy, constants, steps, first, second);
    }
}

/// `dx = scale * g + slope * x + offset`
pub(crate) struct Gradient<'a, X, G, Y> {
    pub level: IsaLevel,
    pub x: &'a [X],
    pub dy: &'a [G],
    /// Scale, shift, slope and offset over a period.
    pub constants: [&'a [f32]; 4],
    pub steps: [usize; 2],
    pub dx: &'a mut [Y],
}

impl<X: Element, G: Element, Y: Element> ActivationLoop for Gradient<'_, X, G, Y> {
    fn run<F: NativeActivation>(self, activation: Constants) {
        gradient::<F, X, G, Y>(self.level, activation, self.x, self.dy, self.constants, self.steps, self.dx);
    }
}

multiversion! {
    pub(crate) fn moments / moments_body [E: Element] [E] (
        x: &[E], step: usize, pivot: &[f32], first: &mut [f32], second: &mut [f32],
    )
}

/// Adds Σ (x - pivot) and Σ (x - pivot)² per element of the period. The map is read in order: reading four
/// periods side by side saves loads of the sums, but slows down the hardware prefetcher by more than that.
#[inline(always)]
fn moments_body<E: Element>(x: &[E], step: usize, pivot: &[f32], first: &mut [f32], second: &mut [f32]) {
    let period = pivot.len();
    let ahead = steps_ahead::<E>(step);
    for x in x.chunks(step) {
        // Equal lengths of all slices: no bounds checks in the inner loop.
        let n = x.len().min(period);
        let (x, pivot, first, second) = (&x[..n], &pivot[..n], &mut first[..n], &mut second[..n]);
        prefetch_step(x, ahead);
        for i in 0..n {
            let a = x[i].load() - pivot[i];
            first[i] += a;
            second[i] += a * a;
        }
    }
}

multiversion! {
    fn affine / affine_body [F: NativeActivation, X: Element, Y: Element] [F, X, Y] (
        activation: Constants, x: &[X], constants: [&[f32]; 2], steps: [usize; 2], y: &mut [Y],
    )
}

#[inline(always)]
fn affine_body<F: NativeActivation, X: Element, Y: Element>(
    activation: Constants,
    x: &[X],
    [scale, shift]: [&[f32]; 2],
    steps: [usize; 2],
    y: &mut [Y],
) {
    let period = scale.len();
    let shift = &shift[..period];
    // The hardware prefetcher does not follow a slice of a map.
    let (is_slice, ahead) = (steps[0] > period, steps_ahead::<X>(steps[0]));
    for (x, y) in x.chunks(steps[0]).zip(y.chunks_mut(steps[1])) {
        if is_slice {
            prefetch_step(&x[..period], ahead);
        }
        for (((x, y), a), b) in x.iter().zip(y).zip(scale).zip(shift) {
            *y = Y::store(F::value(x.load().mul_add(*a, *b), activation));
        }
    }
}

multiversion! {
    pub(super) fn affine_add / affine_add_body [X: Element, Y: Element] [X, Y] (
        x: &[X], a: &[Y], constants: [&[f32]; 2], relu: bool, y: &mut [Y],
    )
}

#[inline(always)]
fn affine_add_body<X: Element, Y: Element>(
    x: &[X],
    a: &[Y],
    [scale, shift]: [&[f32]; 2],
    relu: bool,
    y: &mut [Y],
) {
    let period = scale.len();
    let floor = if relu { 0.0 } else { f32::NEG_INFINITY };
    for ((x, a), y) in x.chunks(period).zip(a.chunks(period)).zip(y.chunks_mut(period)) {
        let n = x.len();
        let (a, y, scale, shift) = (&a[..n], &mut y[..n], &scale[..n], &shift[..n]);
        for i in 0..n {
            let sum = x[i].load().mul_add(scale[i], shift[i]) + a[i].load();
            y[i] = Y::store(if sum <= floor { floor } else { sum });
        }
    }
}

multiversion! {
    pub(super) fn mask_and_sum / mask_and_sum_body [E: Element, const ADDS: bool] [E, ADDS] (
        maps: [&[E]; 3], mean: &[f32], dy: &mut [E], first: &mut [f32], second: &mut [f32],
    )
}

/// Adds `part` to `dy` if `ADDS`, zeroes it where `y` is not positive, and adds Σ dy and Σ dy (x - mean).
#[inline(always)]
fn mask_and_sum_body<E: Element, const ADDS: bool>(
    [x, y, part]: [&[E]; 3],
    mean: &[f32],
    dy: &mut [E],
    first: &mut [f32],
    second: &mut [f32],
) {
    let period = mean.len();
    for (number, dy) in dy.chunks_mut(period).enumerate() {
        let n = dy.len();
        let chunk = number * period..number * period + n;
        let (x, y) = (&x[chunk.clone()], &y[chunk.clone()]);
        let part = if ADDS { &part[chunk] } else { x };
        let (mean, first, second) = (&mean[..n], &mut first[..n], &mut second[..n]);
        for i in 0..n {
            let sum = if ADDS { dy[i].load() + part[i].load() } else { dy[i].load() };
            // Rounded as stored, so that all readers see the same value.
            dy[i] = E::store(if y[i].load() > 0.0 { sum } else { 0.0 });
            let g = dy[i].load();
            first[i] += g;
            second[i] += g * (x[i].load() - mean[i]);
        }
    }
}

multiversion! {
    fn gradient_sums / gradient_sums_body
    [F: NativeActivation, X: Element, Y: Element] [F, X, Y] (
        activation: Constants,
        x: &[X],
        dy: &[Y],
        constants: [&[f32]; 3],
        steps: [usize; 2],
        first: &mut [f32],
        second: &mut [f32],
    )
}

/// Adds Σ g and Σ g (x - mean).
#[inline(always)]
fn gradient_sums_body<F: NativeActivation, X: Element, Y: Element>(
    activation: Constants,
    x: &[X],
    dy: &[Y],
    [scale, shift, mean]: [&[f32]; 3],
    steps: [usize; 2],
    first: &mut [f32],
    second: &mut [f32],
) {
    let period = scale.len();
    let ahead = (steps_ahead::<X>(steps[0]), steps_ahead::<Y>(steps[1]));
    // In order, as in `moments`.
    for (x, dy) in x.chunks(steps[0]).zip(dy.chunks(steps[1])) {
        // Equal lengths of all slices: no bounds checks in the inner loop.
        let n = x.len().min(period);
        let (x, dy, scale, shift, mean) = (&x[..n], &dy[..n], &scale[..n], &shift[..n], &mean[..n]);
        let (first, second) = (&mut first[..n], &mut second[..n]);
        prefetch_step(x, ahead.0);
        prefetch_step(dy, ahead.1);
        for i in 0..n {
            let value = x[i].load();
            let g = F::gradient(value.mul_add(scale[i], shift[i]), dy[i].load(), activation);
            first[i] += g;
            // Not fused: terms of opposite signs must cancel exactly, as those of two equal gradients.
            second[i] += g * (value - mean[i]);
        }
    }
}

multiversion! {
    fn gradient / gradient_body
    [F: NativeActivation, X: Element, G: Element, Y: Element] [F, X, G, Y] (
        activation: Constants,
        x: &[X],
        dy: &[G],
        constants: [&[f32]; 4],
        steps: [usize; 2],
        dx: &mut [Y],
    )
}

#[inline(always)]
fn gradient_body<F: NativeActivation, X: Element, G: Element, Y: Element>(
    activation: Constants,
    x: &[X],
    dy: &[G],
    [scale, shift, slope, offset]: [&[f32]; 4],
    [step, dy_step]: [usize; 2],
    dx: &mut [Y],
) {
    let period = scale.len();
    let ahead = (steps_ahead::<X>(step), steps_ahead::<G>(dy_step));
    for ((x, dy), dx) in x.chunks(step).zip(dy.chunks(dy_step)).zip(dx.chunks_mut(step)) {
        // Other channels follow those of a slice.
        let n = x.len().min(period);
        let (x, dy, dx) = (&x[..n], &dy[..n], &mut dx[..n]);
        let (scale, shift, slope, offset) = (&scale[..n], &shift[..n], &slope[..n], &offset[..n]);
        prefetch_step(x, ahead.0);
        prefetch_step(dy, ahead.1);
        for i in 0..n {
            let value = x[i].load();
            let g = F::gradient(value.mul_add(scale[i], shift[i]), dy[i].load(), activation);
            dx[i] = Y::store(g.mul_add(scale[i], value.mul_add(slope[i], offset[i])));
        }
    }
}
