//! Multiplies the channels of an image by factors; the gradient of the factors, and that of a map that is
//! both scaled and averaged.
//!
//! Factors are `[N, C, 1, 1]`, stored as `[N][C]` in either layout of maps, so that those of an image are
//! contiguous. Memory-bound. Threads divide pixel rows, or planes when summing pixels: one thread sums a
//! plane, in the order of its pixels, whatever the number of threads.

use super::elementwise::CpuContext;
use super::rows::MapGeometry;
use super::simd::{Element, multiversion};
use super::threads::{split, split_lengths, zip_parts};
use std::ops::Range;

/// The scratch bytes: two buffers of a period for each thread.
#[must_use]
pub fn scratch_bytes(cpu: &CpuContext, map: &MapGeometry) -> usize {
    4 * 2 * cpu.team.threads() * map.period()
}

/// The range of a plane's channels among the factors; for the last plane of an image, including padding.
fn channel_range(map: &MapGeometry, each: &MapGeometry, plane: usize) -> Range<usize> {
    let (image, group) = (plane / map.groups, plane % map.groups);
    let (begin, first) = (group * map.pixel_channels, image * each.padded());
    let end = if group + 1 == map.groups { each.padded() } else { begin + map.pixel_channels };
    first + begin..first + end
}

/// Writes the numbers of a plane's channels, times `factor`, over a period. Those of padded channels are 0.
fn repeat_over_period<E: Element>(
    [map, each]: [&MapGeometry; 2],
    plane: usize,
    numbers: &[E],
    factor: f32,
    repeated: &mut [f32],
) {
    for pixel in repeated.chunks_exact_mut(map.pixel_channels) {
        pixel.fill(0.0);
        for (to, from) in pixel.iter_mut().zip(&numbers[channel_range(map, each, plane)]) {
            *to = factor * from.load();
        }
    }
}

/// `y = x s`; `map` is the geometry of `x` and `y`, `each` that of `s`.
pub fn channel_scale<E: Element>(
    cpu: &CpuContext,
    geometries: [&MapGeometry; 2],
    x: &[E],
    factors: &[E],
    y: &mut [E],
    scratch: &mut [f32],
) {
    for_planes(cpu, geometries[0], y, scratch, &|plane, range, y, repeated, _| {
        repeat_over_period(geometries, plane, factors, 1.0, repeated);
        multiply(cpu.level, repeated, &x[range], y);
    });
}

/// `dx = dy s + dmean / pixels`: see [`stratus_engine::ops::ChannelScaleMeanBackward`].
pub fn channel_scale_mean_backward<E: Element>(
    cpu: &CpuContext,
    geometries: [&MapGeometry; 2],
    dy: &[E],
    [factors, dmean]: [&[E]; 2],
    dx: &mut [E],
    scratch: &mut [f32],
) {
    let [map, _] = geometries;
    let share = 1.0 / (map.height * map.row_pixels) as f32;
    for_planes(cpu, map, dx, scratch, &|plane, range, dx, repeated, terms| {
        repeat_over_period(geometries, plane, factors, 1.0, repeated);
        repeat_over_period(geometries, plane, dmean, share, terms);
        multiply_add(cpu.level, repeated, terms, &dy[range], dx);
    });
}

/// Called for the rows of a plane: the plane, the range of the map, its part of the result, and two buffers
/// of a period.
type PlaneBody<'a, E> = dyn Fn(usize, Range<usize>, &mut [E], &mut [f32], &mut [f32]) + Sync + 'a;

