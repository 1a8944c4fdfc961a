//! A trained factor for each channel of a map, and its gradient.
//!
//! Bound by memory. Threads divide pixel rows. Sums run in `f32` over up to [`MAX_ADDENDS`] numbers and are
//! then added in `f64`; the threads' sums are added up in the order of the threads.

use super::channel_scale::{add_products, multiply};
use super::elementwise::CpuContext;
use super::rows::{ChannelSlice, Geometry, repeat};
use super::simd::Element;
use super::threads::{cut, pairs};

/// Numbers summed in `f32` before the sum goes to `f64`.
const MAX_ADDENDS: usize = 128;

/// Bytes of scratch of [`layer_scale`].
#[must_use]
pub fn layer_scale_scratch(geometry: &Geometry) -> usize {
    4 * (geometry.padded() + geometry.groups * geometry.period())
}

/// `y = x * factors`, a number for each channel.
pub fn layer_scale<E: Element>(
    cpu: &CpuContext,
    geometry: &Geometry,
    x: &[E],
    factors: &[f32],
    y: &mut [E],
    scratch: &mut [f32],
) {
    let (period, threads, row) = (geometry.period(), cpu.team.threads(), geometry.row_elements());
    let (padded, repeated) = scratch.split_at_mut(geometry.padded());
    // What is behind the map's channels is zero, and stays so.
    padded.fill(0.0);
    padded[..geometry.channels].copy_from_slice(&factors[..geometry.channels]);
    repeat(geometry, period, padded, repeated);
    let (map, repeated) = (ChannelSlice::all_of(*geometry), &*repeated);
    let rows = |thread| geometry.thread_rows(threads, thread);
    let mut parts = cut(y, (0..threads).map(|thread| rows(thread).len() * row));
    cpu.team.run_parts(&mut parts[..threads], &|thread, part| {
        let first = rows(thread).start;
        for (group, rows) in map.stretches(rows(thread)) {
            let y = &mut part[(rows.start - first) * row..(rows.end - first) * row];
            let x = &x[rows.start * row..rows.end * row];
            multiply(cpu.level, &repeated[group * period..][..period], x, y);
        }
    });
}

/// Bytes of scratch of [`layer_scale_gradient`].
#[must_use]
pub fn layer_scale_gradient_scratch(cpu: &CpuContext, geometry: &Geometry) -> usize {
    cpu.team.threads() * (8 * geometry.padded() + 4 * geometry.period())
}

/// `dfactors = Σ x dy` over samples and pixels.
pub fn layer_scale_gradient<E: Element>(
    cpu: &CpuContext,
    geometry: &Geometry,
    [x, dy]: [&[E]; 2],
    gradient: &mut [f32],
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
            let elements = rows.start * row..rows.end * row;
            let chunk = period * MAX_ADDENDS;
            for (x, dy) in x[elements.clone()].chunks(chunk).zip(dy[elements].chunks(chunk)) {
                sums.fill(0.0);
                add_products(cpu.level, x, dy, sums);
                for repeat in sums.chunks_exact(width) {
                    totals.iter_mut().zip(repeat).for_each(|(total, sum)| *total += f64::from(*sum));
                }
            }
        }
    });
    for (channel, gradient) in gradient.iter_mut().enumerate().take(geometry.channels) {
        let parts = totals.chunks_exact(padded).map(|totals| totals[channel]);
        *gradient = parts.sum::<f64>() as f32;
    }
}
