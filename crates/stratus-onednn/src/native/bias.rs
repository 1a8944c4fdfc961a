//! Adds a bias per channel to a map, and computes its gradient. Memory-bound.

use super::by_channel::{sum_channels, with_channel_constants};
use super::elementwise::CpuContext;
use super::rows::MapGeometry;
use super::simd::{Element, multiversion};

/// `y += bias`, one number per channel. Scratch:
/// [`constants_scratch_bytes`](super::by_channel::constants_scratch_bytes).
pub fn add_bias<E: Element>(
    cpu: &CpuContext,
    geometry: &MapGeometry,
    bias: &[f32],
    y: &mut [E],
    scratch: &mut [f32],
) {
    with_channel_constants(cpu, geometry, bias, y, scratch, |constants, _, y| {
        add_constants(cpu.level, constants, y);
    });
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

/// `dbias = Σ dy` over samples and pixels. Scratch:
/// [`sums_scratch_bytes`](super::by_channel::sums_scratch_bytes).
pub fn bias_gradient<E: Element>(
    cpu: &CpuContext,
    geometry: &MapGeometry,
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

/// Sums four periods at a time: the sums, too many for registers, are loaded and stored a fourth as often.
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
