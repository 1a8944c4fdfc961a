//! Dense 3×3 and 5×5 convolution by minimal filtering, F(m×m, r×r) with `m + r - 1 = 6`; 3×1 and 1×3 by
//! F(m, 3) in [`line`].
//!
//! Sources: Winograd, "Arithmetic complexity of computations", 1980; for networks Lavin and Gray, "Fast
//! algorithms for convolutional neural networks", 2015 (arXiv:1509.09308). In their notation:
//!
//! ```text
//! α = m + r - 1 = 6      r = 3: m = 4, 36 products instead of 144
//!                        r = 5: m = 2, 36 products instead of 100
//!
//! Y = Aᵀ [ (G g Gᵀ) ⊙ (Bᵀ d B) ] A        d: 6×6 patch    g: r×r taps    Y: m×m outputs
//! ```
//!
//! The products ⊙ are summed over channels: for each of the 36 points one product of matrices.
//!
//! ```text
//!                   d               g                       Y    product at each point
//! forward           patches of x    weights                 y    [tiles, in] × [in, out]
//! data gradient     patches of dy   weights, rotated 180°   dx   [tiles, out] × [out, in]
//! weight gradient   patches of x    tiles of dy             dw   [in, tiles] × [tiles, out]
//! ```
//!
//! The first two are in [`conv`], the third in [`gradient`].
//!
//! Maps are `[N, H, W, C]`, weights `[O, I, H, W]`. The transforms ([`transform`]) work on sixteen channels
//! at a time. Products are `f32` whatever the type of the maps ([`product`]), or 13-bit integers if the maps
//! are bf16 and the CPU has VNNI ([`int16`]).
//!
//! Tiles are processed in blocks: transformed patches and products of a block, 36 values of every channel for
//! each tile, stay in the core's L2 cache, so that memory is accessed once per map, as with a direct
//! convolution.
//!
//! Compared with oneDNN's direct kernels: the weight gradient of 512 channels on 7×7 takes 6.6 ms instead of
//! 10.4; int16 products make VGG-11's forward passes a further 1.27 to 1.61 times as fast
//! (docs/benchmarks/kernels.md).

mod conv;
mod gradient;
mod int16;
mod line;
mod product;
#[cfg(test)]
mod tests;
mod transform;

pub use conv::{Pass, WinogradConv};
pub use gradient::WinogradGradient;
pub use int16::Int16Products;
pub use line::{LineConv, LineGradient};

use crate::native::lanes::{LANES, LaneElement, Lanes};
use crate::native::simd::{CACHE_LINE, prefetch_element};
use product::{PANEL, ROWS};
use stratus_graph::ops::Conv2d;
use transform::input_transform_1d;

/// Edge of a transformed tile: α = m + r - 1 in Lavin and Gray.
const ALPHA: usize = 6;
/// Values of a transformed tile, the points at which products are taken.
const POINTS: usize = ALPHA * ALPHA;

/// The elements between the matrices of neighbouring points. Without a gap their strides are powers of two
/// and all 36 map to the same cache sets.
const MATRIX_GAP: usize = LANES;

/// The division of a pass's maps into tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TileGrid {
    /// Edge of the kernel: r.
    taps: usize,
    batch: usize,
    /// `[H, W]` of the map of patches, and of the map of output tiles.
    maps: [[usize; 2]; 2],
    /// Padding `[top, left]` of the first map.
    padding: [usize; 2],
    /// Tiles of an image, vertically and horizontally.
    tiles: [usize; 2],
}

/// The position of a tile in the batch.
#[derive(Clone, Copy, Debug)]
struct TilePosition {
    image: usize,
    /// The row and column of its first output.
    origin: [usize; 2],
}

impl TileGrid {
    fn new(taps: usize, batch: usize, maps: [[usize; 2]; 2], padding: [usize; 2]) -> Self {
        Self { taps, batch, maps, padding, tiles: maps[1].map(|edge| edge.div_ceil(output_edge(taps))) }
    }

    /// Returns whether 36 products per tile, half as much again for the transforms, are fewer than the r²
    /// products per output that they replace. (Tiles at the border may be mostly outside.)
    fn is_profitable(&self) -> bool {
        let [direct_products, points] =
            [self.maps[1].iter().product::<usize>() * self.taps * self.taps, POINTS];
        self.batch > 0 && self.tiles.iter().product::<usize>() * points * 3 <= direct_products * 2
    }

    /// Rows of tiles in the batch, which threads divide.
    fn tile_rows(&self) -> usize {
        self.batch * self.tiles[0]
    }

    /// Tiles of the thread with the most tiles.
    fn tiles_per_thread(&self, threads: usize) -> usize {
        self.tile_rows().div_ceil(threads) * self.tiles[1]
    }

