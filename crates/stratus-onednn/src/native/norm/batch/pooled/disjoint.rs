//! Max-pooling fused with batch norm and ReLU, of windows that do not overlap.
//!
//! ```text
//! forward    y = relu(max over the window of scale · x + shift), index = argmax or RELU_MASKED
//! backward   g = dy at the argmax, else 0         dx = scale · g + slope · x + offset
//! ```
//!
//! Memory-bound: forward reads the map and writes a quarter of it (2×2), backward reads `x` (twice: sums,
//! then `dx`), `dy` and `index`; the normalised map and its gradient are never stored. Threads divide strips:
//! the pixel rows of one row of the output.

use super::pairs;
use crate::native::norm::batch::{BatchNorm, Sums};
use crate::native::pool::index::{RELU_MASKED, clear_padding, indices, load};
use crate::native::rows::MapGeometry;
use crate::native::simd::{Element, multiversion, prefetch, stream};
use crate::native::threads::{MAX_THREADS, split, split_lengths};
use std::ops::Range;

/// Windows that do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisjointPool {
    /// Window `[vertical, horizontal]`.
    pub window: [usize; 2],
}

impl DisjointPool {
    fn strips(&self, geometry: &MapGeometry) -> usize {
        geometry.height / self.window[0]
    }

    fn output_row(&self, geometry: &MapGeometry) -> usize {
        geometry.row_pixels / self.window[1] * geometry.pixel_channels
    }

    /// A thread's strips, counted over all planes.
    pub(crate) fn thread_strips(
        &self,
        geometry: &MapGeometry,
        threads: usize,
        thread: usize,
    ) -> Range<usize> {
        split(geometry.planes * self.strips(geometry), threads, thread)
    }

    /// The pixel rows of a strip, counted over all planes; the last strip of a plane includes rows that no
    /// window covers.
    fn rows(&self, geometry: &MapGeometry, strip: usize) -> Range<usize> {
        let strips = self.strips(geometry);
        let (plane, strip) = (strip / strips, strip % strips);
        let end = if strip + 1 == strips { geometry.height } else { (strip + 1) * self.window[0] };
        plane * geometry.height + strip * self.window[0]..plane * geometry.height + end
    }

    /// The elements of the longest strip, the last of a plane.
    fn strip_elements(&self, geometry: &MapGeometry) -> usize {
        (self.window[0] + geometry.height % self.window[0]) * geometry.row_elements()
    }

    fn group(&self, geometry: &MapGeometry, strip: usize) -> usize {
        strip / self.strips(geometry) % geometry.groups
    }
}

/// The maximum size of a staged strip and its gradient, which stay in L1.
const MAX_STAGING_BYTES: usize = 24 << 10;

/// A map of this size has left the caches before it is read: strips are staged, and gradients are stored past
/// the caches. Measured with 32 MiB of last-level cache.
const LARGE_MAP_BYTES: usize = 16 << 20;

/// The bytes of a thread's staging buffer, for a strip of `x` and one of `dx`; 0 if the map stays in the
/// caches, or a strip is too long.
pub(crate) fn staging_bytes(pool: &DisjointPool, geometry: &MapGeometry, element_bytes: usize) -> usize {
    let strips = 2 * pool.strip_elements(geometry) * element_bytes;
    let map = geometry.planes * geometry.height * geometry.row_elements() * element_bytes;
    if map >= LARGE_MAP_BYTES && strips <= MAX_STAGING_BYTES { strips.next_multiple_of(64) } else { 0 }
}

/// Calls `$function` with the widest block of channels that divides the width, and with the common window as
/// a constant.
macro_rules! by_block {
    ($strip:expr, $function:ident::<$element:ty>($($argument:expr),* $(,)?)) => {
        match ($strip.width, $strip.window) {
            (width, [2, 2]) if width.is_multiple_of(16) => $function::<$element, 16, 2>($($argument),*),
            (width, _) if width.is_multiple_of(16) => $function::<$element, 16, 0>($($argument),*),
            (width, [2, 2]) if width.is_multiple_of(8) => $function::<$element, 8, 2>($($argument),*),
            (width, _) if width.is_multiple_of(8) => $function::<$element, 8, 0>($($argument),*),
            _ => $function::<$element, 1, 0>($($argument),*),
        }
    };
}

/// A strip, as the inner loops use it.
#[derive(Clone, Copy)]
struct Strip {
    window: [usize; 2],
    row_elements: usize,
    width: usize,
    outputs: usize,
    relu: bool,
}

impl Strip {
    fn new(norm: &BatchNorm, pool: &DisjointPool) -> Self {
        let geometry = &norm.geometry;
        Self {
            window: pool.window,
            row_elements: geometry.row_elements(),
            width: geometry.pixel_channels,
            outputs: geometry.row_pixels / pool.window[1],
            relu: norm.relu(),
        }
    }

