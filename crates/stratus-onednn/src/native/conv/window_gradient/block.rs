//! A block of outputs: rearranges and multiplies its windows and gradients.

use super::arithmetic::{TWO, TwoRegisters, WindowArithmetic};
use super::{Band, LANES, MAX_STRIP_FILTERS, Range, ThreadScratch, WindowGradient};
use crate::native::simd::{CACHE_LINE, Element, prefetch_element};
use std::arch::x86_64::{
    _mm512_add_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_storeu_ps,
};

/// Adds a band to the sums, block by block.
///
/// # Safety
/// The CPU must have the instructions that `U` proves.
#[inline(always)]
pub unsafe fn add_band<U: WindowArithmetic>(
    kernel: &WindowGradient<U>,
    band: &Band,
    next: Option<&Band>,
    [x, dy]: [&[U::Element]; 2],
    share: &mut ThreadScratch<'_>,
) {
    let image: &mut [U::Element] = bytemuck::cast_slice_mut(share.image);
    kernel.copy_padded(band, x, image);
    let block = |first: usize| first..(first + kernel.columns).min(kernel.column_groups());
    for first in (0..kernel.column_groups()).step_by(kernel.columns) {
        let (groups, following) = (block(first), first + kernel.columns);
        // SAFETY: upheld by the caller, here and below.
        unsafe {
            rearrange_windows(kernel, band, groups.clone(), image, share.windows);
            rearrange_gradients(kernel, band, groups.clone(), dy, share.gradients);
            add_bias::<U>(&share.gradients[..groups.len() * band.rows.len() * kernel.filters], share.bias);
        }
        let coming = if following < kernel.column_groups() {
            Some((band, following))
        } else {
            next.map(|next| (next, 0))
        };
        let mut upcoming =
            UpcomingGradients::new(kernel, coming.map(|(band, first)| (band, block(first))), dy);
        let block = [groups.len(), band.rows.len()];
        for strip in 0..kernel.strips {
            let at = strip * kernel.strip_registers * LANES;
            let (windows, sums) = (&share.windows[at..], &mut share.sums[at..]);
            let (gradients, upcoming) = (&*share.gradients, &mut upcoming);
            unsafe {
                match kernel.strip_registers {
                    1 => add_strip::<U, MAX_STRIP_FILTERS, 1>(
                        kernel, block, windows, gradients, upcoming, sums,
                    ),
                    2 => add_strip::<U, MAX_STRIP_FILTERS, 2>(
                        kernel, block, windows, gradients, upcoming, sums,
                    ),
                    3 => add_strip::<U, MAX_STRIP_FILTERS, 3>(
                        kernel, block, windows, gradients, upcoming, sums,
                    ),
                    4 => add_strip::<U, { MAX_STRIP_FILTERS / 2 }, 4>(
                        kernel, block, windows, gradients, upcoming, sums,
                    ),
                    5 => add_strip::<U, { MAX_STRIP_FILTERS / 2 }, 5>(
                        kernel, block, windows, gradients, upcoming, sums,
                    ),
                    _ => add_strip::<U, { MAX_STRIP_FILTERS / 2 }, 6>(
                        kernel, block, windows, gradients, upcoming, sums,
                    ),
                }
            }
        }
    }
}

/// The part of `dy` that the next block reads. Its rows are too far apart for the hardware prefetcher, so an
/// equal part is prefetched with every few filters.
struct UpcomingGradients<'a, E> {
    dy: &'a [E],
    /// The elements of a row of the block.
    row: usize,
    /// The elements between the starts of two rows of the map.
    row_stride: usize,
    /// The cache lines of a row, and of all rows.
    lines: [usize; 2],
    next: usize,
    part: usize,
}

