//! [`super::disjoint`]'s backward pass for maps of eight channels and 2×2 windows: a row of a window, two
//! pixels of eight channels, fills a register, which a single pixel would half fill. (The other loops gain
//! nothing, because their selects are short.)

use crate::native::pool::index::{indices, load};
use crate::native::simd::Element;

/// The channels of a pixel.
pub(super) const CHANNELS: usize = 8;

/// The elements of a row of a window.
const ROW: usize = 2 * CHANNELS;

/// Eight numbers, twice.
#[inline(always)]
fn twice<T: Copy>(from: [T; CHANNELS]) -> [T; ROW] {
    std::array::from_fn(|lane| from[lane % CHANNELS])
}

#[inline(always)]
fn constants(from: &[f32]) -> [f32; ROW] {
    twice(load::<f32, CHANNELS>(from, 0))
}

/// The index of a window's element in row `i`, by lane.
#[inline(always)]
fn number(i: usize, lane: usize) -> u32 {
    (2 * i + lane / CHANNELS) as u32
}

/// `dx = scale * g + slope * x + offset`, where `g` is `dy` at the argmax, for pixels that windows cover.
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
        let (g, argmax) = (twice(load::<E, CHANNELS>(dy, at)), twice(indices::<CHANNELS>(index, at)));
        for i in 0..2 {
            let at = i * row_elements + output * ROW;
            let x = load::<E, ROW>(x, at);
            let to = &mut dx[at..at + ROW];
            for lane in 0..ROW {
                let g = if argmax[lane] == number(i, lane) { g[lane] } else { 0.0 };
                to[lane] = E::store(g.mul_add(a[lane], x[lane].mul_add(s[lane], o[lane])));
            }
        }
    }
}