    /// Returns whether [`pairs`] applies.
    #[inline(always)]
    fn is_paired<const K: usize, const W: usize>(&self) -> bool {
        K == pairs::CHANNELS && W == 2 && self.width == K
    }

    /// The window; a constant if `W` is not 0.
    #[inline(always)]
    fn window<const W: usize>(&self) -> [usize; 2] {
        if W == 0 { self.window } else { [W, W] }
    }
}

/// The rows of a strip, copied to the staging buffer if there is one ([`staging_bytes`]).
///
/// The rows are read in parallel, which the hardware prefetcher does not follow; it does follow one copy in
/// order, after which the rows are in L1. For tiles in the caches the copy would be wasted.
fn staged<'a, E: Element>(map: &'a [E], strip: Range<usize>, staging: &'a mut [E]) -> &'a [E] {
    let strip = &map[strip];
    prefetch(strip, strip.len());
    match staging.get_mut(..strip.len()) {
        Some(staging) => {
            staging.copy_from_slice(strip);
            staging
        }
        None => strip,
    }
}

/// `y = max over the window of relu(scale * x + shift)`; `index` may be empty.
pub(crate) fn forward<E: Element>(
    norm: &BatchNorm,
    pool: &DisjointPool,
    x: &[E],
    [scale, shift]: [&[f32]; 2],
    y: &mut [E],
    index: &mut [u8],
    stagings: &mut [u8],
) {
    let (geometry, threads) = (&norm.geometry, norm.team.threads());
    let (strip, out_row, in_row, width) =
        (Strip::new(norm, pool), pool.output_row(geometry), geometry.row_elements(), geometry.pixel_channels);
    let lengths = || (0..threads).map(|t| pool.thread_strips(geometry, threads, t).len() * out_row);
    let keep = !index.is_empty();
    let mut ys = split_lengths(y, lengths());
    let mut indices = split_lengths(index, lengths().map(|length| if keep { length } else { 0 }));
    let staging_len = stagings.len() / threads;
    let mut stagings = split_lengths(stagings, (0..threads).map(|_| staging_len));
    let mut parts: [(&mut [E], &mut [u8], &mut [E]); MAX_THREADS] = std::array::from_fn(|t| {
        (
            std::mem::take(&mut ys[t]),
            std::mem::take(&mut indices[t]),
            elements(std::mem::take(&mut stagings[t])),
        )
    });
    norm.team.run_parts(&mut parts[..threads], &|thread, (y, index, staging)| {
        for (position, number) in pool.thread_strips(geometry, threads, thread).enumerate() {
            let rows = pool.rows(geometry, number);
            let group = pool.group(geometry, number) * width;
            let from = staged(x, rows.start * in_row..rows.end * in_row, staging);
            let constants = [&scale[group..group + width], &shift[group..group + width]];
            let to = &mut y[position * out_row..][..out_row];
            let index = if keep { &mut index[position * out_row..][..out_row] } else { &mut [] };
            by_block!(strip, pool_strip::<E>(norm.level, strip, from, constants, to, index));
            clear_padding(geometry, group / width, index);
        }
    });
}

fn elements<E: Element>(bytes: &mut [u8]) -> &mut [E] {
    if bytes.is_empty() { &mut [] } else { bytemuck::cast_slice_mut(bytes) }
}

#[inline(always)]
fn lanes<const K: usize>(from: &[f32], at: usize) -> [f32; K] {
    let from = &from[at..at + K];
    std::array::from_fn(|lane| from[lane])
}

multiversion! {
    fn pool_strip / pool_strip_body [E: Element, const K: usize, const W: usize] [E, K, W] (
        strip: Strip, x: &[E], constants: [&[f32]; 2], y: &mut [E], index: &mut [u8]
    )
}