impl<'a, E: Element> UpcomingGradients<'a, E> {
    fn new<U: WindowArithmetic<Element = E>>(
        kernel: &WindowGradient<U>,
        block: Option<(&Band, Range<usize>)>,
        dy: &'a [E],
    ) -> Self {
        let row_stride = kernel.output[1] * kernel.filters;
        let Some((band, groups)) = block else {
            return Self { dy: &[], row: 0, row_stride, lines: [0; 2], next: 0, part: 0 };
        };
        let first = (band.image * kernel.output[0] + band.rows.start) * row_stride;
        let columns =
            groups.start * U::PIXELS_PER_LANE..(groups.end * U::PIXELS_PER_LANE).min(kernel.output[1]);
        let row = columns.len() * kernel.filters;
        let lines = (row * size_of::<E>()).div_ceil(CACHE_LINE);
        let all = lines * band.rows.len();
        let part = all.div_ceil(kernel.strips * (kernel.filters / kernel.filters_at_once()));
        Self {
            dy: &dy[first + columns.start * kernel.filters..],
            row,
            row_stride,
            lines: [lines, all],
            next: 0,
            part,
        }
    }

    #[inline(always)]
    fn prefetch(&mut self) {
        let [row_lines, all] = self.lines;
        for line in self.next..(self.next + self.part).min(all) {
            let within = (line % row_lines * (CACHE_LINE / size_of::<E>())).min(self.row);
            prefetch_element(self.dy, line / row_lines * self.row_stride + within);
        }
        self.next += self.part;
    }
}

/// Writes `windows[group][input row][kw · C]`.
///
/// # Safety
/// As [`add_band`] requires.
#[inline(always)]
unsafe fn rearrange_windows<U: WindowArithmetic>(
    kernel: &WindowGradient<U>,
    band: &Band,
    groups: Range<usize>,
    image: &[U::Element],
    windows: &mut [f32],
) {
    let (window_row, input_rows) = (kernel.window_row(), kernel.input_rows(band.rows.len()));
    let row_stride = kernel.stride[1] * kernel.channels;
    let rest = TwoRegisters::first(window_row % TWO);
    for (group, windows) in groups.zip(windows.chunks_exact_mut(input_rows * window_row)) {
        for (row, to) in windows.chunks_exact_mut(window_row).enumerate() {
            // Padded rows have all columns of the last group.
            let row = &image[row * kernel.pitch() + group * U::PIXELS_PER_LANE * row_stride..];
            assert!(row.len() >= (U::PIXELS_PER_LANE - 1) * row_stride + window_row, "unexpected row length");
            let second = (U::PIXELS_PER_LANE > 1).then(|| row.as_ptr().wrapping_add(row_stride));
            // SAFETY: upheld by the caller; the assertion guarantees the length.
            unsafe { interleave::<U>(row.as_ptr(), second, to, rest) };
        }
    }
}

/// Writes `gradients[group][output row][filters]`.
///
/// # Safety
/// As [`add_band`] requires.
#[inline(always)]
unsafe fn rearrange_gradients<U: WindowArithmetic>(
    kernel: &WindowGradient<U>,
    band: &Band,
    groups: Range<usize>,
    dy: &[U::Element],
    gradients: &mut [f32],
) {
    let ([height, width], filters) = (kernel.output, kernel.filters);
    let rest = TwoRegisters::first(filters % TWO);
    for (group, gradients) in groups.zip(gradients.chunks_exact_mut(band.rows.len() * filters)) {
        for (row, to) in band.rows.clone().zip(gradients.chunks_exact_mut(filters)) {
            let pixel = |x: usize| {
                let at = ((band.image * height + row) * width + x) * filters;
                dy[at..][..filters].as_ptr()
            };
            let column = group * U::PIXELS_PER_LANE;
            let second = (U::PIXELS_PER_LANE > 1 && column + 1 < width).then(|| pixel(column + 1));
            // SAFETY: upheld by the caller; both pixels have all filters.
            unsafe { interleave::<U>(pixel(column), second, to, rest) };
        }
    }
}

