//! Max-pooling alone, with any window, stride and padding.

use super::pool::{clear_padding, load, numbers};
use super::rows::Geometry;
use super::simd::{Element, Level, multiversion};
use super::threads::{MAX_THREADS, Team, cut, split};
use std::ops::Range;

/// A pooling as the kernels need it. Input and output have the same channels in the same groups.
#[derive(Clone, Debug)]
pub struct MaxPool {
    /// The input's geometry.
    pub input: Geometry,
    /// The output's geometry.
    pub output: Geometry,
    /// Window `[vertical, horizontal]`.
    pub kernel: [usize; 2],
    /// Stride.
    pub stride: [usize; 2],
    /// Padding on each side.
    pub padding: [usize; 2],
    /// Instructions.
    pub level: Level,
    /// Threads.
    pub team: Team,
}

/// Calls `$function` with the widest block of channels that divides the width.
macro_rules! by_block {
    ($width:expr, $function:ident::<$element:ty>($($argument:expr),* $(,)?)) => {
        match $width {
            width if width.is_multiple_of(16) => $function::<$element, 16>($($argument),*),
            width if width.is_multiple_of(8) => $function::<$element, 8>($($argument),*),
            _ => $function::<$element, 1>($($argument),*),
        }
    };
}

impl MaxPool {
    /// What window `output` covers of an axis: the first position, the tap that falls on it, how many positions.
    fn cover(&self, axis: usize, output: usize, extent: usize) -> (usize, usize, usize) {
        let start = output * self.stride[axis];
        let first = start.saturating_sub(self.padding[axis]);
        let tap = (first + self.padding[axis]) - start;
        let end = (start + self.kernel[axis]).saturating_sub(self.padding[axis]).min(extent);
        (first, tap, end.saturating_sub(first))
    }

    /// The windows of an axis that a position lies in.
    fn windows(&self, axis: usize, position: usize, outputs: usize) -> Range<usize> {
        let padded = position + self.padding[axis];
        let first = (padded + 1).saturating_sub(self.kernel[axis]).div_ceil(self.stride[axis]);
        first..(padded / self.stride[axis] + 1).min(outputs)
    }

    /// `y` and, where it is not empty, `index`. NaN wins.
    pub fn forward<E: Element>(&self, x: &[E], y: &mut [E], index: &mut [u8]) {
        let (threads, planes) = (self.team.threads(), self.input.planes);
        let (in_plane, out_plane) = (self.input.plane_elements(), self.output.plane_elements());
        let keep = !index.is_empty();
        let lengths = || (0..threads).map(|t| split(planes, threads, t).len() * out_plane);
        let mut ys = cut(y, lengths());
        let mut indices = cut(index, lengths().map(|length| if keep { length } else { 0 }));
        let mut parts: [(&mut [E], &mut [u8]); MAX_THREADS] =
            std::array::from_fn(|t| (std::mem::take(&mut ys[t]), std::mem::take(&mut indices[t])));
        self.team.run_parts(&mut parts[..threads], &|thread, (y, index)| {
            for (position, plane) in split(planes, threads, thread).enumerate() {
                let to = position * out_plane..(position + 1) * out_plane;
                let x = &x[plane * in_plane..][..in_plane];
                let index = if keep { &mut index[to.clone()] } else { &mut [] };
                by_block!(self.input.width, pool_plane::<E>(self.level, self, x, &mut y[to], index));
                clear_padding(&self.output, plane % self.output.groups, index);
            }
        });
    }