/// Calls `body` for the rows of each plane of a map, on all threads.
fn for_planes<E: Element>(
    cpu: &CpuContext,
    map: &MapGeometry,
    y: &mut [E],
    scratch: &mut [f32],
    body: &PlaneBody<'_, E>,
) {
    let (threads, period, row) = (cpu.team.threads(), map.period(), map.row_elements());
    let rows = |thread| map.thread_rows(threads, thread);
    let mut parts = zip_parts(
        split_lengths(y, (0..threads).map(|thread| rows(thread).len() * row)),
        split_lengths(scratch, (0..threads).map(|_| 2 * period)),
    );
    cpu.team.run_parts(&mut parts[..threads], &|thread, (y, buffers)| {
        let (first, end) = (rows(thread).start, rows(thread).end);
        let (repeated, terms) = buffers.split_at_mut(period);
        let mut next = first;
        while next < end {
            let plane = next / map.height;
            let until = ((plane + 1) * map.height).min(end);
            let y = &mut y[(next - first) * row..(until - first) * row];
            body(plane, next * row..until * row, y, repeated, terms);
            next = until;
        }
    });
}

multiversion! {
    fn multiply_add / multiply_add_body [E: Element] [E] (
        factors: &[f32], terms: &[f32], x: &[E], y: &mut [E],
    )
}

#[inline(always)]
fn multiply_add_body<E: Element>(factors: &[f32], terms: &[f32], x: &[E], y: &mut [E]) {
    for (x, y) in x.chunks(factors.len()).zip(y.chunks_mut(factors.len())) {
        for (((x, y), factor), term) in x.iter().zip(y).zip(factors).zip(terms) {
            *y = E::store(x.load().mul_add(*factor, *term));
        }
    }
}

multiversion! {
    pub(super) fn multiply / multiply_body [E: Element] [E] (factors: &[f32], x: &[E], y: &mut [E])
}

#[inline(always)]
fn multiply_body<E: Element>(factors: &[f32], x: &[E], y: &mut [E]) {
    for (x, y) in x.chunks(factors.len()).zip(y.chunks_mut(factors.len())) {
        for ((x, y), factor) in x.iter().zip(y).zip(factors) {
            *y = E::store(x.load() * factor);
        }
    }
}

/// `ds = Σ x dy` over the pixels of each channel of each image.
pub fn channel_scale_gradient<E: Element>(
    cpu: &CpuContext,
    [map, each]: [&MapGeometry; 2],
    x: &[E],
    dy: &[E],
    gradient: &mut [E],
    scratch: &mut [f32],
) {
    let (threads, period, plane_elements) = (cpu.team.threads(), map.period(), map.plane_elements());
    let planes = |thread| split(map.planes, threads, thread);
    let numbers = |thread| planes(thread).map(|plane| channel_range(map, each, plane).len()).sum();
    let mut parts = zip_parts(
        split_lengths(gradient, (0..threads).map(numbers)),
        split_lengths(scratch, (0..threads).map(|_| period)),
    );
    cpu.team.run_parts(&mut parts[..threads], &|thread, (gradient, sums)| {
        let mut rest = &mut gradient[..];
        for plane in planes(thread) {
            let elements = plane * plane_elements..(plane + 1) * plane_elements;
            sums.fill(0.0);
            add_products(cpu.level, &x[elements.clone()], &dy[elements], sums);
            let numbers = channel_range(map, each, plane).len();
            let (to, behind) = std::mem::take(&mut rest).split_at_mut(numbers);
            for (channel, to) in to.iter_mut().enumerate() {
                // The rest is padding.
                let pixel_sums = sums.iter().skip(channel).step_by(map.pixel_channels);
                *to = E::store(if channel < map.pixel_channels { pixel_sums.sum() } else { 0.0 });
            }
            rest = behind;
        }
    });
}

multiversion! {
    pub(super) fn add_products / add_products_body [E: Element] [E] (x: &[E], dy: &[E], sums: &mut [f32])
}

#[inline(always)]
fn add_products_body<E: Element>(x: &[E], dy: &[E], sums: &mut [f32]) {
    for (x, dy) in x.chunks(sums.len()).zip(dy.chunks(sums.len())) {
        for ((sum, x), dy) in sums.iter_mut().zip(x).zip(dy) {
            *sum = x.load().mul_add(dy.load(), *sum);
        }
    }
}
