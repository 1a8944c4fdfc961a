//! The index map of max-pooling: the position of each window's argmax within the window (u8).

use crate::native::rows::MapGeometry;
use crate::native::simd::Element;
use stratus_engine::ops::FusedPool;

/// The index value of a window without a gradient, because ReLU masks its maximum.
pub(crate) const RELU_MASKED: u8 = FusedPool::RELU_MASKED;

/// Zeroes the indices of padded channels. `index` holds pixels of one channel group.
pub(crate) fn clear_padding(geometry: &MapGeometry, group: usize, index: &mut [u8]) {
    let filled = geometry.channels - (group * geometry.pixel_channels).min(geometry.channels);
    if filled < geometry.pixel_channels {
        index.chunks_exact_mut(geometry.pixel_channels).for_each(|pixel| pixel[filled..].fill(0));
    }
}

/// Loads `K` elements of a map, starting at `at`.
#[inline(always)]
pub(crate) fn load<E: Element, const K: usize>(from: &[E], at: usize) -> [f32; K] {
    let from = &from[at..at + K];
    std::array::from_fn(|lane| from[lane].load())
}

/// Loads `K` indices, starting at `at`.
#[inline(always)]
pub(crate) fn indices<const K: usize>(from: &[u8], at: usize) -> [u32; K] {
    let from = &from[at..at + K];
    std::array::from_fn(|lane| u32::from(from[lane]))
}
