//! Dense 3×3 and 5×5 convolution by minimal filtering (Winograd, "Arithmetic complexity of computations", 1980; for networks: Lavin and Gray, "Fast
//! algorithms for convolutional neural networks", 2015): 36 multiplications for 4×4 outputs instead of 144, or for 2×2 outputs instead of 100.
//!
//! A 6×6 patch of the input and the taps are polynomials' coefficients; both are brought to their values at six points, where a convolution is
//! a product, and the products back to coefficients ([`transform`]). Over channels, the products at each of the 6×6 points are a product of matrices.
//! The gradient of the weights is the same with the gradients of the outputs as taps, and the weights as outputs.
//!
//! All sums are in f32, whatever maps are stored as, but those of products of whole numbers, where maps of bf16 are content with these ([`int16`]).

mod conv;
mod gradient;
mod int16;
mod product;
mod sums;
#[cfg(test)]
mod tests;
mod transform;
mod weights;

pub use conv::{Pass, WinogradConv};
pub use gradient::WinogradGradient;
pub use int16::Int16Products;

use crate::native::lanes::{LANES, LaneElement, Lanes};
use crate::native::simd::{LINE, ask_for};
use product::{PANEL, ROWS};
use stratus_graph::ops::Conv2d;
use transform::input_line;

/// Edge of the input that outputs which are made together depend on, and the number of points along one dimension.
const REACH: usize = 6;
/// Points of the plane.
const POINTS: usize = REACH * REACH;

/// Elements by which the matrices of neighbouring points are set apart: one behind the other they would fall on the same places of a cache.
const APART: usize = LANES;

/// What goes through the caches at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grid {
    /// Edge of the kernel.
    taps: usize,
    batch: usize,
    /// Height and width of the map that is cut into patches, and of the one that is cut into outputs.
    maps: [[usize; 2]; 2],
    /// Padding `[top, left]` of the first.
    before: [usize; 2],
    /// Outputs of an image, downwards and across.
    tiles: [usize; 2],
}

/// The place of outputs that are made together.
#[derive(Clone, Copy, Debug)]
struct Place {
    image: usize,
    /// Of the first output, row and column.
    first: [usize; 2],
}

impl Grid {
    fn new(taps: usize, batch: usize, maps: [[usize; 2]; 2], before: [usize; 2]) -> Self {
        Self { taps, batch, maps, before, tiles: maps[1].map(|edge| edge.div_ceil(outputs(taps))) }
    }

    /// Whether the points are fewer than the products that they replace, by more than their transformation costs.
    fn pays(&self) -> bool {
        let [made, points] = [self.maps[1].iter().product::<usize>() * self.taps * self.taps, POINTS];
        self.batch > 0 && self.tiles.iter().product::<usize>() * points * 3 <= made * 2
    }

    /// Rows of tiles, over all images.
    fn rows(&self) -> usize {
        self.batch * self.tiles[0]
    }

    /// The most tiles that one of `threads` has, which share rows of them out.
    fn tiles_of(&self, threads: usize) -> usize {
        self.rows().div_ceil(threads) * self.tiles[1]
    }

    /// The pixels of the second map that lie before row `row` of tiles.
    fn pixels_before(&self, row: usize) -> usize {
        let (image, row) = (row / self.tiles[0], row % self.tiles[0]);
        let [height, width] = self.maps[1];
        (image * height + row * outputs(self.taps)) * width
    }

    /// Where a tile lies, counted over all rows of tiles.
    fn place(&self, tile: usize) -> Place {
        let (row, column) = (tile / self.tiles[1], tile % self.tiles[1]);
        let first = [row % self.tiles[0], column].map(|tile| tile * outputs(self.taps));
        Place { image: row / self.tiles[0], first }
    }

    /// The patch of a tile in the first map, which has so many channels.
    fn patch(&self, place: Place, channels: usize) -> Pixels<REACH> {
        let first = [0, 1].map(|axis| place.first[axis].cast_signed() - self.before[axis].cast_signed());
        Pixels::new(self.maps[0], channels, place.image, first)
    }