/// Adds a block's gradients to the sums of the bias, summed per block first: sums over whole maps are too
/// long for plain `f32` accumulation.
///
/// # Safety
/// As [`add_band`] requires.
#[inline(always)]
unsafe fn add_bias<U: WindowArithmetic>(gradients: &[f32], bias: &mut [f32]) {
    let filters = bias.len();
    for (register, bias) in bias.chunks_mut(LANES).enumerate() {
        let mut lanes = [0.0; LANES];
        // SAFETY: upheld by the caller; sixteen lanes.
        unsafe {
            let mut sums = _mm512_setzero_ps();
            for filters in gradients.chunks_exact(filters) {
                lanes[..bias.len()].copy_from_slice(&filters[register * LANES..][..bias.len()]);
                sums = U::add_lanes(sums, _mm512_loadu_si512(lanes.as_ptr().cast()));
            }
            _mm512_storeu_ps(lanes.as_mut_ptr(), sums);
        }
        bias.iter_mut().zip(lanes).for_each(|(bias, sum)| *bias += sum);
    }
}

/// Adds a block to `REGISTERS` registers of every filter's window, starting where `windows` and `sums` do.
///
/// ```text
/// sums[FILTERS][REGISTERS] += gradients[group][row][filter] · windows[group][row · stride][REGISTERS]
/// ```
///
/// # Safety
/// As [`add_band`] requires.
#[inline(always)]
unsafe fn add_strip<U: WindowArithmetic, const FILTERS: usize, const REGISTERS: usize>(
    kernel: &WindowGradient<U>,
    [groups, rows]: [usize; 2],
    windows: &[f32],
    gradients: &[f32],
    upcoming: &mut UpcomingGradients<'_, U::Element>,
    sums: &mut [f32],
) {
    let (filters, filter_stride) = (kernel.filters, kernel.window_sums());
    let (group_stride, step) =
        (kernel.input_rows(rows) * kernel.window_row(), kernel.stride[0] * kernel.window_row());
    let last = (groups - 1) * group_stride + (rows - 1) * step;
    assert!(
        windows.len() >= last + REGISTERS * LANES
            && gradients.len() >= groups * rows * filters
            && sums.len() >= (filters - 1) * filter_stride + REGISTERS * LANES
            && filters.is_multiple_of(FILTERS),
        "unexpected block size"
    );
    for filter in (0..filters).step_by(FILTERS) {
        upcoming.prefetch();
        // SAFETY: upheld by the caller; the assertion guarantees the lengths of windows, gradients and sums.
        unsafe {
            let to = sums.as_mut_ptr().add(filter * filter_stride);
            // Summed per block first, for the same reason as the bias.
            let mut sums = [[_mm512_setzero_ps(); REGISTERS]; FILTERS];
            let mut gradient = gradients.as_ptr().add(filter).cast::<i32>();
            for group in 0..groups {
                let mut window = windows.as_ptr().add(group * group_stride);
                for _ in 0..rows {
                    let mut lanes = [_mm512_setzero_si512(); REGISTERS];
                    for (part, lanes) in lanes.iter_mut().enumerate() {
                        *lanes = _mm512_loadu_si512(window.add(part * LANES).cast());
                    }
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let value = _mm512_set1_epi32(*gradient.add(row));
                        for (sum, lanes) in sums.iter_mut().zip(lanes) {
                            *sum = U::multiply_add(*sum, value, lanes);
                        }
                    }
                    // After the last row these point beyond the slices, and are not read.
                    window = window.wrapping_add(step);
                    gradient = gradient.wrapping_add(filters);
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                for (part, sum) in sums.iter().enumerate() {
                    let to = to.add(row * filter_stride + part * LANES);
                    _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), *sum));
                }
            }
        }
    }
}

/// Writes `to.len()` lanes; `rest` is the mask of the last two registers. See
/// [`WindowArithmetic::interleave`].
///
/// As [`WindowArithmetic::interleave`] requires.
#[inline(always)]
unsafe fn interleave<U: WindowArithmetic>(
    first: *const U::Element,
    second: Option<*const U::Element>,
    to: &mut [f32],
    rest: TwoRegisters,
) {
    let whole = to.len() / TWO * TWO;
    for at in (0..to.len()).step_by(TWO) {
        let lanes = if at < whole { TwoRegisters::ALL } else { rest };
        // SAFETY: upheld by the caller.
        unsafe {
            U::interleave(first.add(at), second.map(|second| second.add(at)), to.as_mut_ptr().add(at), lanes);
        };
    }
}
