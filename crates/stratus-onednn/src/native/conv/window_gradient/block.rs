//! What a block of the output gives to the sums: its windows and gradients are laid out, then multiplied.

use super::lanes::{TWO, TwoRegisters, WindowArithmetic};
use super::{Band, LANES, Range, Share, TALLEST, WindowGradient};
use crate::native::simd::{CACHE_LINE, Element, prefetch_element};
use std::arch::x86_64::{
    _mm512_add_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_storeu_ps,
};

/// Adds what a band gives, block by block.
///
/// # Safety
/// The processor must have what `U` proves.
#[inline(always)]
pub unsafe fn add_band<U: WindowArithmetic>(
    of: &WindowGradient<U>,
    band: &Band,
    next: Option<&Band>,
    [x, dy]: [&[U::Element]; 2],
    share: &mut Share<'_>,
) {
    let image: &mut [U::Element] = bytemuck::cast_slice_mut(share.image);
    of.pad(band, x, image);
    let block = |first: usize| first..(first + of.columns).min(of.groups());
    for first in (0..of.groups()).step_by(of.columns) {
        let (groups, behind) = (block(first), first + of.columns);
        // SAFETY: the caller's, here and below.
        unsafe {
            lay_out_windows(of, band, groups.clone(), image, share.windows);
            lay_out_gradients(of, band, groups.clone(), dy, share.gradients);
            add_bias::<U>(&share.gradients[..groups.len() * band.rows.len() * of.filters], share.bias);
        }
        let coming = if behind < of.groups() { Some((band, behind)) } else { next.map(|next| (next, 0)) };
        let mut ahead = Ahead::new(of, coming.map(|(band, first)| (band, block(first))), dy);
        let block = [groups.len(), band.rows.len()];
        for strip in 0..of.strips {
            let at = strip * of.wide * LANES;
            let (windows, sums) = (&share.windows[at..], &mut share.sums[at..]);
            let (gradients, ahead) = (&*share.gradients, &mut ahead);
            unsafe {
                match of.wide {
                    1 => add_strip::<U, TALLEST, 1>(of, block, windows, gradients, ahead, sums),
                    2 => add_strip::<U, TALLEST, 2>(of, block, windows, gradients, ahead, sums),
                    3 => add_strip::<U, TALLEST, 3>(of, block, windows, gradients, ahead, sums),
                    4 => add_strip::<U, { TALLEST / 2 }, 4>(of, block, windows, gradients, ahead, sums),
                    5 => add_strip::<U, { TALLEST / 2 }, 5>(of, block, windows, gradients, ahead, sums),
                    _ => add_strip::<U, { TALLEST / 2 }, 6>(of, block, windows, gradients, ahead, sums),
                }
            }
        }
    }
}

/// The output's gradient for the block that comes next, of which an equal part is asked for with every few filters: its rows lie too far from each
/// other for what the processor foresees by itself.
struct Ahead<'a, E> {
    dy: &'a [E],
    /// Elements of a row, and from row to row.
    row: usize,
    apart: usize,
    /// Lines of caches in a row, and in all rows.
    lines: [usize; 2],
    next: usize,
    part: usize,
}

impl<'a, E: Element> Ahead<'a, E> {
    fn new<U: WindowArithmetic<Element = E>>(
        of: &WindowGradient<U>,
        block: Option<(&Band, Range<usize>)>,
        dy: &'a [E],
    ) -> Self {
        let apart = of.output[1] * of.filters;
        let Some((band, groups)) = block else {
            return Self { dy: &[], row: 0, apart, lines: [0; 2], next: 0, part: 0 };
        };
        let first = (band.image * of.output[0] + band.rows.start) * apart;
        let columns = groups.start * U::GROUP..(groups.end * U::GROUP).min(of.output[1]);
        let row = columns.len() * of.filters;
        let lines = (row * size_of::<E>()).div_ceil(CACHE_LINE);
        let all = lines * band.rows.len();
        let part = all.div_ceil(of.strips * (of.filters / of.tall()));
        Self { dy: &dy[first + columns.start * of.filters..], row, apart, lines: [lines, all], next: 0, part }
    }

    #[inline(always)]
    fn ask(&mut self) {
        let [of_row, all] = self.lines;
        for line in self.next..(self.next + self.part).min(all) {
            let within = (line % of_row * (CACHE_LINE / size_of::<E>())).min(self.row);
            prefetch_element(self.dy, line / of_row * self.apart + within);
        }
        self.next += self.part;
    }
}

/// Lays out what groups of columns see of the rows of a band, group by group, row by row.
///
/// # Safety
/// As [`add_band`].
#[inline(always)]
unsafe fn lay_out_windows<U: WindowArithmetic>(
    of: &WindowGradient<U>,
    band: &Band,
    groups: Range<usize>,
    image: &[U::Element],
    windows: &mut [f32],
) {
    let (stretch, seen) = (of.stretch(), of.seen(band.rows.len()));
    let apart = of.stride[1] * of.channels;
    let rest = TwoRegisters::first(stretch % TWO);
    for (group, windows) in groups.zip(windows.chunks_exact_mut(seen * stretch)) {
        for (row, to) in windows.chunks_exact_mut(stretch).enumerate() {
            // All pixels of a group have a place in a padded row.
            let row = &image[row * of.pitch() + group * U::GROUP * apart..];
            assert!(row.len() >= (U::GROUP - 1) * apart + stretch, "a row of another length");
            let second = (U::GROUP > 1).then(|| row.as_ptr().wrapping_add(apart));
            // SAFETY: the caller's; the assertion says that the numbers are there.
            unsafe { pair::<U>(row.as_ptr(), second, to, rest) };
        }
    }
}

