//! Spatial dropout: a factor per image and channel, drawn wherever it is needed. Stochastic depth: a factor
//! per image.
//!
//! Memory-bound. Threads divide pixel rows, and draw the factors of an image, or of its block of 16 channels,
//! when they reach it.

use super::dropout::DropoutMask;
use super::elementwise::CpuContext;
use super::rows::MapGeometry;
use super::simd::{Element, multiversion};
use super::threads::{split_lengths, zip_parts};

/// The scratch bytes: factors over a period, per thread.
#[must_use]
pub fn scratch_bytes(cpu: &CpuContext, geometry: &MapGeometry) -> usize {
    4 * cpu.team.threads() * geometry.period()
}

/// `y = x * scale`, or 0 if the mask drops the channel (with `whole`, the image); [`DropoutMask::first`] is
/// the index of the first image's first channel (with `whole`, of the first image).
pub fn dropout2d<E: Element>(
    cpu: &CpuContext,
    (dropout, whole): (&DropoutMask, bool),
    geometry: &MapGeometry,
    x: &[E],
    y: &mut [E],
    scratch: &mut [f32],
) {
    let (threads, period, row) = (cpu.team.threads(), geometry.period(), geometry.row_elements());
    let rows = |thread| geometry.thread_rows(threads, thread);
    let mut parts = zip_parts(
        split_lengths(y, (0..threads).map(|thread| rows(thread).len() * row)),
        split_lengths(scratch, (0..threads).map(|_| period)),
    );
    cpu.team.run_parts(&mut parts[..threads], &|thread, (y, factors)| {
        let (first, end) = (rows(thread).start, rows(thread).end);
        let mut next = first;
        while next < end {
            let plane = next / geometry.height;
            let until = ((plane + 1) * geometry.height).min(end);
            draw(dropout, whole, geometry, plane, factors);
            let y = &mut y[(next - first) * row..(until - first) * row];
            multiply(cpu.level, factors, &x[next * row..until * row], y);
            next = until;
        }
    });
}

/// The factors of a plane's channels, repeated over a period; 0 for padded channels.
fn draw(dropout: &DropoutMask, whole: bool, geometry: &MapGeometry, plane: usize, factors: &mut [f32]) {
    let (image, group) = (plane / geometry.groups, plane % geometry.groups);
    let (begin, width) = (group * geometry.pixel_channels, geometry.pixel_channels);
    let used = width.min(geometry.channels - begin);
    if whole {
        let keeps = dropout.mask.keeps(dropout.first + image as u64);
        factors[..used].fill(if keeps { dropout.scale } else { 0.0 });
    } else {
        let number = dropout.first + (image * geometry.channels + begin) as u64;
        let mut words = dropout.mask.stream.block((number / 4) as u32);
        for (number, factor) in (number..).zip(&mut factors[..used]) {
            if number.is_multiple_of(4) {
                words = dropout.mask.stream.block((number / 4) as u32);
            }
            let keeps = words[(number % 4) as usize] >= dropout.mask.threshold;
            *factor = if keeps { dropout.scale } else { 0.0 };
        }
    }
    factors[used..width].fill(0.0);
    let (once, repeated) = factors.split_at_mut(width);
    repeated.chunks_exact_mut(width).for_each(|copy| copy.copy_from_slice(once));
}

multiversion! {
    fn multiply / multiply_body [E: Element] [E] (factors: &[f32], x: &[E], y: &mut [E])
}

#[inline(always)]
fn multiply_body<E: Element>(factors: &[f32], x: &[E], y: &mut [E]) {
    for (x, y) in x.chunks(factors.len()).zip(y.chunks_mut(factors.len())) {
        for ((x, y), factor) in x.iter().zip(y).zip(factors) {
            // Dropped elements are 0, whatever their value.
            *y = E::store(if *factor == 0.0 { 0.0 } else { x.load() * factor });
        }
    }
}
