//! Packing maps into panels.
//!
//! A row of a panel is 64 bytes: the 16 `f32` channels of a term, or the bf16 channels of two terms,
//! interleaved as VNNI requires. Packing reads each map once per chunk (`x`: once per column of taps) and
//! writes the same number of bytes.

use super::arithmetic::{PanelArithmetic, Panels};
use super::{BLOCK, Chunk, PanelGradient, ROWS, Range};
use crate::native::conv::tiles::{MatrixUnit, TERMS, TILE, channel_mask, load_channels};
use crate::native::lanes::transpose;
use crate::native::simd::{Bf16, Element};
use std::arch::x86_64::{
    __m512i, __mmask16, _mm512_add_ps, _mm512_and_si512, _mm512_castsi512_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_maskz_loadu_ps, _mm512_permutex2var_epi16, _mm512_set1_epi32,
    _mm512_setzero_ps, _mm512_setzero_si512, _mm512_slli_epi32, _mm512_storeu_ps, _mm512_storeu_si512,
};

/// The rows of a panel written at once.
const ROWS_AT_ONCE: usize = 16;

/// Permutations that interleave two registers: their first halves, their second halves.
const INTERLEAVE: [[u16; BLOCK]; 2] = {
    let mut pairs = [[0; BLOCK]; 2];
    let mut i = 0;
    while i < BLOCK {
        pairs[0][i] = (i / 2 + i % 2 * BLOCK) as u16;
        pairs[1][i] = (ROWS + i / 2 + i % 2 * BLOCK) as u16;
        i += 1;
    }
    pairs
};

/// [`INTERLEAVE`] in registers.
#[inline]
#[target_feature(enable = "avx512f")]
fn interleave() -> [__m512i; 2] {
    // SAFETY: 64 bytes each.
    unsafe {
        [_mm512_loadu_si512(INTERLEAVE[0].as_ptr().cast()), _mm512_loadu_si512(INTERLEAVE[1].as_ptr().cast())]
    }
}

/// Adds sixteen pairs of bf16 to sixteen sums.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn add_pairs(pairs: __m512i, sums: &mut [f32; ROWS]) {
    let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
    let even = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
    let odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, upper));
    // SAFETY: 16 numbers.
    unsafe {
        let sum = _mm512_add_ps(_mm512_loadu_ps(sums.as_ptr()), _mm512_add_ps(even, odd));
        _mm512_storeu_ps(sums.as_mut_ptr(), sum);
    }
}

impl Panels<'_, Bf16> {
    /// Stores pairs of pixels, given by the offsets of their channels, as rows `row..` of the panels of some
    /// blocks of 32 channels.
    ///
    /// # Safety
    /// AVX-512; all channels of the pixels are within the map.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub unsafe fn store_pairs(
        &self,
        blocks: Range<usize>,
        pixels: &[[Option<usize>; 2]],
        panels: &mut [Bf16],
        row: usize,
    ) {
        let [low, high] = interleave();
        for (number, block) in blocks.enumerate() {
            let mask = channel_mask(self.channels, block);
            let [left, right] = self.rows(panels, number, row..row + pixels.len());
            let to = left.chunks_exact_mut(TERMS).zip(right.chunks_exact_mut(TERMS));
            for ([first, second], (left, right)) in pixels.iter().zip(to) {
                // SAFETY: upheld by the caller; 64 bytes are written of either half.
                unsafe {
                    let first = load_channels(self.map, first.map(|at| at + block * BLOCK), mask);
                    let second = load_channels(self.map, second.map(|at| at + block * BLOCK), mask);
                    let halves = [
                        _mm512_permutex2var_epi16(first, low, second),
                        _mm512_permutex2var_epi16(first, high, second),
                    ];
                    _mm512_storeu_si512(left.as_mut_ptr().cast(), halves[0]);
                    _mm512_storeu_si512(right.as_mut_ptr().cast(), halves[1]);
                }
            }
        }
    }
}

