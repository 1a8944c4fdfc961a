//! Dense 3×3 convolution by minimal filtering (Winograd, "Arithmetic complexity of computations", 1980; for networks: Lavin and Gray, "Fast
//! algorithms for convolutional neural networks", 2015): 36 multiplications for 4×4 outputs instead of 144.
//!
//! A 6×6 patch of the input and the 3×3 taps are polynomials' coefficients; both are brought to their values at six points, where a convolution is
//! a product, and the products back to coefficients. Over channels, the products at each of the 6×6 points are a product of matrices. The gradient
//! of the weights is the same with the 4×4 gradients of the outputs as taps, and the 3×3 weights as outputs.
//!
//! The points are 0, ±5/8, ±3/2 and infinity: with them the result of a sum over 256 channels is off by 1.2e-6 of its norm, that of the usual 0, ±1,
//! ±2 and infinity by 2.5e-6, and one that is added up in order by 0.6e-6. All sums are in f32, whatever maps are stored as, but those of products
//! of whole numbers, where maps of bf16 are content with these ([`words`]).

mod conv;
mod gradient;
mod product;
#[cfg(test)]
mod tests;
mod words;

pub use conv::{Pass, WinogradConv};
pub use gradient::WinogradGradient;
pub use words::Words;

use crate::native::lanes::{LANES, LaneElement, Lanes};
use product::{PANEL, ROWS};
use stratus_graph::ops::Conv2d;

/// Edge of the outputs that are made together.
const OUTPUTS: usize = 4;
/// Edge of the kernel.
const TAPS: usize = 3;
/// Edge of the input that they depend on, and the number of points along one dimension.
const REACH: usize = OUTPUTS + TAPS - 1;
/// Points of the plane.
const POINTS: usize = REACH * REACH;

/// The points beside 0 and infinity are plus and minus these.
const P: f32 = 0.625;
const Q: f32 = 1.5;
const P2: f32 = P * P;
const Q2: f32 = Q * Q;

/// Elements by which the matrices of neighbouring points are set apart: one behind the other they would fall on the same places of a cache.
const APART: usize = LANES;

/// What goes through the caches at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grid {
    batch: usize,
    /// Height and width of the map that is cut into patches, and of the one that is cut into outputs.
    maps: [[usize; 2]; 2],
    /// Padding `[top, left]` of the first.
    before: [usize; 2],
    /// Outputs of an image, downwards and across.
    tiles: [usize; 2],
}

/// The place of 4×4 outputs.
#[derive(Clone, Copy, Debug)]
struct Place {
    image: usize,
    /// Of the first output, row and column.
    first: [usize; 2],
}

impl Grid {
    fn new(batch: usize, maps: [[usize; 2]; 2], before: [usize; 2]) -> Self {
        Self { batch, maps, before, tiles: maps[1].map(|edge| edge.div_ceil(OUTPUTS)) }
    }

    /// Whether the points are fewer than the products that they replace, by more than their transformation costs.
    fn pays(&self) -> bool {
        let [made, points] = [self.maps[1].iter().product::<usize>() * TAPS * TAPS, POINTS];
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
        (image * height + row * OUTPUTS) * width
    }

    /// Where a tile lies, counted over all rows of tiles.
    fn place(&self, tile: usize) -> Place {
        let (row, column) = (tile / self.tiles[1], tile % self.tiles[1]);
        let first = [row % self.tiles[0], column].map(|tile| tile * OUTPUTS);
        Place { image: row / self.tiles[0], first }
    }

    /// For every pixel of the patch of a tile its number in the first map; none where it is padding.
    fn patch(&self, place: Place) -> Pixels<REACH> {
        let [height, width] = self.maps[0];
        let inside = |axis: usize, at: usize, edge: usize| {
            (place.first[axis] + at).checked_sub(self.before[axis]).filter(|&at| at < edge)
        };
        let mut pixels = [[None; REACH]; REACH];
        for (at, pixels) in pixels.iter_mut().enumerate() {
            let Some(row) = inside(0, at, height) else { continue };
            for (at, pixel) in pixels.iter_mut().enumerate() {
                *pixel = inside(1, at, width).map(|column| (place.image * height + row) * width + column);
            }
        }
        pixels
    }

