//! Bringing maps into panels.

use super::{BLOCK, Chunk, Multiply, ROWS, Range, WeightGradient};
use crate::native::conv::tiles::{TERMS, TILE, Unit, load, mask};
use crate::native::lanes::transpose;
use crate::native::simd::Bf16;
use std::arch::x86_64::{
    __m512i, __mmask16, _mm512_add_ps, _mm512_and_si512, _mm512_castsi512_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_maskz_loadu_ps, _mm512_permutex2var_epi16, _mm512_set1_epi32,
    _mm512_setzero_ps, _mm512_setzero_si512, _mm512_slli_epi32, _mm512_storeu_ps, _mm512_storeu_si512,
};

/// Which elements of two registers make pairs, for the first half of both and for the second.
#[inline]
#[target_feature(enable = "avx512f")]
fn pairs() -> [__m512i; 2] {
    [0, ROWS].map(|first| {
        let elements: [u16; BLOCK] = std::array::from_fn(|i| (first + i / 2 + i % 2 * BLOCK) as u16);
        // SAFETY: 64 bytes.
        unsafe { _mm512_loadu_si512(elements.as_ptr().cast()) }
    })
}

/// Adds sixteen pairs of neighbouring bf16 to as many sums.
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

/// A map that is brought into panels of 16 channels, which lie so many elements apart: a row per pair of terms, or per term, channel by channel.
pub struct Panels<'a, E> {
    /// The map, channels last.
    pub map: &'a [E],
    /// Its channels.
    pub channels: usize,
    /// Elements from panel to panel.
    pub panel: usize,
}

impl Panels<'_, Bf16> {
    /// Writes a pair of pixels, given by where their channels begin, as the panels' row `row`: so many blocks of 32 channels.
    ///
    /// # Safety
    /// AVX-512 must be there; all channels of the pixels lie within the map.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub unsafe fn put_pair(
        &self,
        blocks: Range<usize>,
        pixels: [Option<usize>; 2],
        panels: &mut [Bf16],
        row: usize,
    ) {
        let [low, high] = pairs();
        for (number, block) in blocks.enumerate() {
            let mask = mask(self.channels, block);
            let at = |pixel: Option<usize>| pixel.map(|at| at + block * BLOCK);
            // SAFETY: the caller's.
            let [first, second] = unsafe { pixels.map(|pixel| load(self.map, at(pixel), mask)) };
            let halves = [
                _mm512_permutex2var_epi16(first, low, second),
                _mm512_permutex2var_epi16(first, high, second),
            ];
            for (half, values) in halves.into_iter().enumerate() {
                let to = &mut panels[(2 * number + half) * self.panel + row * TERMS..][..TERMS];
                // SAFETY: 64 bytes.
                unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), values) };
            }
        }
    }
}

impl Panels<'_, f32> {
    /// Writes a pixel, given by where its channels begin, as the panels' row `row`: so many blocks of 32 channels.
    ///
    /// # Safety
    /// AVX-512 must be there; all channels of the pixel lie within the map.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub unsafe fn put_pixel(
        &self,
        blocks: Range<usize>,
        pixel: Option<usize>,
        panels: &mut [f32],
        row: usize,
    ) {
        for (number, block) in blocks.enumerate() {
            let mask = mask(self.channels, block);
            for half in 0..2 {
                let values = match pixel {
                    Some(at) => {
                        let from = self.map.as_ptr().wrapping_add(at + block * BLOCK + half * ROWS);
                        // SAFETY: the caller's; masked elements are not read.
                        unsafe { _mm512_maskz_loadu_ps((mask >> (half * ROWS)) as __mmask16, from) }
                    }
                    None => _mm512_setzero_ps(),
                };
                let to = &mut panels[(2 * number + half) * self.panel + row * ROWS..][..ROWS];
                // SAFETY: 64 bytes.
                unsafe { _mm512_storeu_ps(to.as_mut_ptr(), values) };
            }
        }
    }
}

