//! Helpers for kernels with a constant per channel: constants repeated along the map, and sums over samples
//! and pixels.
//!
//! Threads divide pixel rows. Sums run in `f32` over up to [`MAX_ADDENDS`] numbers and are then added in
//! `f64`; the threads' sums are added in the order of the threads.

use super::elementwise::CpuContext;
use super::rows::{ChannelSlice, MapGeometry, repeat};
use super::threads::{split_lengths, zip_parts};
use std::ops::Range;

/// The number of terms summed in `f32` before the sum is added in `f64`.
const MAX_ADDENDS: usize = 128;

/// The scratch bytes of [`with_channel_constants`].
#[must_use]
pub fn constants_scratch_bytes(geometry: &MapGeometry) -> usize {
    4 * (geometry.padded() + geometry.groups * geometry.period())
}

/// Calls `body` for runs of `y` whose channels repeat, with the constants over a period, the position of the
/// run in the map, and the run. Constants of padded channels are 0.
pub fn with_channel_constants<E: Send>(
    cpu: &CpuContext,
    geometry: &MapGeometry,
    numbers: &[f32],
    y: &mut [E],
    scratch: &mut [f32],
    body: impl Fn(&[f32], Range<usize>, &mut [E]) + Sync,
) {
    let (period, threads, row) = (geometry.period(), cpu.team.threads(), geometry.row_elements());
    let (padded, repeated) = scratch.split_at_mut(geometry.padded());
    padded.fill(0.0);
    padded[..geometry.channels].copy_from_slice(&numbers[..geometry.channels]);
    repeat(geometry, period, padded, repeated);
    let (map, repeated) = (ChannelSlice::all_of(*geometry), &*repeated);
    let rows = |thread| geometry.thread_rows(threads, thread);
    let mut parts = split_lengths(y, (0..threads).map(|thread| rows(thread).len() * row));
    cpu.team.run_parts(&mut parts[..threads], &|thread, part| {
        let first = rows(thread).start;
        for (group, rows) in map.stretches(rows(thread)) {
            let y = &mut part[(rows.start - first) * row..(rows.end - first) * row];
            body(&repeated[group * period..][..period], rows.start * row..rows.end * row, y);
        }
    });
}

/// The scratch bytes of [`sum_channels`].
#[must_use]
pub fn sums_scratch_bytes(cpu: &CpuContext, geometry: &MapGeometry) -> usize {
    cpu.team.threads() * (8 * geometry.padded() + 4 * geometry.period())
}

/// Sums over samples and pixels, per channel. `add` adds the elements of a range of the map to sums over a
/// period, which start at 0.
pub fn sum_channels(
    cpu: &CpuContext,
    geometry: &MapGeometry,
    results: &mut [f32],
    scratch: &mut [u8],
    add: impl Fn(Range<usize>, &mut [f32]) + Sync,
) {
    let (threads, padded, period) = (cpu.team.threads(), geometry.padded(), geometry.period());
    let (row, width) = (geometry.row_elements(), geometry.pixel_channels);
    let (totals, sums) = scratch.split_at_mut(8 * threads * padded);
    let totals: &mut [f64] = bytemuck::cast_slice_mut(totals);
    let sums: &mut [f32] = bytemuck::cast_slice_mut(&mut sums[..4 * threads * period]);
    let map = ChannelSlice::all_of(*geometry);
    let mut parts = zip_parts(
        split_lengths(totals, (0..threads).map(|_| padded)),
        split_lengths(sums, (0..threads).map(|_| period)),
    );
    cpu.team.run_parts(&mut parts[..threads], &|thread, (totals, sums)| {
        totals.fill(0.0);
        for (group, rows) in map.stretches(geometry.thread_rows(threads, thread)) {
            let totals = &mut totals[group * width..][..width];
            let (end, chunk) = (rows.end * row, period * MAX_ADDENDS);
            for first in (rows.start * row..end).step_by(chunk) {
                sums.fill(0.0);
                add(first..end.min(first + chunk), sums);
                for repeat in sums.chunks_exact(width) {
                    totals.iter_mut().zip(repeat).for_each(|(total, sum)| *total += f64::from(*sum));
                }
            }
        }
    });
    for (channel, result) in results.iter_mut().enumerate().take(geometry.channels) {
        let parts = totals.chunks_exact(padded).map(|totals| totals[channel]);
        *result = parts.sum::<f64>() as f32;
    }
}
