//! 3×1 and 1×3 convolution by minimal filtering in one dimension, with any dilation.
//!
//! ```text
//! Y = Aᵀ [ (G g) ⊙ (Bᵀ d) ]        d: 6 inputs    g: 3 taps    Y: 4 outputs: 6 products instead of 12
//! ```
//!
//! The dimension of the taps is the *axis*; a row or column of pixels along it is a *line*. With dilation δ,
//! the pixels x, x + δ, x + 2δ, … of a line are convolved on their own, so that a tile is every δ-th pixel:
//!
//! ```text
//! δ = 2     outputs  0 1 2 3 4 5 6 7 8 …      tile 0: 0 2 4 6    tile 1: 8 10 …    tile 2: 1 3 5 7
//!           inputs of tile 0                  -2 0 2 4 6 8  (padding 2)
//! ```
//!
//! Passes, as in two dimensions (see [`super`]); the transforms are those of [`transform`](super::transform):
//!
//! ```text
//!                   d                 g                       Y    product at each of the 6 points
//! forward           pixels of x       weights                 y    [tiles, in] × [in, out]
//! data gradient     pixels of dy      weights, reversed       dx   [tiles, out] × [out, in]
//! weight gradient   pixels of x       4 pixels of dy          dw   [in, tiles] × [tiles, out]
//! ```
//!
//! **Lower bound.** Half the multiplications, and per 16 channels of a tile of 4 pixels: 6 loads, 14
//! operations and 6 stores for the inputs, 6 loads, 14 operations and 4 stores for the outputs. With 128
//! channels that is 50 instructions beside 768 multiply-adds of `f32` (384 of pairs of int16, whose
//! quantisation takes 40 more); with 64 beside 384 (192); with 16 beside 96 (48), where little is left to
//! gain. Memory is accessed once per map.
//!
//! Weight gradients of bf16 maps are not computed here: they are `f32`, so that the transformed values cannot
//! be rounded, and half of the products at half the rate of bf16 gain nothing.

mod conv;
mod gradient;
#[cfg(test)]
mod tests;

pub use conv::LineConv;
pub use gradient::LineGradient;

use super::{ALPHA, MATRIX_GAP, PADDING_OFFSET};
use crate::native::lanes::{LANES, LaneElement, Lanes};
use crate::native::simd::{CACHE_LINE, prefetch_element};
use stratus_graph::ops::Conv2d;

/// The taps of a kernel: r.
const TAPS: usize = 3;
/// The outputs of a tile: m = α + 1 - r.
const OUTPUTS: usize = ALPHA + 1 - TAPS;

/// The number of tiles by which pixels are prefetched before their transform.
const PREFETCHED_TILES: usize = 8;

/// The division of a pass's maps into tiles along the axis.
#[derive(Clone, Debug)]
struct LineGrid {
    /// The dimension of the taps: 0 for 3×1, 1 for 1×3.
    axis: usize,
    dilation: usize,
    batch: usize,
    /// `[H, W]` of the map of patches, and of the map of output tiles.
    maps: [[usize; 2]; 2],
    /// The padding before the first pixel of a line of the first map.
    padding: usize,
    /// The first output of every tile of a line.
    starts: Vec<usize>,
}

/// The pixels of a tile in one map: offsets of their first channels, or [`PADDING_OFFSET`].
type LineOffsets<const COUNT: usize> = [usize; COUNT];

impl LineGrid {
    /// The grid of a convolution's forward pass, or of its data gradient if `reversed`. `None` if it is not a
    /// dense 3×1 or 1×3 convolution of stride 1 with whole registers of channels, or if nothing is gained
    /// because too many outputs of the tiles are outside of the map.
    fn new(conv: &Conv2d, batch: usize, input: [usize; 2], reversed: bool) -> Option<Self> {
        let axis = match conv.kernel {
            [TAPS, 1] => 0,
            [1, TAPS] => 1,
            _ => return None,
        };
        let dilation = conv.dilation[axis];
        let reach = dilation.checked_mul(TAPS - 1)?;
        let is_supported = conv.stride == [1; 2]
            && conv.groups == 1
            && dilation > 0
            && [conv.padding_before[1 - axis], conv.padding_after[1 - axis]] == [0; 2]
            && conv.padding_before[axis] <= reach
            && [conv.in_channels, conv.out_channels]
                .iter()
                .all(|&channels| channels >= LANES && channels.is_multiple_of(LANES));
        if !is_supported || batch == 0 {
            return None;
        }
        let output = conv.output_size(input).ok()?;
        let before = conv.padding_before[axis];
        let (maps, padding) =
            if reversed { ([output, input], reach - before) } else { ([input, output], before) };
        let length = maps[1][axis];
        let tile = OUTPUTS * dilation;
        let phases = 0..dilation.min(length);
        let starts: Vec<usize> = phases.flat_map(|phase| (phase..length).step_by(tile)).collect();
        // Six products per tile, and a quarter as much again for the transforms.
        let is_profitable = starts.len() * ALPHA * 5 <= length * TAPS * 4;
        (length > 0 && is_profitable).then_some(Self { axis, dilation, batch, maps, padding, starts })
    }