#[inline(always)]
fn pool_strip_body<E: Element, const K: usize, const W: usize>(
    strip: Strip,
    x: &[E],
    [scale, shift]: [&[f32]; 2],
    y: &mut [E],
    index: &mut [u8],
) {
    let [height, width] = strip.window::<W>();
    for block in (0..strip.width).step_by(K) {
        let (a, b) = (lanes::<K>(scale, block), lanes::<K>(shift, block));
        for output in 0..strip.outputs {
            // First the maximum, then its position: one select per loop, which is vectorised.
            let at = |i: usize, j: usize| i * strip.row_elements + (output * width + j) * strip.width + block;
            let value = |i: usize, j: usize| -> [f32; K] {
                let x = load::<E, K>(x, at(i, j));
                std::array::from_fn(|lane| x[lane].mul_add(a[lane], b[lane]))
            };
            let mut best = [f32::NEG_INFINITY; K];
            for i in 0..height {
                for j in 0..width {
                    let value = value(i, j);
                    // NaN is taken, and nothing compares larger.
                    best = std::array::from_fn(|lane| {
                        let wins = (value[lane] > best[lane]) | value[lane].is_nan();
                        if wins { value[lane] } else { best[lane] }
                    });
                }
            }
            let mut argmax = [0u32; K];
            if !index.is_empty() {
                for i in (0..height).rev() {
                    for j in (0..width).rev() {
                        let (value, number) = (value(i, j), (i * width + j) as u32);
                        argmax = std::array::from_fn(|lane| {
                            if value[lane] == best[lane] { number } else { argmax[lane] }
                        });
                    }
                }
            }
            let at = output * strip.width + block;
            if strip.relu {
                argmax = std::array::from_fn(|lane| {
                    if best[lane] <= 0.0 { u32::from(RELU_MASKED) } else { argmax[lane] }
                });
                best = std::array::from_fn(|lane| if best[lane] <= 0.0 { 0.0 } else { best[lane] });
            }
            let to = &mut y[at..at + K];
            for lane in 0..K {
                to[lane] = E::store(best[lane]);
            }
            if !index.is_empty() {
                let to = &mut index[at..at + K];
                for lane in 0..K {
                    to[lane] = argmax[lane] as u8;
                }
            }
        }
    }
}

/// Adds Σ g and Σ g (x - mean) over some strips, where `g` is `dy` at the argmax.
#[allow(clippy::too_many_arguments)] // The operands of the step, and the sums.
pub(crate) fn reduce_gradients<E: Element>(
    norm: &BatchNorm,
    pool: &DisjointPool,
    strips: Range<usize>,
    x: &[E],
    dy: &[E],
    index: &[u8],
    mean: &[f32],
    sums: &mut Sums<'_>,
) {
    let geometry = &norm.geometry;
    let (strip, out_row, in_row, width) =
        (Strip::new(norm, pool), pool.output_row(geometry), geometry.row_elements(), geometry.pixel_channels);
    let mut open: Option<usize> = None;
    for (position, number) in strips.enumerate() {
        let group = pool.group(geometry, number);
        // Sums of up to 32 strips are added in `f64` together.
        if open != Some(group) || position % 32 == 0 {
            if let Some(group) = open {
                sums.flush(group);
            }
            sums.clear();
            open = Some(group);
        }
        let rows = pool.rows(geometry, number);
        let from = staged(x, rows.start * in_row..rows.end * in_row, elements(sums.staging));
        let range = number * out_row..(number + 1) * out_row;
        let mean = &mean[group * width..][..width];
        let (first, second) = (&mut sums.first[..width], &mut sums.second[..width]);
        by_block!(
            strip,
            reduce_strip::<E>(
                norm.level,
                strip,
                from,
                &dy[range.clone()],
                &index[range],
                mean,
                first,
                second
            )
        );
    }
    if let Some(group) = open {
        sums.flush(group);
    }
}

multiversion! {
    fn reduce_strip / reduce_strip_body [E: Element, const K: usize, const W: usize] [E, K, W] (
        strip: Strip, x: &[E], dy: &[E], index: &[u8], mean: &[f32], first: &mut [f32], second: &mut [f32]
    )
}

#[inline(always)]
fn reduce_strip_body<E: Element, const K: usize, const W: usize>(
    strip: Strip,
    x: &[E],
    dy: &[E],
    index: &[u8],
    mean: &[f32],
    first: &mut [f32],
    second: &mut [f32],
) {
    let [height, width] = strip.window::<W>();
    for block in (0..strip.width).step_by(K) {
        let mean = lanes::<K>(mean, block);
        let (mut sum, mut weighted) = (lanes::<K>(first, block), lanes::<K>(second, block));
        for output in 0..strip.outputs {
            let at = output * strip.width + block;
            let g = load::<E, K>(dy, at);
            let argmax = indices::<K>(index, at);
            let mut chosen = [0.0; K];
            for i in 0..height {
                for j in 0..width {
                    let at = i * strip.row_elements + (output * width + j) * strip.width + block;
                    let value = load::<E, K>(x, at);
                    let number = (i * width + j) as u32;
                    for lane in 0..K {
                        chosen[lane] = if argmax[lane] == number { value[lane] } else { chosen[lane] };
                    }
                }
            }
            for lane in 0..K {
                let g = if argmax[lane] == u32::from(RELU_MASKED) { 0.0 } else { g[lane] };
                sum[lane] += g;
                weighted[lane] += g * (chosen[lane] - mean[lane]);
            }
        }
        first[block..block + K].copy_from_slice(&sum);
        second[block..block + K].copy_from_slice(&weighted);
    }
}