impl Panels<'_, f32> {
    /// Stores pixels, given by the offsets of their channels, as rows `row..` of the panels of some blocks of
    /// 32 channels.
    ///
    /// # Safety
    /// AVX-512; all channels of the pixels are within the map.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub unsafe fn store_pixels(
        &self,
        blocks: Range<usize>,
        pixels: &[[Option<usize>; 2]],
        panels: &mut [f32],
        row: usize,
    ) {
        for (number, block) in blocks.enumerate() {
            let mask = channel_mask(self.channels, block);
            for (half, to) in self.rows(panels, number, row..row + pixels.len()).into_iter().enumerate() {
                let mask = (mask >> (half * ROWS)) as __mmask16;
                for ([pixel, _], to) in pixels.iter().zip(to.chunks_exact_mut(ROWS)) {
                    let values = match pixel {
                        Some(at) => {
                            let from = self.map.as_ptr().wrapping_add(at + block * BLOCK + half * ROWS);
                            // SAFETY: upheld by the caller; masked elements are not read.
                            unsafe { _mm512_maskz_loadu_ps(mask, from) }
                        }
                        None => _mm512_setzero_ps(),
                    };
                    // SAFETY: 64 bytes.
                    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), values) };
                }
            }
        }
    }
}

impl<E: Element> Panels<'_, E> {
    /// A range of rows of the two panels of a block.
    #[inline(always)]
    fn rows<'a>(&self, panels: &'a mut [E], block: usize, rows: Range<usize>) -> [&'a mut [E]; 2] {
        let row = size_of::<[f32; ROWS]>() / size_of::<E>();
        let (left, right) = panels[2 * block * self.panel..].split_at_mut(self.panel);
        [left, right].map(|half| &mut half[rows.start * row..rows.end * row])
    }
}

/// Stores a row of terms as `rows` of the panels; `pixel(column)` is the offset of its channels.
///
/// # Safety
/// AVX-512; all channels of the pixels are within the map.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pack_row<U: PanelArithmetic>(
    map: &Panels<'_, U::Element>,
    blocks: &Range<usize>,
    pixel: impl Fn(usize) -> Option<usize>,
    panels: &mut [U::Element],
    rows: Range<usize>,
) {
    let mut pixels = [[None; 2]; ROWS_AT_ONCE];
    for first in rows.clone().step_by(ROWS_AT_ONCE) {
        let pixels = &mut pixels[..ROWS_AT_ONCE.min(rows.end - first)];
        for (row, pixels) in (first - rows.start..).zip(&mut *pixels) {
            *pixels = [pixel(U::GROUP * row), pixel(U::GROUP * row + 1)];
        }
        // SAFETY: upheld by the caller.
        unsafe { U::store_rows(map, blocks.clone(), pixels, panels, first) };
    }
}

impl PanelGradient<MatrixUnit> {
    /// Packs a chunk of `dy` for AMX: panels of 16 filters, tiles with a row of 32 terms per filter (16×16
    /// transposes of pairs). Adds to the sums of the bias, 16 per filter.
    ///
    /// # Safety
    /// AVX-512 must be available.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn pack_output_by_filters(
        &self,
        chunk: &Chunk,
        filters: &Range<usize>,
        dy: &[Bf16],
        panels: &mut [Bf16],
        mut bias: Option<&mut [f32]>,
    ) {
        let panel = Self::output_panel(chunk.terms);
        let [low, high] = interleave();
        let [height, width] = [0, 1].map(|axis| self.axes[axis].count);
        for tile in 0..chunk.terms.div_ceil(TERMS) {
            let mut pixels = [None; TERMS];
            for (pixel, term) in pixels.iter_mut().zip(tile * TERMS..) {
                let (column, row) = (term % self.columns(), term / self.columns());
                let (image, row) = (row % chunk.images.len(), row / chunk.images.len());
                if row < chunk.rows.len() && column < width {
                    let row = (chunk.images.start + image) * height + chunk.rows.start + row;
                    *pixel = Some((row * width + column) * self.filters);
                }
            }
            for (number, block) in filters.clone().enumerate() {
                let mask = channel_mask(self.filters, block);
                let mut halves = [[_mm512_setzero_si512(); ROWS]; 2];
                for (pair, pixels) in pixels.as_chunks::<2>().0.iter().enumerate() {
                    // SAFETY: filters of a pixel of the map.
                    let [first, second] =
                        pixels.map(|at| unsafe { load_channels(dy, at.map(|at| at + block * BLOCK), mask) });
                    halves[0][pair] = _mm512_permutex2var_epi16(first, low, second);
                    halves[1][pair] = _mm512_permutex2var_epi16(first, high, second);
                }
                for (half, rows) in halves.into_iter().enumerate() {
                    let rows = transpose(rows);
                    let half = 2 * number + half;
                    let to = &mut panels[half * panel + tile * TILE..][..TILE];
                    for (row, to) in rows.iter().zip(to.chunks_exact_mut(TERMS)) {
                        // SAFETY: 64 bytes.
                        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), *row) };
                    }
                    if let Some(bias) = &mut bias {
                        let (sums, _) = bias[half * ROWS * ROWS..].as_chunks_mut();
                        rows.into_iter().zip(sums).for_each(|(row, sums)| add_pairs(row, sums));
                    }
                }
            }
        }
    }
}

