//! The gradient behind [`super::disjoint`] for maps of eight channels and windows of 2×2: a row of a window, two pixels of eight channels, fills a
//! register of sixteen, where a pixel alone would leave half of it empty. (The other loops gain nothing by it: their selections are short.)

use crate::native::pool::index::{load, numbers};
use crate::native::simd::Element;

/// Channels of a pixel.
pub(super) const CHANNELS: usize = 8;

/// Pixels of a row of a window times channels.
const ROW: usize = 2 * CHANNELS;

/// The same eight numbers twice.
#[inline(always)]
fn twice<T: Copy>(from: [T; CHANNELS]) -> [T; ROW] {
    std::array::from_fn(|lane| from[lane % CHANNELS])
}

/// The eight channels' constants, twice.
#[inline(always)]
fn constants(from: &[f32]) -> [f32; ROW] {
    twice(load::<f32, CHANNELS>(from, 0))
}

/// The number of a window's element in row `i`, by lane.
#[inline(always)]
fn number(i: usize, lane: usize) -> u32 {
    (2 * i + lane / CHANNELS) as u32
}

/// `dx = scale * g + slope * x + offset`, where `g` is `dy` at the winners, for what windows cover.
#[inline(always)]
pub(super) fn backward<E: Element>(
    outputs: usize,
    row_elements: usize,
    x: &[E],
    dy: &[E],
    index: &[u8],
    [scale, slope, offset]: [&[f32]; 3],
    dx: &mut [E],
) {
    let (a, s, o) = (constants(scale), constants(slope), constants(offset));
    for output in 0..outputs {
        let at = output * CHANNELS;
        let (g, winner) = (twice(load::<E, CHANNELS>(dy, at)), twice(numbers::<CHANNELS>(index, at)));
        for i in 0..2 {
            let at = i * row_elements + output * ROW;
            let x = load::<E, ROW>(x, at);
            let to = &mut dx[at..at + ROW];
            for lane in 0..ROW {
                let g = if winner[lane] == number(i, lane) { g[lane] } else { 0.0 };
                to[lane] = E::store(g.mul_add(a[lane], x[lane].mul_add(s[lane], o[lane])));
            }
        }
    }
}