    /// A tile's outputs in the second map, which has so many channels.
    fn outputs<const OUTPUTS: usize>(&self, place: Place, channels: usize) -> Pixels<OUTPUTS> {
        Pixels::new(self.maps[1], channels, place.image, place.first.map(usize::cast_signed))
    }
}

/// Edge of the outputs that are made together by a kernel of this edge.
const fn outputs(taps: usize) -> usize {
    REACH + 1 - taps
}

/// Edge of the kernel of a convolution that this is for: dense, 3×3 or 5×5, of channels that waste little of their registers.
fn taps(conv: &Conv2d) -> Option<usize> {
    let taps = conv.kernel[0];
    let suits = conv.kernel[1] == taps
        && (taps == 3 || taps == 5)
        && conv.stride == [1; 2]
        && conv.dilation == [1; 2]
        && conv.groups == 1
        && conv.padding_before.iter().chain(&conv.padding_after).all(|&padding| padding < taps)
        && [conv.in_channels, conv.out_channels]
            .iter()
            .all(|&channels| channels >= LANES && channels.is_multiple_of(LANES / 2));
    suits.then_some(taps)
}

/// Elements of a matrix of `rows` for every point, `columns` wide.
fn matrices(rows: usize, columns: usize) -> usize {
    POINTS * (rows * columns + APART)
}

/// Bytes of a block's matrices that stay in a core's second cache.
const CACHE: usize = 3 << 18;

/// Tiles of a block, of all that a thread has: about as many as the cache holds the matrices of, which have so many bytes for a tile and a point,
/// and not many fewer than `fewest`, so that what is read for every block is read for something.
fn block(bytes: usize, tiles: usize, fewest: usize) -> usize {
    const MOST: usize = 192;
    let fit = (CACHE / (POINTS * bytes)).clamp(fewest, MOST);
    let blocks = ((tiles + fit / 2) / fit).max(1);
    tiles.max(1).div_ceil(blocks).next_multiple_of(ROWS)
}

/// Channels and what fills their last register.
fn filled(channels: usize) -> usize {
    channels.next_multiple_of(LANES)
}

/// How many panels hold so many columns.
fn panels(columns: usize) -> usize {
    columns.div_ceil(PANEL)
}

/// Stands for a pixel that is not there.
const NOWHERE: usize = usize::MAX;

/// Pixels of a tile.
#[derive(Clone, Copy, Debug)]
struct Pixels<const EDGE: usize> {
    /// Where the channels of each begin in the map, or [`NOWHERE`].
    starts: [[usize; EDGE]; EDGE],
    /// Whether all are there.
    whole: bool,
}

impl<const EDGE: usize> Pixels<EDGE> {
    /// Those of an image in a map of this height, width and number of channels; `first` is the row and column of the first.
    #[inline(always)]
    fn new([height, width]: [usize; 2], channels: usize, image: usize, first: [isize; 2]) -> Self {
        // What lies before the map is, as a number without a sign, far behind it.
        let [top, left] = first.map(isize::cast_unsigned);
        let fits = |first: usize, edge: usize| first < edge && first + EDGE <= edge;
        let mut starts = [[NOWHERE; EDGE]; EDGE];
        if fits(top, height) && fits(left, width) {
            // Most tiles: nothing is to be asked of each pixel.
            let start = ((image * height + top) * width + left) * channels;
            for (row, starts) in starts.iter_mut().enumerate() {
                for (column, at) in starts.iter_mut().enumerate() {
                    *at = start + (row * width + column) * channels;
                }
            }
            return Self { starts, whole: true };
        }
        for (row, starts) in starts.iter_mut().enumerate() {
            let y = top.wrapping_add(row);
            let pixels = (image * height).wrapping_add(y).wrapping_mul(width);
            for (column, start) in starts.iter_mut().enumerate() {
                let x = left.wrapping_add(column);
                let at = pixels.wrapping_add(x).wrapping_mul(channels);
                *start = if (y < height) & (x < width) { at } else { NOWHERE };
            }
        }
        Self { starts, whole: false }
    }