    /// `dx` from `dy` and `index`. Windows may overlap: each input element gathers from the windows that it won.
    pub fn backward<E: Element>(&self, dy: &[E], index: &[u8], dx: &mut [E]) {
        let (threads, planes) = (self.team.threads(), self.input.planes);
        let (in_plane, out_plane) = (self.input.plane_elements(), self.output.plane_elements());
        let mut parts = cut(dx, (0..threads).map(|t| split(planes, threads, t).len() * in_plane));
        self.team.run_parts(&mut parts[..threads], &|thread, part| {
            for (position, plane) in split(planes, threads, thread).enumerate() {
                let from = plane * out_plane..(plane + 1) * out_plane;
                let (dy, index) = (&dy[from.clone()], &index[from]);
                let dx = &mut part[position * in_plane..][..in_plane];
                by_block!(self.input.width, gather_plane::<E>(self.level, self, dy, index, dx));
            }
        });
    }
}

multiversion! {
    fn pool_plane / pool_plane_body [E: Element, const K: usize] [E, K] (
        pool: &MaxPool, x: &[E], y: &mut [E], index: &mut [u8],
    )
}

#[inline(always)]
fn pool_plane_body<E: Element, const K: usize>(pool: &MaxPool, x: &[E], y: &mut [E], index: &mut [u8]) {
    let (input, output, width) = (&pool.input, &pool.output, pool.input.width);
    for (row, column) in (0..output.height).flat_map(|row| (0..output.row).map(move |column| (row, column))) {
        let (top, first_row, rows) = pool.cover(0, row, input.height);
        let (left, first_column, columns) = pool.cover(1, column, input.row);
        let to = (row * output.row + column) * width;
        for block in (0..width).step_by(K) {
            let at = |i: usize, j: usize| ((top + i) * input.row + left + j) * width + block;
            let number = |i: usize, j: usize| ((first_row + i) * pool.kernel[1] + first_column + j) as u32;
            let (mut best, mut winner) = ([f32::NEG_INFINITY; K], [number(0, 0); K]);
            for i in 0..rows {
                for j in 0..columns {
                    let (value, number) = (load::<E, K>(x, at(i, j)), number(i, j));
                    for lane in 0..K {
                        // The first NaN wins, and nothing is larger.
                        let wins = (value[lane] > best[lane]) | (value[lane].is_nan() & !best[lane].is_nan());
                        best[lane] = if wins { value[lane] } else { best[lane] };
                        winner[lane] = if wins { number } else { winner[lane] };
                    }
                }
            }
            let y = &mut y[to + block..][..K];
            for lane in 0..K {
                y[lane] = E::store(best[lane]);
            }
            if !index.is_empty() {
                let index = &mut index[to + block..][..K];
                for lane in 0..K {
                    index[lane] = winner[lane] as u8;
                }
            }
        }
    }
}

multiversion! {
    fn gather_plane / gather_plane_body [E: Element, const K: usize] [E, K] (
        pool: &MaxPool, dy: &[E], index: &[u8], dx: &mut [E],
    )
}

#[inline(always)]
fn gather_plane_body<E: Element, const K: usize>(pool: &MaxPool, dy: &[E], index: &[u8], dx: &mut [E]) {
    let (input, output, width) = (&pool.input, &pool.output, pool.input.width);
    for (row, column) in (0..input.height).flat_map(|row| (0..input.row).map(move |column| (row, column))) {
        let rows = pool.windows(0, row, output.height);
        let columns = pool.windows(1, column, output.row);
        for block in (0..width).step_by(K) {
            let mut sum = [0.0f32; K];
            for i in rows.clone() {
                for j in columns.clone() {
                    let tap = [
                        row + pool.padding[0] - i * pool.stride[0],
                        column + pool.padding[1] - j * pool.stride[1],
                    ];
                    let number = (tap[0] * pool.kernel[1] + tap[1]) as u32;
                    let at = (i * output.row + j) * width + block;
                    let (winner, gradient) = (numbers::<K>(index, at), load::<E, K>(dy, at));
                    for lane in 0..K {
                        sum[lane] += if winner[lane] == number { gradient[lane] } else { 0.0 };
                    }
                }
            }
            let to = &mut dx[(row * input.row + column) * width + block..][..K];
            for lane in 0..K {
                to[lane] = E::store(sum[lane]);
            }
        }
    }
}