impl WeightGradient<Unit> {
    /// Brings a chunk of the output's gradient into panels of 16 filters: tiles of a row per filter, 32 terms long. Adds to the sums of the bias,
    /// 16 per filter. For tile registers.
    ///
    /// # Safety
    /// AVX-512 must be there.
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
        let [low, high] = pairs();
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
                let mask = mask(self.filters, block);
                let mut halves = [[_mm512_setzero_si512(); ROWS]; 2];
                for (pair, pixels) in pixels.as_chunks::<2>().0.iter().enumerate() {
                    // SAFETY: filters of a pixel of the map.
                    let [first, second] =
                        pixels.map(|at| unsafe { load(dy, at.map(|at| at + block * BLOCK), mask) });
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

impl<U: Multiply> WeightGradient<U> {
    /// Brings a chunk of the output's gradient into panels of 16 filters as [`Self::pack_input`] does it: a row per pair of terms, or per term, filter by
    /// filter. Adds to the sums of the bias, those of all filters for each of 16 rows.
    ///
    /// # Safety
    /// AVX-512 must be there.
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
                for x in (0..self.columns()).step_by(U::GROUP) {
                    // SAFETY: filters of a pixel of the map.
                    unsafe { U::put(&map, filters.clone(), [pixel(x), pixel(x + 1)], panels, next) };
                    next += 1;
                }
            }
        }
        // What the last tile has behind the last term adds nothing.
        for row in next..next.next_multiple_of(ROWS) {
            // SAFETY: as above.
            unsafe { U::put(&map, filters.clone(), [None; 2], panels, row) };
        }
        let Some(bias) = &mut bias else { return };
        for (half, sums) in bias.chunks_exact_mut(ROWS * ROWS).enumerate() {
            let (sums, _) = sums.as_chunks_mut::<ROWS>();
            let rows = &panels[half * map.panel..][..next.next_multiple_of(ROWS) * U::TERMS];
            for (number, row) in rows.chunks_exact(U::TERMS).enumerate() {
                // SAFETY: AVX-512 is there; a row has 64 bytes.
                unsafe { U::add_up(_mm512_loadu_si512(row.as_ptr().cast()), &mut sums[number % ROWS]) };
            }
        }
    }

    /// Brings what the taps of a column see of a chunk into panels of 16 channels: a row per pair of terms, or per term, channel by channel.
    ///
    /// # Safety
    /// AVX-512 must be there.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn pack_input(
        &self,
        chunk: &Chunk,
        column: usize,
        x: &[U::Element],
        panels: &mut [U::Element],
    ) {
        let sizes = [chunk.images.len(), chunk.rows.len()];
        let panel_rows_of_a_row = self.columns() / U::GROUP;
        let [_, blocks] = self.blocks();
        let [y_axis, x_axis] = &self.axes;
        let (_, sees) = x_axis.taps[column];
        for (class, reach) in y_axis.classes() {
            let (start, _) = self.input_panels(sizes, class);
            let [panel_rows, panel] = self.input_panel(sizes, reach);
            let panels = &mut panels[start..][..2 * blocks * panel];
            let map = Panels { map: x, channels: self.channels, panel };
            let mut put = |row: usize, pixels: [Option<usize>; 2]| {
                // SAFETY: channels of a pixel of the map.
                unsafe { U::put(&map, 0..blocks, pixels, panels, row) };
            };
            for row in 0..chunk.rows.len() + reach {
                let y = y_axis.inside(chunk.rows.start + row, y_axis.origin() + class.cast_signed());
                for (number, image) in chunk.images.clone().enumerate() {
                    let first = (row * sizes[0] + number) * panel_rows_of_a_row;
                    let pixel = |x: usize| {
                        let (y, x) = (y?, x_axis.inside(x, sees).filter(|_| x < x_axis.count)?);
                        Some(((image * y_axis.inputs + y) * x_axis.inputs + x) * self.channels)
                    };
                    for row in 0..panel_rows_of_a_row {
                        put(first + row, [pixel(U::GROUP * row), pixel(U::GROUP * row + 1)]);
                    }
                }
            }
            for row in panel_rows..panel_rows + ROWS {
                put(row, [None; 2]);
            }
        }
    }
}
