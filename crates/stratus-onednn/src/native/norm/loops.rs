//! The inner loops of batch norm: along pixels, with constants that repeat with a `period` of elements.
//!
//! A `step` is the distance between two periods. It equals the period, unless the map is a channel slice of a
//! larger one; then a period is a pixel's channels, and other channels are in between.

use crate::native::simd::{Element, multiversion, prefetch_step, steps_ahead};

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
    pub(crate) fn affine / affine_body [X: Element, Y: Element] [X, Y] (
        x: &[X], constants: [&[f32]; 2], relu: bool, steps: [usize; 2], y: &mut [Y],
    )
}

#[inline(always)]
fn affine_body<X: Element, Y: Element>(
    x: &[X],
    [scale, shift]: [&[f32]; 2],
    relu: bool,
    steps: [usize; 2],
    y: &mut [Y],
) {
    let period = scale.len();
    let shift = &shift[..period];
    // A comparison that propagates NaN, so that a diverged run is noticed.
    let floor = if relu { 0.0 } else { f32::NEG_INFINITY };
    // The hardware prefetcher does not follow a slice of a map.
    let (is_slice, ahead) = (steps[0] > period, steps_ahead::<X>(steps[0]));
    for (x, y) in x.chunks(steps[0]).zip(y.chunks_mut(steps[1])) {
        if is_slice {
            prefetch_step(&x[..period], ahead);
        }
        for (((x, y), a), b) in x.iter().zip(y).zip(scale).zip(shift) {
            let value = x.load().mul_add(*a, *b);
            *y = Y::store(if value <= floor { floor } else { value });
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
    pub(crate) fn gradient_sums / gradient_sums_body [X: Element, Y: Element] [X, Y] (
        x: &[X],
        dy: &[Y],
        constants: [&[f32]; 3],
        relu: bool,
        steps: [usize; 2],
        first: &mut [f32],
        second: &mut [f32],
    )
}

/// Adds Σ g and Σ g (x - mean), where `g` is `dy` masked by ReLU.
#[inline(always)]
fn gradient_sums_body<X: Element, Y: Element>(
    x: &[X],
    dy: &[Y],
    [scale, shift, mean]: [&[f32]; 3],
    relu: bool,
    steps: [usize; 2],
    first: &mut [f32],
    second: &mut [f32],
) {
    let period = scale.len();
    // Comparisons with NaN are false, so nothing is masked.
    let threshold = if relu { 0.0 } else { f32::NAN };
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
            let g = if value.mul_add(scale[i], shift[i]) <= threshold { 0.0 } else { dy[i].load() };
            first[i] += g;
            // Not fused: terms of opposite signs must cancel exactly, as those of two equal gradients.
            second[i] += g * (value - mean[i]);
        }
    }
}

multiversion! {
    pub(crate) fn gradient / gradient_body [X: Element, G: Element, Y: Element] [X, G, Y] (
        x: &[X], dy: &[G], constants: [&[f32]; 4], relu: bool, steps: [usize; 2], dx: &mut [Y],
    )
}

#[inline(always)]
fn gradient_body<X: Element, G: Element, Y: Element>(
    x: &[X],
    dy: &[G],
    [scale, shift, slope, offset]: [&[f32]; 4],
    relu: bool,
    steps: [usize; 2],
    dx: &mut [Y],
) {
    let period = scale.len();
    // Comparisons with NaN are false, so nothing is masked.
    let threshold = if relu { 0.0 } else { f32::NAN };
    let [step, dy_step] = steps;
    let ahead = (steps_ahead::<X>(step), steps_ahead::<G>(dy_step));
    for ((x, dy), dx) in x.chunks(step).zip(dy.chunks(dy_step)).zip(dx.chunks_mut(step)) {
        // Other channels follow those of a slice.
        let x = if step > period { &x[..period] } else { x };
        let n = x.len();
        let dy = &dy[..n];
        prefetch_step(x, ahead.0);
        prefetch_step(dy, ahead.1);
        let (dx, scale, shift) = (&mut dx[..n], &scale[..n], &shift[..n]);
        let (slope, offset) = (&slope[..n], &offset[..n]);
        for i in 0..n {
            let value = x[i].load();
            let g = if value.mul_add(scale[i], shift[i]) <= threshold { 0.0 } else { dy[i].load() };
            dx[i] = Y::store(g.mul_add(scale[i], value.mul_add(slope[i], offset[i])));
        }
    }
}