impl<U: PanelArithmetic> PanelGradient<U> {
    /// Packs a chunk of `dy` for AVX-512 as [`Self::pack_input`] does `x`: a row per term or pair of terms.
    /// Adds to the sums of the bias, those of all filters for each of 16 rows.
    ///
    /// # Safety
    /// AVX-512 must be available.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn pack_output_by_terms(
        &self,
        chunk: &Chunk,
        filters: &Range<usize>,
        dy: &[U::Element],
        panels: &mut [U::Element],
        mut bias: Option<&mut [f32]>,
    ) {
        let [height, width] = [0, 1].map(|axis| self.axes[axis].count);
        let map = Panels { map: dy, channels: self.filters, panel: Self::output_panel(chunk.terms) };
        let mut next = 0;
        for row in chunk.rows.clone() {
            for image in chunk.images.clone() {
                let pixel =
                    |x: usize| (x < width).then_some(((image * height + row) * width + x) * self.filters);
                let rows = next..next + self.columns() / U::GROUP;
                next = rows.end;
                // SAFETY: filters of a pixel of the map.
                unsafe { pack_row::<U>(&map, filters, pixel, panels, rows) };
            }
        }
        // Zeros up to the end of the last tile.
        unsafe { pack_row::<U>(&map, filters, |_| None, panels, next..next.next_multiple_of(ROWS)) };
        let Some(bias) = &mut bias else { return };
        for (half, sums) in bias.chunks_exact_mut(ROWS * ROWS).enumerate() {
            let (sums, _) = sums.as_chunks_mut::<ROWS>();
            let rows = &panels[half * map.panel..][..next.next_multiple_of(ROWS) * U::TERMS];
            for (number, row) in rows.chunks_exact(U::TERMS).enumerate() {
                // SAFETY: AVX-512 is available; a row has 64 bytes.
                unsafe { U::add_row(_mm512_loadu_si512(row.as_ptr().cast()), &mut sums[number % ROWS]) };
            }
        }
    }

    /// Packs the inputs of one column of taps in a chunk: panels of 16 channels, a row per term or pair of
    /// terms.
    ///
    /// # Safety
    /// AVX-512 must be available.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn pack_input(
        &self,
        chunk: &Chunk,
        column: usize,
        x: &[U::Element],
        panels: &mut [U::Element],
    ) {
        let sizes = [chunk.images.len(), chunk.rows.len()];
        let row_length = self.columns() / U::GROUP;
        let [_, blocks] = self.blocks();
        let [y_axis, x_axis] = &self.axes;
        let (_, offset) = x_axis.taps[column];
        for (class, reach) in y_axis.classes() {
            let (start, _) = self.input_panels(sizes, class);
            let [panel_rows, panel] = self.input_panel(sizes, reach);
            let panels = &mut panels[start..][..2 * blocks * panel];
            let map = Panels { map: x, channels: self.channels, panel };
            for row in 0..chunk.rows.len() + reach {
                let y = y_axis.input_at(chunk.rows.start + row, y_axis.origin() + class.cast_signed());
                for (number, image) in chunk.images.clone().enumerate() {
                    let first = (row * sizes[0] + number) * row_length;
                    let pixel = |x: usize| {
                        let (y, x) = (y?, x_axis.input_at(x, offset).filter(|_| x < x_axis.count)?);
                        Some(((image * y_axis.inputs + y) * x_axis.inputs + x) * self.channels)
                    };
                    // SAFETY: channels of a pixel of the map.
                    unsafe {
                        pack_row::<U>(&map, &(0..blocks), pixel, panels, first..first + row_length);
                    };
                }
            }
            // SAFETY: as above.
            unsafe { pack_row::<U>(&map, &(0..blocks), |_| None, panels, panel_rows..panel_rows + ROWS) };
        }
    }
}
