//! Max-pooling that is not fused, with any window, stride and padding.
//!
//! ```text
//! forward    y = max over the window, index = number of the argmax in the window (u8)
//! backward   dx[pixel] = Σ dy over the windows whose argmax is the pixel (windows may overlap)
//! ```
//!
//! Memory-bound: forward reads `x` once, backward reads `dy` and `index` and writes `dx`. The maximum is
//! taken over integer keys ([`Ordered`]), twice as many per register for bf16 as for `f32`, in IEEE's order
//! with NaN on top. Channels are innermost, `[.., H, W, width]`: all lanes have the same window. Threads
//! divide output rows forward, input rows backward.

use super::index::{RELU_MASKED, clear_padding, indices, load};
use super::ordered::Ordered;
use crate::native::elementwise::CpuContext;
use crate::native::lanes::{LANES, LaneElement, Lanes, with_lanes};
use crate::native::rows::MapGeometry;
use crate::native::simd::{Element, multiversion, prefetch_l2};
use crate::native::threads::{MAX_THREADS, split, split_lengths};
use std::ops::Range;
use stratus_graph::ops::MaxPool2d;

/// A max-pooling. Input and output have the same channels in the same groups.
#[derive(Clone, Debug)]
pub struct MaxPool {
    pub(crate) input: MapGeometry,
    pub(crate) output: MapGeometry,
    /// Kernel `[height, width]`.
    pub(crate) height: usize,
    pub(crate) width: usize,
    strides: [usize; 2],
    /// The extent of each window, by axis and output: precomputed, to divide only once.
    pub(crate) covers: [Vec<WindowExtent>; 2],
    /// The windows that contain each position, by axis and position.
    windows: [Vec<CoveringWindows>; 2],
    /// True if ReLU masks the gradient of outputs that are not positive.
    mask_relu: bool,
    cpu: CpuContext,
}

/// The extent of a window along an axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowExtent {
    /// The first position.
    pub(crate) first: usize,
    /// The kernel's element at that position.
    pub(crate) tap: usize,
    /// The number of positions.
    pub(crate) count: usize,
}

/// The windows along an axis that contain a position.
#[derive(Clone, Copy, Debug)]
struct CoveringWindows {
    /// The first window.
    first: usize,
    /// The end of the range.
    end: usize,
    /// The first window's element at the position; it decreases by a stride per window.
    tap: usize,
}

impl MaxPool {
    #[must_use]
    pub fn new(pool: &MaxPool2d, input: MapGeometry, output: MapGeometry, cpu: &CpuContext) -> Self {
        let extents = [(input.height, output.height), (input.row_pixels, output.row_pixels)];
        let covers = |axis: usize| {
            let (kernel, stride, padding) = (pool.kernel[axis], pool.stride[axis], pool.padding[axis]);
            let cover = |window: usize| {
                let start = window * stride;
                let first = start.saturating_sub(padding);
                let end = (start + kernel).saturating_sub(padding).min(extents[axis].0);
                WindowExtent { first, tap: first + padding - start, count: end.saturating_sub(first) }
            };
            (0..extents[axis].1).map(cover).collect()
        };
        let windows = |axis: usize| {
            let (kernel, stride, padding) = (pool.kernel[axis], pool.stride[axis], pool.padding[axis]);
            let windows = |position: usize| {
                let padded = position + padding;
                let first = (padded + 1).saturating_sub(kernel).div_ceil(stride);
                let end = (padded / stride + 1).min(extents[axis].1);
                CoveringWindows { first, end, tap: padded.saturating_sub(first * stride) }
            };
            (0..extents[axis].0).map(windows).collect()
        };
        Self {
            input,
            output,
            height: pool.kernel[0],
            width: pool.kernel[1],
            strides: pool.stride,
            covers: [covers(0), covers(1)],
            windows: [windows(0), windows(1)],
            mask_relu: false,
            cpu: cpu.clone(),
        }
    }

    /// With `mask_relu`, `index` holds [`RELU_MASKED`] for outputs that are not positive.
    #[must_use]
    pub fn with_relu_mask(self, mask_relu: bool) -> Self {
        Self { mask_relu, ..self }
    }

    /// The input rows of an output row.
    pub(crate) fn rows_of(&self, row: usize) -> Range<usize> {
        let cover = self.covers[0][row];
        cover.first..cover.first + cover.count
    }

