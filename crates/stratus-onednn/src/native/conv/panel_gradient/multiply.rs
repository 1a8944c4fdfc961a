//! What multiplies panels, and how it takes them to lie.

use super::pack::{Panels, add_pairs};
use super::{Chunk, PanelGradient, Range};
use crate::native::conv::tiles::{Avx512F32, MatrixUnit, ROWS, SUMS, Tiles};
use crate::native::simd::{Bf16, Element};
use std::arch::x86_64::{__m512i, _mm512_add_ps, _mm512_castsi512_ps, _mm512_loadu_ps, _mm512_storeu_ps};

/// A way to multiply panels of one type of elements: a value of this type is the proof that the processor has it.
pub trait PanelArithmetic: Copy + Send + Sync + 'static {
    /// What maps and panels are made of.
    type Element: Element;

    /// Terms of a channel that lie next to each other in a row of a panel: as many as 32 bits hold.
    const GROUP: usize = size_of::<f32>() / size_of::<Self::Element>();
    /// Terms that a tile holds; elements of one of its rows, of 64 bytes.
    const TERMS: usize = ROWS * Self::GROUP;
    /// Elements of a tile.
    const TILE: usize = ROWS * Self::TERMS;
    /// Elements between two panels beyond what they hold, a line of a cache: with a power of two, lines of all of them would fall on the same few places.
    const GAP: usize = Self::TERMS;

    /// A thread that is ready to multiply.
    type Ready;

    /// Makes the calling thread ready, until what is returned is dropped.
    fn ready(self) -> Self::Ready;

    /// Whether the first factor has a row for each filter, and not one for each term.
    fn takes_filters_in_rows(self) -> bool;

    /// `sums += a b`, a block; see [`Tiles::multiply_add`].
    fn multiply_add(
        ready: &Self::Ready,
        a: [&[Self::Element]; 2],
        b: [&[Self::Element]; 2],
        count: usize,
        ahead: &[Self::Element],
        sums: &mut [f32; SUMS],
    );

    /// Brings a chunk of the output's gradient into panels, and adds to the sums of the bias.
    ///
    /// # Safety
    /// AVX-512 must be there.
    unsafe fn pack_output(
        self,
        gradient: &PanelGradient<Self>,
        chunk: &Chunk,
        filters: &Range<usize>,
        dy: &[Self::Element],
        panels: &mut [Self::Element],
        bias: Option<&mut [f32]>,
    ) {
        // SAFETY: the caller's.
        unsafe { gradient.pack_output_by_terms(chunk, filters, dy, panels, bias) }
    }

    /// Writes the pixels of rows of panels from `row` on, [`Self::GROUP`] for each, given by where their channels begin.
    ///
    /// # Safety
    /// AVX-512 must be there; all channels of the pixels lie within the map.
    unsafe fn put(
        map: &Panels<'_, Self::Element>,
        blocks: Range<usize>,
        pixels: &[[Option<usize>; 2]],
        panels: &mut [Self::Element],
        row: usize,
    );

    /// Adds a row of a panel to the sums of its channels.
    ///
    /// # Safety
    /// AVX-512 must be there.
    unsafe fn add_up(row: __m512i, sums: &mut [f32; ROWS]);
}

impl PanelArithmetic for MatrixUnit {
    type Element = Bf16;
    type Ready = Tiles;

    fn ready(self) -> Tiles {
        self.tiles()
    }

    fn takes_filters_in_rows(self) -> bool {
        matches!(self, Self::Amx(_))
    }

    #[inline]
    fn multiply_add(
        ready: &Tiles,
        a: [&[Bf16]; 2],
        b: [&[Bf16]; 2],
        count: usize,
        ahead: &[Bf16],
        sums: &mut [f32; SUMS],
    ) {
        ready.multiply_add(a, b, count, ahead, sums);
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
        // SAFETY: the caller's.
        unsafe {
            match self.takes_filters_in_rows() {
                true => gradient.pack_output_by_filters(chunk, filters, dy, panels, bias),
                false => gradient.pack_output_by_terms(chunk, filters, dy, panels, bias),
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn put(
        map: &Panels<'_, Bf16>,
        blocks: Range<usize>,
        pixels: &[[Option<usize>; 2]],
        panels: &mut [Bf16],
        row: usize,
    ) {
        // SAFETY: the caller's.
        unsafe { map.put_pairs(blocks, pixels, panels, row) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn add_up(row: __m512i, sums: &mut [f32; ROWS]) {
        add_pairs(row, sums);
    }
}

impl PanelArithmetic for Avx512F32 {
    type Element = f32;
    type Ready = Self;

    fn ready(self) -> Self {
        self
    }

    fn takes_filters_in_rows(self) -> bool {
        false
    }

    #[inline]
    fn multiply_add(
        ready: &Self,
        a: [&[f32]; 2],
        b: [&[f32]; 2],
        count: usize,
        ahead: &[f32],
        sums: &mut [f32; SUMS],
    ) {
        ready.multiply_add(a, b, count, ahead, sums);
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn put(
        map: &Panels<'_, f32>,
        blocks: Range<usize>,
        pixels: &[[Option<usize>; 2]],
        panels: &mut [f32],
        row: usize,
    ) {
        // SAFETY: the caller's.
        unsafe { map.put_pixels(blocks, pixels, panels, row) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn add_up(row: __m512i, sums: &mut [f32; ROWS]) {
        // SAFETY: sixteen numbers.
        unsafe {
            let sum = _mm512_add_ps(_mm512_loadu_ps(sums.as_ptr()), _mm512_castsi512_ps(row));
            _mm512_storeu_ps(sums.as_mut_ptr(), sum);
        }
    }
}
