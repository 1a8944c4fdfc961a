//! The multipliers of panels: AMX and AVX-512 for bf16, AVX-512 for `f32`.

use super::arithmetic::{PanelArithmetic, Panels};
use super::pack::add_pairs;
use super::{Chunk, PanelGradient, Range};
use crate::native::conv::tiles::{Avx512F32, BLOCK_SUMS, MatrixUnit, ROWS, TileMultiplier};
use crate::native::simd::Bf16;
use std::arch::x86_64::{__m512i, _mm512_add_ps, _mm512_castsi512_ps, _mm512_loadu_ps, _mm512_storeu_ps};

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