    /// The tiles of the batch. Neighbouring numbers are neighbours in memory.
    fn tiles(&self) -> usize {
        self.batch * self.starts.len() * self.maps[1][1 - self.axis]
    }

    /// The pixels of a map of the batch.
    fn pixels(&self, map: usize) -> usize {
        self.batch * self.maps[map].iter().product::<usize>()
    }

    /// `COUNT` pixels of tile number `tile` in a map of `channels`, the first one `before` pixels before the
    /// tile's first output.
    #[inline(always)]
    fn offsets<const COUNT: usize>(
        &self,
        map: usize,
        tile: usize,
        before: usize,
        channels: usize,
    ) -> LineOffsets<COUNT> {
        let [height, width] = self.maps[map];
        // The pixel of the line at position 0, the distance between its pixels, and the tile of the line.
        let (origin, step, start) = if self.axis == 0 {
            let (row, column) = (tile / width, tile % width);
            let (image, start) = (row / self.starts.len(), row % self.starts.len());
            (image * height * width + column, width, start)
        } else {
            let (line, start) = (tile / self.starts.len(), tile % self.starts.len());
            (line * width, 1, start)
        };
        // Negative positions become huge unsigned ones, so that one comparison covers both ends.
        let first = self.starts[start].wrapping_sub(before);
        std::array::from_fn(|pixel| {
            let position = first.wrapping_add(pixel * self.dilation);
            if position < self.maps[map][self.axis] {
                (origin + position * step) * channels
            } else {
                PADDING_OFFSET
            }
        })
    }

    /// The inputs of a tile.
    #[inline(always)]
    fn inputs(&self, tile: usize, channels: usize) -> LineOffsets<ALPHA> {
        self.offsets(0, tile, self.padding, channels)
    }

    /// The outputs of a tile.
    #[inline(always)]
    fn outputs(&self, tile: usize, channels: usize) -> LineOffsets<OUTPUTS> {
        self.offsets(1, tile, 0, channels)
    }
}

/// Channels `from..from + 16` of the pixels of a tile; zero outside of the map.
///
/// # Safety
/// As [`Lanes`] requires; the channels of pixels that are inside must be in `map`.
#[inline(always)]
unsafe fn load_pixels<V: Lanes, E: LaneElement, const COUNT: usize>(
    map: &[E],
    pixels: &LineOffsets<COUNT>,
    from: usize,
) -> [V; COUNT] {
    let zeros = [E::store(0.0); LANES];
    // SAFETY: upheld by the caller.
    unsafe {
        let mut values = [V::splat(0.0); COUNT];
        for (value, &start) in values.iter_mut().zip(pixels) {
            let present = start != PADDING_OFFSET;
            debug_assert!(!present || start + from + LANES <= map.len());
            let at = map.as_ptr().wrapping_add(start.wrapping_add(from)).cast::<[E; LANES]>();
            *value = E::load_lanes(if present { &*at } else { &zeros });
        }
        values
    }
}

/// Prefetches the cache line of channels `from..` of each pixel, if one starts there.
#[inline(always)]
fn prefetch_pixels<E: LaneElement, const COUNT: usize>(map: &[E], pixels: &LineOffsets<COUNT>, from: usize) {
    if (from * size_of::<E>()).is_multiple_of(CACHE_LINE) {
        for &start in pixels.iter().filter(|&&start| start != PADDING_OFFSET) {
            prefetch_element(map, start + from);
        }
    }
}

/// The elements of the matrices of all points, of `[rows, columns]`, with their gaps.
fn all_points(rows: usize, columns: usize) -> usize {
    ALPHA * (rows * columns + MATRIX_GAP)
}
