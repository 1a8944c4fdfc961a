//! The index map of a max-pooling: the argmax of each window, as the number of its element in the window
//! (u8).

use crate::native::rows::Geometry;
use crate::native::simd::Element;
use stratus_engine::ops::FusedPool;

/// In `index`: no gradient passes, ReLU cut the maximum off.
pub(crate) const RELU_CUT: u8 = FusedPool::CUT;

/// Zeroes what a map of indices holds where channels are padding. `index` is pixels of one channel group.
pub(crate) fn clear_padding(geometry: &Geometry, group: usize, index: &mut [u8]) {
    let filled = geometry.channels - (group * geometry.width).min(geometry.channels);
    if filled < geometry.width {
        index.chunks_exact_mut(geometry.width).for_each(|pixel| pixel[filled..].fill(0));
    }
}

/// `K` elements of a map from `at` on.
#[inline(always)]
pub(crate) fn load<E: Element, const K: usize>(from: &[E], at: usize) -> [f32; K] {
    let from = &from[at..at + K];
    std::array::from_fn(|lane| from[lane].load())
}

/// `K` indices from `at` on.
#[inline(always)]
pub(crate) fn indices<const K: usize>(from: &[u8], at: usize) -> [u32; K] {
    let from = &from[at..at + K];
    std::array::from_fn(|lane| u32::from(from[lane]))
}