    /// The additional input rows of the next output row. They are prefetched, because the hardware prefetcher
    /// does not follow rows read in parallel.
    #[inline(always)]
    fn next_input_rows(&self, row: usize) -> Range<usize> {
        let end = |row: usize| self.covers[0].get(row).map_or(0, |cover| cover.first + cover.count);
        end(row)..end(row + 1)
    }

    /// The output row that the next input row gathers from in addition to this one's, if any.
    #[inline(always)]
    fn next_output_row(&self, row: usize) -> Option<usize> {
        let end = |row: usize| self.windows[0].get(row).map_or(0, |windows| windows.end);
        (end(row + 1) > end(row)).then(|| end(row))
    }

    /// Computes `y` and, unless it is empty, `index`. NaN is the largest; zeros of either sign become
    /// positive.
    pub fn forward<E: Ordered>(&self, x: &[E], y: &mut [E], index: &mut [u8]) {
        let (threads, rows) = (self.cpu.team.threads(), self.output.planes * self.output.height);
        let row_elements = self.output.row_elements();
        let keep = !index.is_empty();
        let lengths = || (0..threads).map(|t| split(rows, threads, t).len() * row_elements);
        let mut ys = split_lengths(y, lengths());
        let mut indices = split_lengths(index, lengths().map(|length| if keep { length } else { 0 }));
        let mut parts: [(&mut [E], &mut [u8]); MAX_THREADS] =
            std::array::from_fn(|t| (std::mem::take(&mut ys[t]), std::mem::take(&mut indices[t])));
        self.cpu.team.run_parts(&mut parts[..threads], &|thread, (y, index)| {
            for (position, row) in split(rows, threads, thread).enumerate() {
                let (plane, row) = (row / self.output.height, row % self.output.height);
                let to = position * row_elements..(position + 1) * row_elements;
                let x = &x[plane * self.input.plane_elements()..][..self.input.plane_elements()];
                let index = if keep { &mut index[to.clone()] } else { &mut [] };
                let (level, y) = (self.cpu.level, &mut y[to]);
                // Process as many channels at a time as the registers hold keys and indices.
                match self.input.pixel_channels {
                    width if width.is_multiple_of(32) => pool_row::<E, 32>(level, self, row, x, y, index),
                    width if width.is_multiple_of(16) => pool_row::<E, 16>(level, self, row, x, y, index),
                    width if width.is_multiple_of(8) => pool_row::<E, 8>(level, self, row, x, y, index),
                    _ => pool_row::<E, 1>(level, self, row, x, y, index),
                }
                clear_padding(&self.output, plane % self.output.groups, index);
            }
        });
    }

    /// Computes `dx` from `dy` and `index`: each pixel gathers from the windows whose argmax it is.
    pub fn backward<E: LaneElement>(&self, dy: &[E], index: &[u8], dx: &mut [E]) {
        let (threads, rows) = (self.cpu.team.threads(), self.input.planes * self.input.height);
        let row_elements = self.input.row_elements();
        let mut parts = split_lengths(dx, (0..threads).map(|t| split(rows, threads, t).len() * row_elements));
        self.cpu.team.run_parts(&mut parts[..threads], &|thread, part| {
            for (row, dx) in split(rows, threads, thread).zip(part.chunks_exact_mut(row_elements.max(1))) {
                let (row, dy, index) = self.plane_of(row, dy, index);
                let level = self.cpu.level;
                match self.input.pixel_channels {
                    width if width.is_multiple_of(LANES) => gather_lanes(level, self, row, dy, index, dx),
                    width if width.is_multiple_of(8) => {
                        gather_row::<E, E, 8>(level, self, row, dy, index, dx);
                    }
                    _ => gather_row::<E, E, 1>(level, self, row, dy, index, dx),
                }
            }
        });
    }

    /// Computes row `row` of `dx`, counted over all planes, in `f32`. Prefetches `also_read`, which the
    /// caller reads or writes next.
    pub(crate) fn gather<E: LaneElement>(
        &self,
        row: usize,
        dy: &[E],
        index: &[u8],
        also_read: [&[E]; 2],
        dx: &mut [f32],
    ) {
        let (row, dy, index) = self.plane_of(row, dy, index);
        let level = self.cpu.level;
        match self.input.pixel_channels {
            width if width.is_multiple_of(LANES) => {
                gather_lanes_f32(level, self, row, dy, index, also_read, dx);
            }
            width if width.is_multiple_of(8) => gather_row::<E, f32, 8>(level, self, row, dy, index, dx),
            _ => gather_row::<E, f32, 1>(level, self, row, dy, index, dx),
        }
    }