    /// Pixels of the second map before tile row `row`.
    fn pixels_before_row(&self, row: usize) -> usize {
        let (image, row) = (row / self.tiles[0], row % self.tiles[0]);
        let [height, width] = self.maps[1];
        (image * height + row * output_edge(self.taps)) * width
    }

    /// The position of tile number `tile` of the batch.
    fn position(&self, tile: usize) -> TilePosition {
        let (row, column) = (tile / self.tiles[1], tile % self.tiles[1]);
        let first = [row % self.tiles[0], column].map(|tile| tile * output_edge(self.taps));
        TilePosition { image: row / self.tiles[0], origin: first }
    }

    /// The 6×6 patch of a tile in the first map, `[N, H, W, channels]`.
    fn input_pixels(&self, position: TilePosition, channels: usize) -> PixelOffsets<ALPHA> {
        let first = [0, 1].map(|axis| position.origin[axis].cast_signed() - self.padding[axis].cast_signed());
        PixelOffsets::new(self.maps[0], channels, position.image, first)
    }

    /// The m×m outputs of a tile in the second map, `[N, H, W, channels]`.
    fn output_pixels<const OUTPUTS: usize>(
        &self,
        position: TilePosition,
        channels: usize,
    ) -> PixelOffsets<OUTPUTS> {
        PixelOffsets::new(self.maps[1], channels, position.image, position.origin.map(usize::cast_signed))
    }
}

/// Edge of a tile of outputs: m = α + 1 - r.
const fn output_edge(taps: usize) -> usize {
    ALPHA + 1 - taps
}

/// r, if minimal filtering applies: dense, 3×3 or 5×5, without stride or dilation, with channels that fill
/// their registers (the last one at least by half).
fn kernel_edge(conv: &Conv2d) -> Option<usize> {
    let taps = conv.kernel[0];
    let is_supported = conv.kernel[1] == taps
        && (taps == 3 || taps == 5)
        && conv.stride == [1; 2]
        && conv.dilation == [1; 2]
        && conv.groups == 1
        && conv.padding_before.iter().chain(&conv.padding_after).all(|&padding| padding < taps)
        && [conv.in_channels, conv.out_channels]
            .iter()
            .all(|&channels| channels >= LANES && channels.is_multiple_of(LANES / 2));
    is_supported.then_some(taps)
}

/// The elements of 36 matrices of `[rows, columns]` with their gaps.
fn all_points_floats(rows: usize, columns: usize) -> usize {
    POINTS * (rows * columns + MATRIX_GAP)
}

/// The bytes of the matrices of a block, which share a core's L2 cache with the current weights.
const L2_BYTES: usize = 3 << 18;

/// Tiles per block, of the `tiles` of a thread: as many as fit the L2 cache (one tile takes `bytes_per_tile`
/// over all points), but about `min_tiles` at least, because the transformed weights are read once per block.
fn tiles_per_block(bytes_per_tile: usize, tiles: usize, min_tiles: usize) -> usize {
    const MAX_BLOCK_TILES: usize = 192;
    let fit = (L2_BYTES / (POINTS * bytes_per_tile)).clamp(min_tiles, MAX_BLOCK_TILES);
    let blocks = ((tiles + fit / 2) / fit).max(1);
    tiles.max(1).div_ceil(blocks).next_multiple_of(ROWS)
}

/// The channels, rounded up to whole registers.
fn padded(channels: usize) -> usize {
    channels.next_multiple_of(LANES)
}

/// The panels of a matrix of `columns`.
fn panel_count(columns: usize) -> usize {
    columns.div_ceil(PANEL)
}

/// The offset of a pixel outside of the map.
const PADDING_OFFSET: usize = usize::MAX;

/// The offsets of a tile's pixels in memory.
#[derive(Clone, Copy, Debug)]
struct PixelOffsets<const EDGE: usize> {
    /// The offset of each pixel's first channel, or [`PADDING_OFFSET`].
    offsets: [[usize; EDGE]; EDGE],
    /// True if no pixel is outside.
    all_inside: bool,
}

impl<const EDGE: usize> PixelOffsets<EDGE> {
    /// The pixels of an image in a map `[N, height, width, channels]`; `first` is the row and column of the
    /// first pixel.
    #[inline(always)]
    fn new([height, width]: [usize; 2], channels: usize, image: usize, first: [isize; 2]) -> Self {
        // Negative coordinates become huge unsigned ones, so that one comparison covers both borders.
        let [top, left] = first.map(isize::cast_unsigned);
        let fits = |first: usize, edge: usize| first < edge && first + EDGE <= edge;
        let mut offsets = [[PADDING_OFFSET; EDGE]; EDGE];
        if fits(top, height) && fits(left, width) {
            // The common case: no test per pixel.
            let start = ((image * height + top) * width + left) * channels;
            for (row, offsets) in offsets.iter_mut().enumerate() {
                for (column, at) in offsets.iter_mut().enumerate() {
                    *at = start + (row * width + column) * channels;
                }
            }
            return Self { offsets, all_inside: true };
        }
        for (row, offsets) in offsets.iter_mut().enumerate() {
            let y = top.wrapping_add(row);
            let pixels = (image * height).wrapping_add(y).wrapping_mul(width);
            for (column, start) in offsets.iter_mut().enumerate() {
                let x = left.wrapping_add(column);
                let at = pixels.wrapping_add(x).wrapping_mul(channels);
                *start = if (y < height) & (x < width) { at } else { PADDING_OFFSET };
            }
        }
        Self { offsets, all_inside: false }
    }

