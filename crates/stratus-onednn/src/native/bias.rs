//! A bias for each channel of a map, by itself: added, and its gradient.
//!
//! Bound by memory. Threads divide pixel rows. Sums run in `f32` over up to [`MAX_ADDENDS`] numbers and are
//! then added in `f64`; the threads' sums are added up in the order of the threads.

use super::elementwise::CpuContext;
use super::rows::{ChannelSlice, Geometry, repeat};
use super::simd::{Element, multiversion};
use super::threads::{cut, pairs};

/// Numbers summed in `f32` before the sum goes to `f64`.
const MAX_ADDENDS: usize = 128;

/// Bytes of scratch of [`add_bias`].
#[must_use]
pub fn add_bias_scratch(geometry: &Geometry) -> usize {
    4 * (geometry.padded() + geometry.groups * geometry.period())
}

/// `y += bias`, a number for each channel.
pub fn add_bias<E: Element>(
    cpu: &CpuContext,
    geometry: &Geometry,
    bias: &[f32],
    y: &mut [E],
    scratch: &mut [f32],
) {
    let (period, threads, row) = (geometry.period(), cpu.team.threads(), geometry.row_elements());
    let (padded, repeated) = scratch.split_at_mut(geometry.padded());
    padded.fill(0.0);
    padded[..geometry.channels].copy_from_slice(&bias[..geometry.channels]);
    repeat(geometry, period, padded, repeated);
    let (map, repeated) = (ChannelSlice::all_of(*geometry), &*repeated);
    let rows = |thread| geometry.thread_rows(threads, thread);
    let mut parts = cut(y, (0..threads).map(|thread| rows(thread).len() * row));
    cpu.team.run_parts(&mut parts[..threads], &|thread, part| {
        let first = rows(thread).start;
        for (group, rows) in map.stretches(rows(thread)) {
            let constants = &repeated[group * period..][..period];
            add_constants(
                cpu.level,
                constants,
                &mut part[(rows.start - first) * row..(rows.end - first) * row],
            );
        }
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

/// Bytes of scratch of [`bias_gradient`].
#[must_use]
pub fn bias_gradient_scratch(cpu: &CpuContext, geometry: &Geometry) -> usize {
    cpu.team.threads() * (8 * geometry.padded() + 4 * geometry.period())
}

/// `dbias = Σ dy` over samples and pixels.
pub fn bias_gradient<E: Element>(
    cpu: &CpuContext,
    geometry: &Geometry,
    dy: &[E],
    dbias: &mut [f32],
    scratch: &mut [u8],
) {
    let (threads, padded, period) = (cpu.team.threads(), geometry.padded(), geometry.period());
    let (row, width) = (geometry.row_elements(), geometry.width);
    let (totals, sums) = scratch.split_at_mut(8 * threads * padded);
    let totals: &mut [f64] = bytemuck::cast_slice_mut(totals);
    let sums: &mut [f32] = bytemuck::cast_slice_mut(&mut sums[..4 * threads * period]);
    let map = ChannelSlice::all_of(*geometry);
    let mut parts = pairs(cut(totals, (0..threads).map(|_| padded)), cut(sums, (0..threads).map(|_| period)));
    cpu.team.run_parts(&mut parts[..threads], &|thread, (totals, sums)| {
        totals.fill(0.0);
        for (group, rows) in map.stretches(geometry.thread_rows(threads, thread)) {
            let totals = &mut totals[group * width..][..width];
            for chunk in dy[rows.start * row..rows.end * row].chunks(period * MAX_ADDENDS) {
                sums.fill(0.0);
                sum_periods(cpu.level, chunk, sums);
                for repeat in sums.chunks_exact(width) {
                    totals.iter_mut().zip(repeat).for_each(|(total, sum)| *total += f64::from(*sum));
                }
            }
        }
    });
    for (channel, dbias) in dbias.iter_mut().enumerate().take(geometry.channels) {
        let parts = totals.chunks_exact(padded).map(|totals| totals[channel]);
        *dbias = parts.sum::<f64>() as f32;
    }
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
