//! The forward pass and the gradient of the input.

use super::{GroupedConv, spread};
use crate::native::conv::correlation::{Correlation, PixelGroup, SegmentView};
use crate::native::lanes::{LANES, LaneElement, Lanes, with_lanes};
use std::ops::Range;

with_lanes! {
    pub(super) fn correlate_rows / correlate_rows_body(
        conv: &GroupedConv,
        correlation: &Correlation,
        rows: Range<usize>,
        source: &[E],
        weights: &[f32],
        relu: bool,
        result: &mut [E],
    )
}

/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn correlate_rows_body<V: Lanes, E: LaneElement>(
    conv: &GroupedConv,
    correlation: &Correlation,
    rows: Range<usize>,
    source: &[E],
    weights: &[f32],
    relu: bool,
    result: &mut [E],
) {
    assert!(weights.len() >= conv.blocks() * conv.block_floats(), "too few weights");
    for (row, result) in rows.zip(result.chunks_exact_mut(correlation.result[1] * conv.channels)) {
        let (class, source) = correlation.row(row, conv.channels, source);
        for segment in SegmentView::of_row(correlation, class, source, conv.channels) {
            let kernel = SegmentKernel { conv, segment, weights, relu };
            // SAFETY: upheld by the caller; taps are offsets in the packed weights of a block.
            unsafe {
                match conv.group {
                    4 => kernel.run::<V, 4>(result),
                    8 => kernel.run::<V, 8>(result),
                    _ => kernel.run::<V, LANES>(result),
                }
            }
        }
    }
}

/// Computes the pixels of a segment.
struct SegmentKernel<'a, E> {
    conv: &'a GroupedConv,
    segment: SegmentView<'a, E>,
    weights: &'a [f32],
    relu: bool,
}

impl<E: LaneElement> SegmentKernel<'_, E> {
    /// `GROUP` is the number of channels of a group, or [`LANES`] if there are as many or more.
    ///
    /// # Safety
    /// As [`Lanes`] requires; there are weights for all taps.
    #[inline(always)]
    unsafe fn run<V: Lanes, const GROUP: usize>(&self, result: &mut [E]) {
        let wide = self.conv.is_wide();
        let mut pixel = 0;
        while pixel < self.segment.len() {
            let left = self.segment.len() - pixel;
            // SAFETY: upheld by the caller.
            pixel += unsafe {
                if wide && left >= 8 {
                    self.pixels::<V, GROUP, 8>(pixel, result)
                } else if left >= 4 {
                    self.pixels::<V, GROUP, 4>(pixel, result)
                } else if left >= 2 {
                    self.pixels::<V, GROUP, 2>(pixel, result)
                } else {
                    self.pixels::<V, GROUP, 1>(pixel, result)
                }
            };
        }
    }

    /// Computes `PIXELS` pixels, starting with the segment's `pixel`, and returns `PIXELS`.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[inline(always)]
    unsafe fn pixels<V: Lanes, const GROUP: usize, const PIXELS: usize>(
        &self,
        pixel: usize,
        result: &mut [E],
    ) -> usize {
        let PixelGroup { source, result, steps, .. } = self.segment.pixels(pixel, PIXELS, result);
        let [source_step, step] = steps;
        for block in 0..self.conv.blocks() {
            // SAFETY: upheld by the caller; every channel of every pixel and tap is inside.
            unsafe {
                let source = source.as_ptr().wrapping_add(self.conv.first_input(block));
                let weights = self.weights.as_ptr().add(block * self.conv.block_floats());
                let mut sums = [V::splat(0.0); PIXELS];
                for &[at, weight] in self.segment.taps {
                    let (source, weights) = (source.add(at), weights.add(weight));
                    for input in 0..if GROUP < LANES { GROUP } else { self.conv.group } {
                        let weight = V::load(&*weights.add(input * LANES).cast());
                        for (pixel, sum) in sums.iter_mut().enumerate() {
                            let value = spread::<V, E, GROUP>(source.add(pixel * source_step), input);
                            *sum = value.multiply_add(weight, *sum);
                        }
                    }
                }
                for (pixel, sum) in sums.into_iter().enumerate() {
                    let sum = if self.relu { sum.relu() } else { sum };
                    let to = result.as_mut_ptr().add(pixel * step + block * LANES).cast::<[E; LANES]>();
                    E::store_lanes(sum, &mut *to);
                }
            }
        }
        PIXELS
    }
}