    /// An input row within its plane, and the same plane of `dy` and `index`.
    fn plane_of<'a, E>(&self, row: usize, dy: &'a [E], index: &'a [u8]) -> (usize, &'a [E], &'a [u8]) {
        let (plane, row) = (row / self.input.height, row % self.input.height);
        let elements = self.output.plane_elements();
        let from = plane * elements..(plane + 1) * elements;
        (row, &dy[from.clone()], &index[from])
    }
}

multiversion! {
    fn pool_row / pool_row_body [E: Ordered, const K: usize] [E, K] (
        pool: &MaxPool, row: usize, x: &[E], y: &mut [E], index: &mut [u8],
    )
}

#[inline(always)]
fn pool_row_body<E: Ordered, const K: usize>(
    pool: &MaxPool,
    row: usize,
    x: &[E],
    y: &mut [E],
    index: &mut [u8],
) {
    let (input_row, width) = (pool.input.row_pixels, pool.input.pixel_channels);
    let rows = pool.covers[0][row];
    let upcoming = pool.next_input_rows(row);
    let (zero, masked) = (E::store(0.0).key(), E::index_key(usize::from(RELU_MASKED)));
    for (column, columns) in pool.covers[1].iter().enumerate() {
        let to = column * width;
        for row in upcoming.clone() {
            let pixels = columns.first..(columns.first + pool.strides[1]).min(input_row);
            prefetch_l2(&x[(row * input_row + pixels.start) * width..(row * input_row + pixels.end) * width]);
        }
        for block in (0..width).step_by(K) {
            let number = |i: usize, j: usize| E::index_key((rows.tap + i) * pool.width + columns.tap + j);
            let (mut best, mut argmax) = ([E::MIN_KEY; K], [number(0, 0); K]);
            for i in 0..rows.count {
                for j in 0..columns.count {
                    let at = ((rows.first + i) * input_row + columns.first + j) * width + block;
                    let (x, number) = (&x[at..at + K], number(i, j));
                    // Three loops, because a single one is not vectorised.
                    let mut keys = [E::MIN_KEY; K];
                    for lane in 0..K {
                        keys[lane] = x[lane].key();
                    }
                    for lane in 0..K {
                        argmax[lane] = if keys[lane] > best[lane] { number } else { argmax[lane] };
                    }
                    for lane in 0..K {
                        best[lane] = best[lane].max(keys[lane]);
                    }
                }
            }
            let y = &mut y[to + block..][..K];
            for lane in 0..K {
                y[lane] = E::from_key(best[lane]);
            }
            if !index.is_empty() {
                if pool.mask_relu {
                    for lane in 0..K {
                        argmax[lane] = if best[lane] <= zero { masked } else { argmax[lane] };
                    }
                }
                let index = &mut index[to + block..][..K];
                for lane in 0..K {
                    index[lane] = E::key_index(argmax[lane]);
                }
            }
        }
    }
}

multiversion! {
    fn gather_row / gather_row_body [E: Element, D: Element, const K: usize] [E, D, K] (
        pool: &MaxPool, row: usize, dy: &[E], index: &[u8], dx: &mut [D],
    )
}

#[inline(always)]
fn gather_row_body<E: Element, D: Element, const K: usize>(
    pool: &MaxPool,
    row: usize,
    dy: &[E],
    index: &[u8],
    dx: &mut [D],
) {
    let (output_row, width) = (pool.output.row_pixels, pool.input.pixel_channels);
    let rows = pool.windows[0][row];
    let strides = pool.strides;
    for (column, columns) in pool.windows[1].iter().enumerate() {
        for block in (0..width).step_by(K) {
            let mut sum = [0.0f32; K];
            for i in rows.first..rows.end {
                let row_tap = rows.tap - (i - rows.first) * strides[0];
                for j in columns.first..columns.end {
                    let column_tap = columns.tap - (j - columns.first) * strides[1];
                    let number = (row_tap * pool.width + column_tap) as u32;
                    let at = (i * output_row + j) * width + block;
                    let (argmax, gradient) = (indices::<K>(index, at), load::<E, K>(dy, at));
                    for lane in 0..K {
                        sum[lane] += if argmax[lane] == number { gradient[lane] } else { 0.0 };
                    }
                }
            }
            let to = &mut dx[column * width + block..][..K];
            for lane in 0..K {
                to[lane] = D::store(sum[lane]);
            }
        }
    }
}

