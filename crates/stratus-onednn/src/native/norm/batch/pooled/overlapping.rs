//! Max-pooling fused with batch norm and ReLU, of windows that overlap or extend beyond the image.
//!
//! Memory-bound, like [`super::disjoint`]. Forward, a thread normalises each input row once, to integer keys
//! ([`Ordered`]), in a staging buffer with the rows of one window. Backward, it gathers a row of the gradient
//! ([`MaxPool::gather`]) in `f32`, which the next loop finds in L1. Threads divide output rows forward, input
//! rows backward.

use crate::native::activation::{ActivationLoop, Rectifier};
use crate::native::lanes::LaneElement;
use crate::native::norm::batch::{BatchNorm, Sums, flush_length};
use crate::native::norm::loops::{Gradient, GradientSums};
use crate::native::pool::index::{RELU_MASKED, clear_padding};
use crate::native::pool::max::MaxPool;
use crate::native::pool::ordered::Ordered;
use crate::native::simd::{Element, multiversion, prefetch_ahead, prefetch_l2};
use crate::native::threads::{MAX_THREADS, split, split_lengths};
use bytemuck::cast_slice_mut;
use std::ops::Range;

/// The bytes of a thread's staging buffer: the rows of a window.
pub(crate) fn staging_bytes(pool: &MaxPool) -> usize {
    (pool.height * pool.input.row_elements() * size_of::<f32>()).next_multiple_of(64)
}

/// `y = max over the window of relu(scale * x + shift)`; `index` may be empty. Constants are repeated over a
/// period for each group.
pub(crate) fn forward<E: Element>(
    norm: &BatchNorm,
    pool: &MaxPool,
    x: &[E],
    [scales, shifts]: [&[f32]; 2],
    y: &mut [E],
    index: &mut [u8],
    stagings: &mut [u8],
) {
    let (threads, period) = (norm.team.threads(), norm.period());
    let (input, output) = (&pool.input, &pool.output);
    let (in_row, out_row, rows) =
        (input.row_elements(), output.row_elements(), output.planes * output.height);
    let keep = !index.is_empty();
    let lengths = || (0..threads).map(|thread| split(rows, threads, thread).len() * out_row);
    let mut ys = split_lengths(y, lengths());
    let mut indices = split_lengths(index, lengths().map(|length| if keep { length } else { 0 }));
    let staging_len = stagings.len() / threads;
    let mut stagings = split_lengths(stagings, (0..threads).map(|_| staging_len));
    let mut parts: [(&mut [E], &mut [u8], &mut [u8]); MAX_THREADS] = std::array::from_fn(|thread| {
        let [index, staging] = [&mut indices[thread], &mut stagings[thread]].map(std::mem::take);
        (std::mem::take(&mut ys[thread]), index, staging)
    });
    norm.team.run_parts(&mut parts[..threads], &|thread, (y, index, staging)| {
        let staging: &mut [i32] = cast_slice_mut(staging);
        // Rows `..next` of plane `open` are normalised, as far as a window may still read them.
        let (mut open, mut next) = (None, 0);
        for (position, number) in split(rows, threads, thread).enumerate() {
            let (plane, row) = (number / output.height, number % output.height);
            if open != Some(plane) {
                (open, next) = (Some(plane), 0);
            }
            let group = plane % output.groups;
            let constants = [scales, shifts].map(|c| &c[group * period..][..period]);
            let input_rows = pool.rows_of(row);
            for row in next.max(input_rows.start)..input_rows.end {
                let x = &x[(plane * input.height + row) * in_row..][..in_row];
                let keys = &mut staging[row % pool.height * in_row..][..in_row];
                normalise(norm.level, x, constants, keys);
            }
            next = next.max(input_rows.end);
            let to = position * out_row..(position + 1) * out_row;
            let index = if keep { &mut index[to.clone()] } else { &mut [] };
            let (level, y, relu) = (norm.level, &mut y[to], norm.relu());
            // Prefetch the additional rows that the next row reads.
            let end = if row + 1 < output.height { pool.rows_of(row + 1).end.max(next) } else { next };
            let upcoming = &x[(plane * input.height + next) * in_row..(plane * input.height + end) * in_row];
            // Process as many channels at a time as the registers hold keys and indices.
            match input.pixel_channels {
                width if width.is_multiple_of(32) => {
                    pool_keys::<E, 32>(level, pool, row, staging, upcoming, relu, y, index);
                }
                width if width.is_multiple_of(16) => {
                    pool_keys::<E, 16>(level, pool, row, staging, upcoming, relu, y, index);
                }
                width if width.is_multiple_of(8) => {
                    pool_keys::<E, 8>(level, pool, row, staging, upcoming, relu, y, index);
                }
                _ => pool_keys::<E, 1>(level, pool, row, staging, upcoming, relu, y, index),
            }
            clear_padding(output, group, index);
        }
    });
}

multiversion! {
    fn normalise / normalise_body [E: Element] [E] (x: &[E], constants: [&[f32]; 2], keys: &mut [i32])
}

#[inline(always)]
fn normalise_body<E: Element>(x: &[E], [scale, shift]: [&[f32]; 2], keys: &mut [i32]) {
    let period = scale.len();
    let shift = &shift[..period];
    for (x, keys) in x.chunks(period).zip(keys.chunks_mut(period)) {
        prefetch_ahead(x);
        for (((x, key), a), b) in x.iter().zip(keys).zip(scale).zip(shift) {
            *key = x.load().mul_add(*a, *b).key();
        }
    }
}

multiversion! {
    fn pool_keys / pool_keys_body [E: Element, const K: usize] [E, K] (
        pool: &MaxPool, row: usize, staging: &[i32], upcoming: &[E], relu: bool, y: &mut [E],
        index: &mut [u8],
    )
}

