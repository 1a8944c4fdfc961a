//! ReLU with trained slopes below 0, and their gradient. Memory-bound.

use super::by_channel::{constants_scratch_bytes, sum_channels, sums_scratch_bytes, with_channel_constants};
use super::elementwise::CpuContext;
use super::rows::MapGeometry;
use super::simd::{Element, multiversion};

/// The scratch bytes of [`prelu`] and [`prelu_backward`]: a slope for each channel, and the constants.
#[must_use]
pub fn prelu_scratch_bytes(geometry: &MapGeometry) -> usize {
    4 * geometry.channels + constants_scratch_bytes(geometry)
}

/// Splits the scratch into a slope for each channel, also if they share one, and the rest.
fn split_slopes<'a>(
    geometry: &MapGeometry,
    slopes: &[f32],
    scratch: &'a mut [f32],
) -> (&'a [f32], &'a mut [f32]) {
    let (all, rest) = scratch.split_at_mut(geometry.channels);
    all.iter_mut().zip(slopes.iter().cycle()).for_each(|(to, slope)| *to = *slope);
    (all, rest)
}

/// `y = x` above 0, else `slope * x`.
pub fn prelu<A: Element, B: Element>(
    cpu: &CpuContext,
    geometry: &MapGeometry,
    x: &[A],
    slopes: &[f32],
    y: &mut [B],
    scratch: &mut [f32],
) {
    let (slopes, scratch) = split_slopes(geometry, slopes, scratch);
    with_channel_constants(cpu, geometry, slopes, y, scratch, |slopes, elements, y| {
        forward(cpu.level, slopes, &x[elements], y);
    });
}

multiversion! {
    fn forward / forward_body [A: Element, B: Element] [A, B] (slopes: &[f32], x: &[A], y: &mut [B])
}

#[inline(always)]
fn forward_body<A: Element, B: Element>(slopes: &[f32], x: &[A], y: &mut [B]) {
    for (x, y) in x.chunks(slopes.len()).zip(y.chunks_mut(slopes.len())) {
        for ((x, y), slope) in x.iter().zip(y).zip(slopes) {
            let (x, below) = (x.load(), x.load() * slope);
            *y = B::store(if x > 0.0 { x } else { below });
        }
    }
}

/// `dx = dy` where `x` is above 0, else `slope * dy`. `maps` are `x` and `dy`.
pub fn prelu_backward<A: Element, B: Element>(
    cpu: &CpuContext,
    geometry: &MapGeometry,
    maps: (&[A], &[B]),
    slopes: &[f32],
    dx: &mut [B],
    scratch: &mut [f32],
) {
    let ((x, dy), (slopes, scratch)) = (maps, split_slopes(geometry, slopes, scratch));
    with_channel_constants(cpu, geometry, slopes, dx, scratch, |slopes, elements, dx| {
        backward(cpu.level, slopes, &x[elements.clone()], &dy[elements], dx);
    });
}

multiversion! {
    fn backward / backward_body [A: Element, B: Element] [A, B]
    (slopes: &[f32], x: &[A], dy: &[B], dx: &mut [B])
}

#[inline(always)]
fn backward_body<A: Element, B: Element>(slopes: &[f32], x: &[A], dy: &[B], dx: &mut [B]) {
    let period = slopes.len();
    for ((x, dy), dx) in x.chunks(period).zip(dy.chunks(period)).zip(dx.chunks_mut(period)) {
        for (((x, dy), dx), slope) in x.iter().zip(dy).zip(dx).zip(slopes) {
            *dx = B::store(dy.load() * if x.load() > 0.0 { 1.0 } else { *slope });
        }
    }
}

/// The scratch bytes of [`prelu_gradient`]: a sum for each channel after those of the threads.
#[must_use]
pub fn gradient_scratch_bytes(cpu: &CpuContext, geometry: &MapGeometry) -> usize {
    sums_scratch_bytes(cpu, geometry) + 4 * geometry.channels
}

/// `dslopes = Σ min(x, 0) dy` over samples and pixels, and over channels if they share the slope.
pub fn prelu_gradient<A: Element, B: Element>(
    cpu: &CpuContext,
    geometry: &MapGeometry,
    maps: (&[A], &[B]),
    gradient: &mut [f32],
    scratch: &mut [u8],
) {
    let (x, dy) = maps;
    let (scratch, sums) = scratch.split_at_mut(sums_scratch_bytes(cpu, geometry));
    let sums: &mut [f32] = bytemuck::cast_slice_mut(&mut sums[..4 * geometry.channels]);
    sum_channels(cpu, geometry, sums, scratch, |elements, sums| {
        add_below_zero(cpu.level, &x[elements.clone()], &dy[elements], sums);
    });
    match gradient {
        [shared] => *shared = sums.iter().map(|sum| f64::from(*sum)).sum::<f64>() as f32,
        slopes => slopes.copy_from_slice(sums),
    }
}

multiversion! {
    fn add_below_zero / add_below_zero_body [A: Element, B: Element] [A, B]
    (x: &[A], dy: &[B], sums: &mut [f32])
}

#[inline(always)]
fn add_below_zero_body<A: Element, B: Element>(x: &[A], dy: &[B], sums: &mut [f32]) {
    for (x, dy) in x.chunks(sums.len()).zip(dy.chunks(sums.len())) {
        for ((sum, x), dy) in sums.iter_mut().zip(x).zip(dy) {
            let below = if x.load() > 0.0 { 0.0 } else { x.load() };
            *sum = below.mul_add(dy.load(), *sum);
        }
    }
}