with_lanes! {
    fn gather_lanes / gather_lanes_body(pool: &MaxPool, row: usize, dy: &[E], index: &[u8], dx: &mut [E])
}

with_lanes! {
    fn gather_lanes_f32 / gather_lanes_f32_body(
        pool: &MaxPool, row: usize, dy: &[E], index: &[u8], also_read: [&[E]; 2], dx: &mut [f32],
    )
}

/// [`gather_row`] for pixels of whole registers of channels.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn gather_lanes_body<V: Lanes, E: LaneElement>(
    pool: &MaxPool,
    row: usize,
    dy: &[E],
    index: &[u8],
    dx: &mut [E],
) {
    // SAFETY: upheld by the caller.
    unsafe { gather_pixels::<V, E, E>(pool, row, dy, index, [&[]; 2], dx) }
}

/// [`gather_lanes`] in `f32`.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn gather_lanes_f32_body<V: Lanes, E: LaneElement>(
    pool: &MaxPool,
    row: usize,
    dy: &[E],
    index: &[u8],
    also_read: [&[E]; 2],
    dx: &mut [f32],
) {
    // SAFETY: upheld by the caller.
    unsafe { gather_pixels::<V, E, f32>(pool, row, dy, index, also_read, dx) }
}

/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn gather_pixels<V: Lanes, E: LaneElement, D: LaneElement>(
    pool: &MaxPool,
    row: usize,
    dy: &[E],
    index: &[u8],
    mut also_read: [&[E]; 2],
    dx: &mut [D],
) {
    let registers = pool.input.pixel_channels / LANES;
    let (dy, index, dx) = (dy.as_chunks().0, index.as_chunks().0, dx.as_chunks_mut().0);
    let rows = pool.windows[0][row];
    let upcoming = pool.next_output_row(row);
    for (columns, dx) in pool.windows[1].iter().zip(dx.chunks_exact_mut(registers)) {
        if let (Some(row), true) = (upcoming, columns.first < columns.end) {
            let at = (row * pool.output.row_pixels + columns.end - 1) * registers;
            prefetch_l2(&dy[at..at + registers]);
            prefetch_l2(&index[at..at + registers]);
        }
        for map in &mut also_read {
            let (pixel, rest) = map.split_at(pool.input.pixel_channels.min(map.len()));
            prefetch_l2(pixel);
            *map = rest;
        }
        let (fours, rest) = dx.as_chunks_mut::<4>();
        let (mut first, windows) = (0, [&rows, columns]);
        // SAFETY: upheld by the caller.
        unsafe {
            for dx in fours {
                gather::<V, E, D, 4>(pool, windows, first, dy, index, dx);
                first += 4;
            }
            let (pairs, last) = rest.as_chunks_mut::<2>();
            for dx in pairs {
                gather::<V, E, D, 2>(pool, windows, first, dy, index, dx);
                first += 2;
            }
            if let [last] = last {
                gather::<V, E, D, 1>(pool, windows, first, dy, index, std::array::from_mut(last));
            }
        }
    }
}

/// Computes `COUNT` registers of a pixel, starting with register `first` of its channels.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn gather<V: Lanes, E: LaneElement, D: LaneElement, const COUNT: usize>(
    pool: &MaxPool,
    [rows, columns]: [&CoveringWindows; 2],
    first: usize,
    dy: &[[E; LANES]],
    index: &[[u8; LANES]],
    dx: &mut [[D; LANES]; COUNT],
) {
    let registers = pool.input.pixel_channels / LANES;
    // SAFETY: upheld by the caller.
    unsafe {
        let mut sums = [V::splat(0.0); COUNT];
        for i in rows.first..rows.end {
            let row_tap = rows.tap - (i - rows.first) * pool.strides[0];
            for j in columns.first..columns.end {
                let column_tap = columns.tap - (j - columns.first) * pool.strides[1];
                let number = (row_tap * pool.width + column_tap) as u8;
                let at = (i * pool.output.row_pixels + j) * registers + first;
                let (dy, index) = (&dy[at..at + COUNT], &index[at..at + COUNT]);
                for register in 0..COUNT {
                    let gradient = E::load_lanes::<V>(&dy[register]);
                    sums[register] = sums[register].add_where_byte(gradient, &index[register], number);
                }
            }
        }
        for register in 0..COUNT {
            D::store_lanes(sums[register], &mut dx[register]);
        }
    }
}

#[cfg(test)]
mod tests;