/// Computes an output row from the keys of its input rows.
#[inline(always)]
fn pool_keys_body<E: Element, const K: usize>(
    pool: &MaxPool,
    row: usize,
    staging: &[i32],
    mut upcoming: &[E],
    relu: bool,
    y: &mut [E],
    index: &mut [u8],
) {
    let (in_row, width) = (pool.input.row_elements(), pool.input.pixel_channels);
    let rows = pool.covers[0][row];
    let zero = 0.0f32.key();
    let share = upcoming.len().div_ceil(pool.output.row_pixels.max(1));
    for (column, columns) in pool.covers[1].iter().enumerate() {
        let (part, rest) = upcoming.split_at(share.min(upcoming.len()));
        prefetch_l2(part);
        upcoming = rest;
        for block in (0..width).step_by(K) {
            let number = |i: usize, j: usize| f32::index_key((rows.tap + i) * pool.width + columns.tap + j);
            let (mut best, mut argmax) = ([f32::MIN_KEY; K], [number(0, 0); K]);
            for i in 0..rows.count {
                let slot = (rows.first + i) % pool.height;
                for j in 0..columns.count {
                    let at = slot * in_row + (columns.first + j) * width + block;
                    let (keys, number) = (&staging[at..at + K], number(i, j));
                    // Two loops, because a single one is not vectorised.
                    for lane in 0..K {
                        argmax[lane] = if keys[lane] > best[lane] { number } else { argmax[lane] };
                    }
                    for lane in 0..K {
                        best[lane] = best[lane].max(keys[lane]);
                    }
                }
            }
            if relu {
                for lane in 0..K {
                    argmax[lane] = if best[lane] <= zero { i32::from(RELU_MASKED) } else { argmax[lane] };
                }
                for best in &mut best {
                    *best = (*best).max(zero);
                }
            }
            let to = column * width + block;
            let y = &mut y[to..][..K];
            for lane in 0..K {
                y[lane] = E::store(f32::from_key(best[lane]));
            }
            if !index.is_empty() {
                let index = &mut index[to..][..K];
                for lane in 0..K {
                    index[lane] = f32::key_index(argmax[lane]);
                }
            }
        }
    }
}

/// Adds Σ g and Σ g (x - mean) over some input rows, where `g` is gathered from `dy`; constants are repeated
/// over a period for each group.
#[allow(clippy::too_many_arguments)] // The operands of the step, and the sums.
pub(crate) fn reduce_gradients<E: LaneElement>(
    norm: &BatchNorm,
    pool: &MaxPool,
    rows: Range<usize>,
    x: &[E],
    dy: &[E],
    index: &[u8],
    constants: [&[f32]; 3],
    sums: &mut Sums<'_>,
) {
    let (period, in_row) = (norm.period(), pool.input.row_elements());
    // Sums of a few rows are added in `f64` together.
    let rows_per_flush = (flush_length(period) / in_row.max(1)).max(1);
    for (group, rows) in norm.stretches(rows) {
        let constants = constants.map(|c| &c[group * period..][..period]);
        for first in rows.clone().step_by(rows_per_flush) {
            sums.clear();
            for row in first..(first + rows_per_flush).min(rows.end) {
                let gradient: &mut [f32] = &mut cast_slice_mut(sums.staging)[..in_row];
                let x = &x[row * in_row..][..in_row];
                pool.gather(row, dy, index, [x, &[]], gradient);
                let (level, dy, steps) = (norm.level, &*gradient, [period; 2]);
                let (first, second) = (&mut *sums.first, &mut *sums.second);
                let body = GradientSums { level, x, dy, constants, steps, first, second };
                body.run::<Rectifier>(Rectifier::NONE);
            }
            sums.flush(group);
        }
    }
}

/// `dx = scale * g + slope * x + offset`, where `g` is gathered from `dy`; constants (the second is unused)
/// are repeated over a period for each group.
pub(crate) fn backward<E: LaneElement>(
    norm: &BatchNorm,
    pool: &MaxPool,
    [x, dy]: [&[E]; 2],
    index: &[u8],
    constants: [&[f32]; 4],
    dx: &mut [E],
    stagings: &mut [u8],
) {
    let (threads, geometry) = (norm.team.threads(), &norm.geometry);
    let (period, in_row) = (norm.period(), geometry.row_elements());
    let rows = |thread: usize| geometry.thread_rows(threads, thread);
    let mut dxs = split_lengths(dx, (0..threads).map(|thread| rows(thread).len() * in_row));
    let staging_len = stagings.len() / threads;
    let mut stagings = split_lengths(stagings, (0..threads).map(|_| staging_len));
    let mut parts: [(&mut [E], &mut [u8]); MAX_THREADS] =
        std::array::from_fn(|t| (std::mem::take(&mut dxs[t]), std::mem::take(&mut stagings[t])));
    norm.team.run_parts(&mut parts[..threads], &|thread, (dx, staging)| {
        let gathered: &mut [f32] = &mut cast_slice_mut(staging)[..in_row];
        let first = rows(thread).start;
        for (group, rows) in norm.stretches(rows(thread)) {
            let constants = constants.map(|c| &c[group * period..][..period]);
            for row in rows {
                let x = &x[row * in_row..][..in_row];
                let dx = &mut dx[(row - first) * in_row..][..in_row];
                pool.gather(row, dy, index, [x, dx], gathered);
                let (level, dy) = (norm.level, &*gathered);
                let body = Gradient { level, x, dy, constants, steps: [period; 2], dx };
                body.run::<Rectifier>(Rectifier::NONE);
            }
        }
    });
}