/// Lays out the output's gradient at groups of columns, group by group, row by row.
///
/// # Safety
/// As [`add_band`].
#[inline(always)]
unsafe fn lay_out_gradients<U: WindowArithmetic>(
    of: &WindowGradient<U>,
    band: &Band,
    groups: Range<usize>,
    dy: &[U::Element],
    gradients: &mut [f32],
) {
    let ([height, width], filters) = (of.output, of.filters);
    let rest = TwoRegisters::first(filters % TWO);
    for (group, gradients) in groups.zip(gradients.chunks_exact_mut(band.rows.len() * filters)) {
        for (row, to) in band.rows.clone().zip(gradients.chunks_exact_mut(filters)) {
            let pixel = |x: usize| {
                let at = ((band.image * height + row) * width + x) * filters;
                dy[at..][..filters].as_ptr()
            };
            let column = group * U::GROUP;
            let second = (U::GROUP > 1 && column + 1 < width).then(|| pixel(column + 1));
            // SAFETY: the caller's; the filters of both pixels are there.
            unsafe { pair::<U>(pixel(column), second, to, rest) };
        }
    }
}

/// Adds the gradients of a block to the sums of the bias, which are those of the filters, or none. A block first: the sum over a map is longer than
/// floats can add up one by one.
///
/// # Safety
/// As [`add_band`].
#[inline(always)]
unsafe fn add_bias<U: WindowArithmetic>(gradients: &[f32], bias: &mut [f32]) {
    let filters = bias.len();
    for (register, bias) in bias.chunks_mut(LANES).enumerate() {
        let mut lanes = [0.0; LANES];
        // SAFETY: the caller's; sixteen lanes.
        unsafe {
            let mut sums = _mm512_setzero_ps();
            for filters in gradients.chunks_exact(filters) {
                lanes[..bias.len()].copy_from_slice(&filters[register * LANES..][..bias.len()]);
                sums = U::add_up(sums, _mm512_loadu_si512(lanes.as_ptr().cast()));
            }
            _mm512_storeu_ps(lanes.as_mut_ptr(), sums);
        }
        bias.iter_mut().zip(lanes).for_each(|(bias, sum)| *bias += sum);
    }
}

/// Adds what a block of so many groups of columns and rows gives to `WIDE` registers of every filter's window, the first of which begins where `windows`
/// and `sums` do.
///
/// # Safety
/// As [`add_band`].
#[inline(always)]
unsafe fn add_strip<U: WindowArithmetic, const TALL: usize, const WIDE: usize>(
    of: &WindowGradient<U>,
    [groups, rows]: [usize; 2],
    windows: &[f32],
    gradients: &[f32],
    ahead: &mut Ahead<'_, U::Element>,
    sums: &mut [f32],
) {
    let (filters, of_filter) = (of.filters, of.sums());
    let (of_group, step) = (of.seen(rows) * of.stretch(), of.stride[0] * of.stretch());
    let last = (groups - 1) * of_group + (rows - 1) * step;
    assert!(
        windows.len() >= last + WIDE * LANES
            && gradients.len() >= groups * rows * filters
            && sums.len() >= (filters - 1) * of_filter + WIDE * LANES
            && filters.is_multiple_of(TALL),
        "a block of another size"
    );
    for filter in (0..filters).step_by(TALL) {
        ahead.ask();
        // SAFETY: the caller's; the assertion says that windows, gradients and sums reach as far.
        unsafe {
            let to = sums.as_mut_ptr().add(filter * of_filter);
            // Of this block alone, for the same reason as those of the bias.
            let mut sums = [[_mm512_setzero_ps(); WIDE]; TALL];
            let mut gradient = gradients.as_ptr().add(filter).cast::<i32>();
            for group in 0..groups {
                let mut window = windows.as_ptr().add(group * of_group);
                for _ in 0..rows {
                    let mut lanes = [_mm512_setzero_si512(); WIDE];
                    for (part, lanes) in lanes.iter_mut().enumerate() {
                        *lanes = _mm512_loadu_si512(window.add(part * LANES).cast());
                    }
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let value = _mm512_set1_epi32(*gradient.add(row));
                        for (sum, lanes) in sums.iter_mut().zip(lanes) {
                            *sum = U::multiply_add(*sum, value, lanes);
                        }
                    }
                    // Behind the last one these point nowhere, and are not read.
                    window = window.wrapping_add(step);
                    gradient = gradient.wrapping_add(filters);
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                for (part, sum) in sums.iter().enumerate() {
                    let to = to.add(row * of_filter + part * LANES);
                    _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), *sum));
                }
            }
        }
    }
}

/// Writes `to.len()` lanes, the last of which are `rest`; see [`WindowArithmetic::pair`].
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn pair<U: WindowArithmetic>(
    first: *const U::Element,
    second: Option<*const U::Element>,
    to: &mut [f32],
    rest: TwoRegisters,
) {
    let whole = to.len() / TWO * TWO;
    for at in (0..to.len()).step_by(TWO) {
        let lanes = if at < whole { TwoRegisters::ALL } else { rest };
        // SAFETY: the caller's.
        unsafe {
            U::pair(first.add(at), second.map(|second| second.add(at)), to.as_mut_ptr().add(at), lanes);
        };
    }
}
