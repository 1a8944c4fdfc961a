//! The multipliers of panels: AMX and AVX-512 for bf16, AVX-512 for `f32`.

use super::pack::{Panels, add_pairs};
use super::{Chunk, PanelGradient, Range};
use crate::native::conv::tiles::{Avx512F32, BLOCK_SUMS, MatrixUnit, ROWS, TileMultiplier};
use crate::native::simd::{Bf16, Element};
use std::arch::x86_64::{__m512i, _mm512_add_ps, _mm512_castsi512_ps, _mm512_loadu_ps, _mm512_storeu_ps};

/// Products of panels of one element type; a value proves that the CPU has the instructions.
pub trait PanelArithmetic: Copy + Send + Sync + 'static {
    /// The element type of maps and panels.
    type Element: Element;

    /// The terms of a channel interleaved in a row of a panel, filling 32 bits.
    const GROUP: usize = size_of::<f32>() / size_of::<Self::Element>();
    /// The terms of a tile, which is also the number of elements of its 64-byte rows.
    const TERMS: usize = ROWS * Self::GROUP;
    /// Elements of a tile.
    const TILE: usize = ROWS * Self::TERMS;
    /// Elements between panels, a cache line: at strides of a power of two, all panels would map to the same
    /// cache sets.
    const GAP: usize = Self::TERMS;

    /// The state of a prepared thread.
    type PreparedThread;

    /// Prepares the calling thread, until the result is dropped.
    fn prepare_thread(self) -> Self::PreparedThread;

    /// Returns whether the first factor is row-major, with a row per filter, instead of a row per term or
    /// pair of terms.
    fn takes_filters_in_rows(self) -> bool;

    /// `sums += a b`, a block; see [`TileMultiplier::multiply_add`].
    fn multiply_add(
        prepared: &Self::PreparedThread,
        a: [&[Self::Element]; 2],
        b: [&[Self::Element]; 2],
        count: usize,
        upcoming: &[Self::Element],
        sums: &mut [f32; BLOCK_SUMS],
    );

    /// Packs a chunk of `dy`, and adds to the sums of the bias.
    ///
    /// # Safety
    /// AVX-512 must be available.
    unsafe fn pack_output(
        self,
        gradient: &PanelGradient<Self>,
        chunk: &Chunk,
        filters: &Range<usize>,
        dy: &[Self::Element],
        panels: &mut [Self::Element],
        bias: Option<&mut [f32]>,
    ) {
        // SAFETY: upheld by the caller.
        unsafe { gradient.pack_output_by_terms(chunk, filters, dy, panels, bias) }
    }

    /// Stores pixels as rows `row..` of the panels, [`Self::GROUP`] pixels per row; pixels are given by the
    /// offsets of their channels.
    ///
    /// # Safety
    /// AVX-512 must be available; all channels of the pixels are within the map.
    unsafe fn store_rows(
        map: &Panels<'_, Self::Element>,
        blocks: Range<usize>,
        pixels: &[[Option<usize>; 2]],
        panels: &mut [Self::Element],
        row: usize,
    );

    /// Adds a row of a panel to the sums of its channels.
    ///
    /// # Safety
    /// AVX-512 must be available.
    unsafe fn add_row(row: __m512i, sums: &mut [f32; ROWS]);
}

impl PanelArithmetic for MatrixUnit {
    type Element = Bf16;
    type PreparedThread = TileMultiplier;

    fn prepare_thread(self) -> TileMultiplier {
        self.tiles()
    }

    fn takes_filters_in_rows(self) -> bool {
        matches!(self, Self::Amx(_))
    }

    #[inline]
    fn multiply_add(
        prepared: &TileMultiplier,
        a: [&[Bf16]; 2],
        b: [&[Bf16]; 2],
        count: usize,
        upcoming: &[Bf16],
        sums: &mut [f32; BLOCK_SUMS],
    ) {
        prepared.multiply_add(a, b, count, upcoming, sums);
    }

    unsafe fn pack_output(
        self,
        gradient: &PanelGradient<Self>,
        chunk: &Chunk,
        filters: &Range<usize>,
        dy: &[Bf16],
        panels: &mut [Bf16],
        bias: Option<&mut [f32]>,
    ) {
        // SAFETY: upheld by the caller.
        unsafe {
            match self.takes_filters_in_rows() {
                true => gradient.pack_output_by_filters(chunk, filters, dy, panels, bias),
                false => gradient.pack_output_by_terms(chunk, filters, dy, panels, bias),
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn store_rows(
        map: &Panels<'_, Bf16>,
        blocks: Range<usize>,
        pixels: &[[Option<usize>; 2]],
        panels: &mut [Bf16],
        row: usize,
    ) {
        // SAFETY: upheld by the caller.
        unsafe { map.store_pairs(blocks, pixels, panels, row) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn add_row(row: __m512i, sums: &mut [f32; ROWS]) {
        add_pairs(row, sums);
    }
}

impl PanelArithmetic for Avx512F32 {
    type Element = f32;
    type PreparedThread = Self;

    fn prepare_thread(self) -> Self {
        self
    }

    fn takes_filters_in_rows(self) -> bool {
        false
    }

    #[inline]
    fn multiply_add(
        prepared: &Self,
        a: [&[f32]; 2],
        b: [&[f32]; 2],
        count: usize,
        upcoming: &[f32],
        sums: &mut [f32; BLOCK_SUMS],
    ) {
        prepared.multiply_add(a, b, count, upcoming, sums);
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn store_rows(
        map: &Panels<'_, f32>,
        blocks: Range<usize>,
        pixels: &[[Option<usize>; 2]],
        panels: &mut [f32],
        row: usize,
    ) {
        // SAFETY: upheld by the caller.
        unsafe { map.store_pixels(blocks, pixels, panels, row) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn add_row(row: __m512i, sums: &mut [f32; ROWS]) {
        // SAFETY: sixteen numbers.
        unsafe {
            let sum = _mm512_add_ps(_mm512_loadu_ps(sums.as_ptr()), _mm512_castsi512_ps(row));
            _mm512_storeu_ps(sums.as_mut_ptr(), sum);
        }
    }
}
