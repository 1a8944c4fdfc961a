//! The forward pass and the gradient of the input.

use super::{GroupedConv, spread};
use crate::native::conv::correlation::{Correlation, Segment, TapOffsets};
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
    let ([height, width], [source_height, source_width]) = (correlation.result, correlation.source);
    let source_row = source_width * conv.channels;
    assert!(weights.len() >= conv.blocks() * conv.block_floats(), "too few weights");
    for (row, result) in rows.zip(result.chunks_exact_mut(width * conv.channels)) {
        let (image, row) = (row / height, row % height);
        let [class, first] = correlation.rows[row];
        let source = &source[image * source_height * source_row..][..source_height * source_row];
        let source = &source[first * source_row..];
        for (segment, taps) in correlation.segments.iter().zip(&correlation.classes[class].offsets) {
            let last = taps.iter().map(|[at, _]| *at).max();
            let kernel = SegmentKernel { conv, source, taps, last, weights, relu };
            // SAFETY: upheld by the caller; taps are offsets in the packed weights of a block.
            unsafe {
                match conv.group {
                    4 => kernel.run::<V, 4>(segment, correlation.steps, result),
                    8 => kernel.run::<V, 8>(segment, correlation.steps, result),
                    _ => kernel.run::<V, LANES>(segment, correlation.steps, result),
                }
            }
        }
    }
}

/// Computes the pixels of a segment.
struct SegmentKernel<'a, E> {
    conv: &'a GroupedConv,
    /// An image of the source, from the first row that the result reads.
    source: &'a [E],
    taps: &'a [TapOffsets],
    /// The largest offset of a tap in the source.
    last: Option<usize>,
    weights: &'a [f32],
    relu: bool,
}

impl<E: LaneElement> SegmentKernel<'_, E> {
    /// `GROUP` is the number of channels of a group, or [`LANES`] if there are as many or more.
    ///
    /// # Safety
    /// As [`Lanes`] requires; there are weights for all taps.
    #[inline(always)]
    unsafe fn run<V: Lanes, const GROUP: usize>(
        &self,
        segment: &Segment,
        steps: [usize; 2],
        result: &mut [E],
    ) {
        let wide = self.conv.is_wide();
        let mut pixel = 0;
        while pixel < segment.count {
            let left = segment.count - pixel;
            // SAFETY: upheld by the caller.
            pixel += unsafe {
                if wide && left >= 8 {
                    self.pixels::<V, GROUP, 8>(segment, pixel, steps, result)
                } else if left >= 4 {
                    self.pixels::<V, GROUP, 4>(segment, pixel, steps, result)
                } else if left >= 2 {
                    self.pixels::<V, GROUP, 2>(segment, pixel, steps, result)
                } else {
                    self.pixels::<V, GROUP, 1>(segment, pixel, steps, result)
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
        segment: &Segment,
        pixel: usize,
        [source_step, step]: [usize; 2],
        result: &mut [E],
    ) -> usize {
        let channels = self.conv.channels;
        let (source_step, step) = (source_step * channels, step * channels);
        let result = &mut result[segment.first * channels + pixel * step..];
        // Pixels without taps may be beyond the source.
        let source = self.source.get(pixel * source_step..).unwrap_or_default();
        let end = self.last.map_or(0, |last| last + (PIXELS - 1) * source_step + channels);
        assert!(end <= source.len(), "a window reaches beyond the map");
        assert!((PIXELS - 1) * step + channels <= result.len(), "a segment reaches beyond the row");
        for block in 0..self.conv.blocks() {
            // SAFETY: upheld by the caller; the assertions cover every channel of every pixel and tap.
            unsafe {
                let source = source.as_ptr().wrapping_add(self.conv.first_input(block));
                let weights = self.weights.as_ptr().add(block * self.conv.block_floats());
                let mut sums = [V::splat(0.0); PIXELS];
                for &[at, weight] in self.taps {
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