/// `dx = scale * g + slope * x + offset`, where `g` is `dy` at the argmax; `constants` holds scale, shift,
/// slope, offset per channel.
#[allow(clippy::too_many_arguments)] // The operands of the step, and its stagings.
pub(crate) fn backward<E: Element>(
    norm: &BatchNorm,
    pool: &DisjointPool,
    x: &[E],
    dy: &[E],
    index: &[u8],
    constants: &[f32],
    dx: &mut [E],
    stagings: &mut [u8],
) {
    let (geometry, threads) = (&norm.geometry, norm.team.threads());
    let (strip, out_row, in_row, width) =
        (Strip::new(norm, pool), pool.output_row(geometry), geometry.row_elements(), geometry.pixel_channels);
    let padded = geometry.padded();
    let rows_of = |strips: Range<usize>| -> usize { strips.map(|s| pool.rows(geometry, s).len()).sum() };
    let mut dxs =
        split_lengths(dx, (0..threads).map(|t| rows_of(pool.thread_strips(geometry, threads, t)) * in_row));
    let staging_len = stagings.len() / threads;
    let mut stagings = split_lengths(stagings, (0..threads).map(|_| staging_len));
    let mut parts: [(&mut [E], &mut [E]); MAX_THREADS] =
        std::array::from_fn(|t| (std::mem::take(&mut dxs[t]), elements(std::mem::take(&mut stagings[t]))));
    norm.team.run_parts(&mut parts[..threads], &|thread, (dx, staging)| {
        let half = staging.len() / 2;
        let (from_staging, to_staging) = staging.split_at_mut(half);
        let mut done = 0;
        for number in pool.thread_strips(geometry, threads, thread) {
            let rows = pool.rows(geometry, number);
            let group = pool.group(geometry, number) * width;
            let c = [0, 2, 3].map(|i| &constants[i * padded + group..][..width]);
            let range = number * out_row..(number + 1) * out_row;
            let (dy, index) = (&dy[range.clone()], &index[range]);
            let from = staged(x, rows.start * in_row..rows.end * in_row, from_staging);
            let to = &mut dx[done..done + from.len()];
            match to_staging.get_mut(..from.len()) {
                Some(staging) => {
                    by_block!(strip, backward_strip::<E>(norm.level, strip, from, dy, index, c, staging));
                    stream(norm.level, staging, to);
                }
                None => by_block!(strip, backward_strip::<E>(norm.level, strip, from, dy, index, c, to)),
            }
            done += from.len();
        }
    });
}

multiversion! {
    fn backward_strip / backward_strip_body [E: Element, const K: usize, const W: usize] [E, K, W] (
        strip: Strip, x: &[E], dy: &[E], index: &[u8], constants: [&[f32]; 3], dx: &mut [E]
    )
}

#[inline(always)]
fn backward_strip_body<E: Element, const K: usize, const W: usize>(
    strip: Strip,
    x: &[E],
    dy: &[E],
    index: &[u8],
    [scale, slope, offset]: [&[f32]; 3],
    dx: &mut [E],
) {
    let [height, width] = strip.window::<W>();
    let covered = strip.outputs * width * strip.width;
    for block in (0..strip.width).step_by(K) {
        let (a, s, o) = (lanes::<K>(scale, block), lanes::<K>(slope, block), lanes::<K>(offset, block));
        let single_outputs = if strip.is_paired::<K, W>() {
            pairs::backward(strip.outputs, strip.row_elements, x, dy, index, [scale, slope, offset], dx);
            0
        } else {
            strip.outputs
        };
        for output in 0..single_outputs {
            let at = output * strip.width + block;
            let g = load::<E, K>(dy, at);
            let argmax = indices::<K>(index, at);
            for i in 0..height {
                for j in 0..width {
                    let at = i * strip.row_elements + (output * width + j) * strip.width + block;
                    let value = load::<E, K>(x, at);
                    let number = (i * width + j) as u32;
                    let to = &mut dx[at..at + K];
                    for lane in 0..K {
                        let g = if argmax[lane] == number { g[lane] } else { 0.0 };
                        to[lane] = E::store(g.mul_add(a[lane], value[lane].mul_add(s[lane], o[lane])));
                    }
                }
            }
        }
        // Pixels that no window covers: right of the last window, and below.
        for (row, (x, dx)) in x.chunks(strip.row_elements).zip(dx.chunks_mut(strip.row_elements)).enumerate()
        {
            let from = if row < height { covered } else { 0 };
            for at in (from + block..strip.row_elements).step_by(strip.width) {
                for lane in 0..K {
                    dx[at + lane] = E::store(x[at + lane].load().mul_add(s[lane], o[lane]));
                }
            }
        }
    }
}
