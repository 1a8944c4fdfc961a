//! Arithmetic of panel gradients: the operations that differ by element type and instructions.

use super::{Chunk, PanelGradient, Range};
use crate::native::conv::tiles::{BLOCK_SUMS, ROWS};
use crate::native::simd::Element;
use std::arch::x86_64::__m512i;

/// A map to be packed into panels of 16 channels.
pub struct Panels<'a, E> {
    /// The map, `[N, H, W, C]`.
    pub map: &'a [E],
    /// The number of channels.
    pub channels: usize,
    /// The elements between two panels.
    pub panel: usize,
}

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

    /// `sums += a b`, a block; see [`TileMultiplier`](crate::native::conv::tiles::TileMultiplier).
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