    /// The same of a tile's outputs in the second map.
    fn outputs(&self, place: Place) -> Pixels<OUTPUTS> {
        let [height, width] = self.maps[1];
        std::array::from_fn(|row| {
            std::array::from_fn(|column| {
                let [row, column] = [place.first[0] + row, place.first[1] + column];
                (row < height && column < width).then_some((place.image * height + row) * width + column)
            })
        })
    }
}

/// Whether a convolution is one that this is for: dense, 3×3, of whole registers of channels.
fn suits(conv: &Conv2d) -> bool {
    conv.kernel == [TAPS; 2]
        && conv.stride == [1; 2]
        && conv.dilation == [1; 2]
        && conv.groups == 1
        && conv.padding_before.iter().chain(&conv.padding_after).all(|&padding| padding < TAPS)
        && [conv.in_channels, conv.out_channels].iter().all(|channels| channels.is_multiple_of(LANES))
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

/// How many panels hold so many columns.
fn panels(columns: usize) -> usize {
    columns.div_ceil(PANEL)
}

/// Pixels of a tile: their numbers in the map, none where there is none.
type Pixels<const EDGE: usize> = [[Option<usize>; EDGE]; EDGE];

/// Sixteen channels, from `from` on of `channels`, of a tile's pixels; zero where there is none.
///
/// # Safety
/// Of [`Lanes`]; the pixels' channels lie within `map`.
#[inline(always)]
unsafe fn load<V: Lanes, E: LaneElement, const EDGE: usize>(
    map: &[E],
    pixels: &Pixels<EDGE>,
    [channels, from]: [usize; 2],
) -> [[V; EDGE]; EDGE] {
    // SAFETY: the caller's.
    unsafe {
        let mut values = [[V::splat(0.0); EDGE]; EDGE];
        for (value, pixel) in values.as_flattened_mut().iter_mut().zip(pixels.as_flattened()) {
            let Some(pixel) = pixel else { continue };
            let at = pixel * channels + from;
            debug_assert!(at + LANES <= map.len());
            *value = E::load_lanes(&*map.as_ptr().add(at).cast::<[E; LANES]>());
        }
        values
    }
}

/// Stores the values at all points, those of neighbouring ones `apart` floats from each other.
///
/// # Safety
/// Of [`Lanes`]; they lie within `to`.
#[inline(always)]
unsafe fn store<V: Lanes>(plane: [[V; REACH]; REACH], to: &mut [f32], at: usize, apart: usize) {
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

/// Six coefficients of the input as values at the points.
///
/// # Safety
/// Of [`Lanes`]; likewise below.
#[inline(always)]
unsafe fn input_line<V: Lanes>(d: [V; REACH]) -> [V; REACH] {
    // SAFETY: the caller's.
    unsafe {
        let c = |value: f32| V::splat(value);
        let (both, sum) = (c(P2 * Q2), c(-(P2 + Q2)));
        let (even_p, odd_p) = (d[2].multiply_add(c(-Q2), d[4]), d[1].multiply_add(c(-Q2), d[3]));
        let (even_q, odd_q) = (d[2].multiply_add(c(-P2), d[4]), d[1].multiply_add(c(-P2), d[3]));
        [
            d[0].multiply_add(both, d[2].multiply_add(sum, d[4])),
            odd_p.multiply_add(c(P), even_p),
            odd_p.multiply_add(c(-P), even_p),
            odd_q.multiply_add(c(Q), even_q),
            odd_q.multiply_add(c(-Q), even_q),
            d[1].multiply_add(both, d[3].multiply_add(sum, d[5])),
        ]
    }
}

/// Taps, three or four, as values at the points, divided by what the input's lack.
///
/// # Safety
/// Of [`Lanes`].
#[inline(always)]
unsafe fn filter_line<V: Lanes, const COUNT: usize>(g: [V; COUNT]) -> [V; REACH] {
    const OF_P: f32 = 1.0 / (2.0 * P2 * (P2 - Q2));
    const OF_Q: f32 = 1.0 / (2.0 * Q2 * (Q2 - P2));
    // SAFETY: the caller's.
    unsafe {
        let c = |value: f32| V::splat(value);
        let none = c(0.0);
        let (mut odd_p, mut odd_q) =
            (g[1].multiply_add(c(P * OF_P), none), g[1].multiply_add(c(Q * OF_Q), none));
        if COUNT > TAPS {
            odd_p = g[COUNT - 1].multiply_add(c(P * P2 * OF_P), odd_p);
            odd_q = g[COUNT - 1].multiply_add(c(Q * Q2 * OF_Q), odd_q);
        }
        let even_p = g[2].multiply_add(c(P2 * OF_P), g[0].multiply_add(c(OF_P), none));
        let even_q = g[2].multiply_add(c(Q2 * OF_Q), g[0].multiply_add(c(OF_Q), none));
        [
            g[0].multiply_add(c(1.0 / (P2 * Q2)), none),
            even_p.add(odd_p),
            odd_p.multiply_add(c(-1.0), even_p),
            even_q.add(odd_q),
            odd_q.multiply_add(c(-1.0), even_q),
            g[COUNT - 1],
        ]
    }
}

/// Products at the points as outputs, three or four.
///
/// # Safety
/// Of [`Lanes`].
#[inline(always)]
unsafe fn output_line<V: Lanes, const COUNT: usize>(m: [V; REACH]) -> [V; COUNT] {
    // SAFETY: the caller's.
    unsafe {
        let c = |value: f32| V::splat(value);
        let (sum_p, difference_p) = (m[1].add(m[2]), m[2].multiply_add(c(-1.0), m[1]));
        let (sum_q, difference_q) = (m[3].add(m[4]), m[4].multiply_add(c(-1.0), m[3]));
        let mut y = [m[5]; COUNT];
        y[0] = m[0].add(sum_p).add(sum_q);
        y[1] = difference_p.multiply_add(c(P), difference_q.multiply_add(c(Q), c(0.0)));
        if COUNT > TAPS {
            y[2] = sum_p.multiply_add(c(P2), sum_q.multiply_add(c(Q2), c(0.0)));
            y[3] = difference_p.multiply_add(c(P * P2), difference_q.multiply_add(c(Q * Q2), m[5]));
        } else {
            y[2] = sum_p.multiply_add(c(P2), sum_q.multiply_add(c(Q2), m[5]));
        }
        y
    }
}

/// A column of a plane.
#[inline(always)]
fn column_of<V: Lanes, const HEIGHT: usize, const WIDTH: usize>(
    rows: &[[V; WIDTH]; HEIGHT],
    column: usize,
) -> [V; HEIGHT] {
    let mut values = [rows[0][column]; HEIGHT];
    for (value, row) in values.iter_mut().zip(rows) {
        *value = row[column];
    }
    values
}

/// A patch of the input as values at all points.
///
/// # Safety
/// Of [`Lanes`]; likewise below.
#[inline(always)]
unsafe fn input_plane<V: Lanes>(mut d: [[V; REACH]; REACH]) -> [[V; REACH]; REACH] {
    // SAFETY: the caller's.
    unsafe {
        for row in &mut d {
            *row = input_line(*row);
        }
        for column in 0..REACH {
            let line = input_line(column_of(&d, column));
            for (row, value) in d.iter_mut().zip(line) {
                row[column] = value;
            }
        }
    }
    d
}

/// Taps as values at all points.
///
/// # Safety
/// Of [`Lanes`].
#[inline(always)]
unsafe fn filter_plane<V: Lanes, const COUNT: usize>(g: [[V; COUNT]; COUNT]) -> [[V; REACH]; REACH] {
    // SAFETY: the caller's.
    unsafe {
        let mut rows = [[g[0][0]; REACH]; COUNT];
        for (row, g) in rows.iter_mut().zip(g) {
            *row = filter_line(g);
        }
        let mut plane = [[g[0][0]; REACH]; REACH];
        for column in 0..REACH {
            let line = filter_line(column_of(&rows, column));
            for (row, value) in plane.iter_mut().zip(line) {
                row[column] = value;
            }
        }
        plane
    }
}

/// Products at all points as outputs.
///
/// # Safety
/// Of [`Lanes`].
#[inline(always)]
unsafe fn output_plane<V: Lanes, const COUNT: usize>(m: [[V; REACH]; REACH]) -> [[V; COUNT]; COUNT] {
    // SAFETY: the caller's.
    unsafe {
        let mut rows = [[m[0][0]; COUNT]; REACH];
        for (row, m) in rows.iter_mut().zip(m) {
            *row = output_line(m);
        }
        let mut plane = [[m[0][0]; COUNT]; COUNT];
        for column in 0..COUNT {
            let line: [V; COUNT] = output_line(column_of(&rows, column));
            for (row, value) in plane.iter_mut().zip(line) {
                row[column] = value;
            }
        }
        plane
    }
}
