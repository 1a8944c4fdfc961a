//! A bias for each channel of a map, by itself: added, and its gradient. Bound by memory.

use super::by_channel::{sum_channels, with_numbers};
use super::elementwise::CpuContext;
use super::rows::Geometry;
use super::simd::{Element, multiversion};

/// `y += bias`, a number for each channel. Scratch: [`numbers_scratch`](super::by_channel::numbers_scratch).
pub fn add_bias<E: Element>(
    cpu: &CpuContext,
    geometry: &Geometry,
    bias: &[f32],
    y: &mut [E],
    scratch: &mut [f32],
) {
    with_numbers(cpu, geometry, bias, y, scratch, |constants, _, y| add_constants(cpu.level, constants, y));
}

multiversion! {
    fn add_constants / add_constants_body [E: Element] [E] (constants: &[f32], y: &mut [E])
}

#[inline(always)]
fn add_constants_body<E: Element>(constants: &[f32], y: &mut [E]) {
    for chunk in y.chunks_mut(constants.len()) {
        for (y, constant) in chunk.iter_mut().zip(constants) {
            *y = E::store(y.load() + constant);
        }
    }
}

/// `dbias = Σ dy` over samples and pixels. Scratch: [`sums_scratch`](super::by_channel::sums_scratch).
pub fn bias_gradient<E: Element>(
    cpu: &CpuContext,
    geometry: &Geometry,
    dy: &[E],
    dbias: &mut [f32],
    scratch: &mut [u8],
) {
    sum_channels(cpu, geometry, dbias, scratch, |elements, sums| {
        sum_periods(cpu.level, &dy[elements], sums);
    });
}

multiversion! {
    fn sum_periods / sum_periods_body [E: Element] [E] (dy: &[E], sums: &mut [f32])
}

/// Four periods at a time: the sums, too many for registers, are loaded and stored a fourth as often.
#[inline(always)]
fn sum_periods_body<E: Element>(dy: &[E], sums: &mut [f32]) {
    let period = sums.len();
    let mut quads = dy.chunks_exact(4 * period);
    for quad in &mut quads {
        let (first, second) = quad.split_at(2 * period);
        let ((a, b), (c, d)) = (first.split_at(period), second.split_at(period));
        for i in 0..period {
            sums[i] += (a[i].load() + b[i].load()) + (c[i].load() + d[i].load());
        }
    }
    for chunk in quads.remainder().chunks(period) {
        for (sum, dy) in sums.iter_mut().zip(chunk) {
            *sum += dy.load();
        }
    }
}