    /// Offsets with all pixels outside.
    fn outside() -> Self {
        Self { offsets: [[PADDING_OFFSET; EDGE]; EDGE], all_inside: false }
    }

    /// Prefetches the cache line of channels `from..` of each pixel, if one starts there. Pixels of a tile
    /// are too far apart for the hardware prefetcher.
    #[inline(always)]
    fn prefetch<E: LaneElement>(&self, map: &[E], from: usize) {
        if (from * size_of::<E>()).is_multiple_of(CACHE_LINE) {
            for start in self.offsets.as_flattened() {
                let start = if *start == PADDING_OFFSET { 0 } else { *start };
                prefetch_element(map, start + from);
            }
        }
    }
}

/// Channels `from..from + 16` of one column of a tile's pixels; zero outside of the map and beyond the last
/// channel.
///
/// # Safety
/// As [`Lanes`] requires; pixels that are inside must have `channels` elements in `map`.
#[inline(always)]
unsafe fn load_tile_column<V: Lanes, E: LaneElement, const EDGE: usize>(
    map: &[E],
    pixels: &PixelOffsets<EDGE>,
    column: usize,
    [channels, from]: [usize; 2],
) -> [V; EDGE] {
    let count = LANES.min(channels - from);
    let zeros = [E::store(0.0); LANES];
    // SAFETY: upheld by the caller.
    unsafe {
        let mut values = [V::splat(0.0); EDGE];
        for (value, offsets) in values.iter_mut().zip(&pixels.offsets) {
            let start = offsets[column];
            if count < LANES {
                let mut part = zeros;
                if start != PADDING_OFFSET {
                    part[..count].copy_from_slice(&map[start + from..][..count]);
                }
                *value = E::load_lanes(&part);
                continue;
            }
            let present = pixels.all_inside || start != PADDING_OFFSET;
            debug_assert!(!present || start + from + LANES <= map.len());
            let at = map.as_ptr().wrapping_add(start.wrapping_add(from)).cast::<[E; LANES]>();
            *value = E::load_lanes(if present { &*at } else { &zeros });
        }
        values
    }
}

/// Bᵀ d B of a patch of sixteen channels: rows `FIRST..FIRST + ROWS` of it. Columns are transformed first, so
/// that unneeded rows cost no second pass.
///
/// # Safety
/// As [`load_tile_column`] requires.
#[inline(always)]
unsafe fn load_input_transform<V: Lanes, E: LaneElement, const FIRST: usize, const ROWS: usize>(
    map: &[E],
    pixels: &PixelOffsets<ALPHA>,
    channels: [usize; 2],
) -> [[V; ALPHA]; ROWS] {
    // SAFETY: upheld by the caller.
    unsafe {
        let mut plane = [[V::splat(0.0); ALPHA]; ROWS];
        for column in 0..ALPHA {
            let line = input_transform_1d(load_tile_column(map, pixels, column, channels));
            for (row, value) in plane.iter_mut().zip(line.into_iter().skip(FIRST)) {
                row[column] = value;
            }
        }
        for row in &mut plane {
            *row = input_transform_1d(*row);
        }
        plane
    }
}

/// Stores a transformed tile, sixteen channels at each point; points are `stride` floats apart.
///
/// # Safety
/// As [`Lanes`] requires; all points must be within `to`.
#[inline(always)]
unsafe fn store_points<V: Lanes, const ROWS: usize>(
    plane: [[V; ALPHA]; ROWS],
    to: &mut [f32],
    at: usize,
    stride: usize,
) {
    for (point, value) in plane.as_flattened().iter().enumerate() {
        // SAFETY: upheld by the caller.
        unsafe { value.store(lanes_at(to, at + point * stride)) };
    }
}

/// Sixteen floats starting at `at`.
///
/// # Safety
/// They must be within `to`.
#[inline(always)]
unsafe fn lanes_at(to: &mut [f32], at: usize) -> &mut [f32; LANES] {
    debug_assert!(at + LANES <= to.len());
    // SAFETY: upheld by the caller.
    unsafe { &mut *to.as_mut_ptr().add(at).cast::<[f32; LANES]>() }
}