    /// None of them.
    fn none() -> Self {
        Self { starts: [[NOWHERE; EDGE]; EDGE], whole: false }
    }

    /// Asks for sixteen channels of each, from `from` on, where these begin a line of a cache: maps are larger than the caches, and a tile's pixels are
    /// too far from each other for what the processor foresees by itself.
    #[inline(always)]
    fn ask_for<E: LaneElement>(&self, map: &[E], from: usize) {
        if (from * size_of::<E>()).is_multiple_of(LINE) {
            for start in self.starts.as_flattened() {
                let start = if *start == NOWHERE { 0 } else { *start };
                ask_for(map, start + from);
            }
        }
    }
}

/// Sixteen channels, from `from` on of `channels`, of a column of a tile's pixels; zero where there is no pixel or channel.
///
/// # Safety
/// Of [`Lanes`]; the pixels' channels lie within `map`.
#[inline(always)]
unsafe fn load_column<V: Lanes, E: LaneElement, const EDGE: usize>(
    map: &[E],
    pixels: &Pixels<EDGE>,
    column: usize,
    [channels, from]: [usize; 2],
) -> [V; EDGE] {
    let count = LANES.min(channels - from);
    let zeros = [E::store(0.0); LANES];
    // SAFETY: the caller's.
    unsafe {
        let mut values = [V::splat(0.0); EDGE];
        for (value, starts) in values.iter_mut().zip(&pixels.starts) {
            let start = starts[column];
            if count < LANES {
                let mut part = zeros;
                if start != NOWHERE {
                    part[..count].copy_from_slice(&map[start + from..][..count]);
                }
                *value = E::load_lanes(&part);
                continue;
            }
            let there = pixels.whole || start != NOWHERE;
            debug_assert!(!there || start + from + LANES <= map.len());
            let at = map.as_ptr().wrapping_add(start.wrapping_add(from)).cast::<[E; LANES]>();
            *value = E::load_lanes(if there { &*at } else { &zeros });
        }
        values
    }
}

/// A patch of the input as values at points: at `ROWS` rows of them, from row `FIRST` on. Columns first: of rows that are not wanted nothing else is
/// made.
///
/// # Safety
/// As [`load_column`].
#[inline(always)]
unsafe fn patch_plane<V: Lanes, E: LaneElement, const FIRST: usize, const ROWS: usize>(
    map: &[E],
    pixels: &Pixels<REACH>,
    channels: [usize; 2],
) -> [[V; REACH]; ROWS] {
    // SAFETY: the caller's.
    unsafe {
        let mut plane = [[V::splat(0.0); REACH]; ROWS];
        for column in 0..REACH {
            let line = input_line(load_column(map, pixels, column, channels));
            for (row, value) in plane.iter_mut().zip(line.into_iter().skip(FIRST)) {
                row[column] = value;
            }
        }
        for row in &mut plane {
            *row = input_line(*row);
        }
        plane
    }
}

/// Stores the values at points, those of neighbouring ones `apart` floats from each other.
///
/// # Safety
/// Of [`Lanes`]; they lie within `to`.
#[inline(always)]
unsafe fn store<V: Lanes, const ROWS: usize>(
    plane: [[V; REACH]; ROWS],
    to: &mut [f32],
    at: usize,
    apart: usize,
) {
    for (point, value) in plane.as_flattened().iter().enumerate() {
        // SAFETY: the caller's.
        unsafe { value.store(sixteen(to, at + point * apart)) };
    }
}

/// Where sixteen floats are written.
///
/// # Safety
/// They lie within `to`.
#[inline(always)]
unsafe fn sixteen(to: &mut [f32], at: usize) -> &mut [f32; LANES] {
    debug_assert!(at + LANES <= to.len());
    // SAFETY: the caller's.
    unsafe { &mut *to.as_mut_ptr().add(at).cast::<[f32; LANES]>() }
}
