//! The forward pass and the gradient of the input: pixels of a row times the weights of their taps.

use super::DepthwiseConv;
use crate::native::conv::correlation::{Correlation, Segment, TapOffsets};
use crate::native::lanes::{LANES, LaneElement, Lanes, with_lanes};
use crate::native::simd::prefetch_upcoming;
use std::ops::Range;

with_lanes! {
    pub(super) fn correlate_rows / correlate_rows_body(
        conv: &DepthwiseConv,
        correlation: &Correlation,
        rows: Range<usize>,
        source: &[E],
        weights: &[f32],
        biases: &[f32],
        relu: bool,
        result: &mut [E],
    )
}

/// The minimum size of a result whose stores bypass the caches.
const LARGE_MAP_BYTES: usize = 16 << 20;

/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // Slices and constants for an inner loop.
unsafe fn correlate_rows_body<V: Lanes, E: LaneElement>(
    conv: &DepthwiseConv,
    correlation: &Correlation,
    rows: Range<usize>,
    source: &[E],
    weights: &[f32],
    biases: &[f32],
    relu: bool,
    result: &mut [E],
) {
    let image_bytes = correlation.result.iter().product::<usize>() * conv.channels * size_of::<E>();
    // Every register of a pixel must be aligned.
    let streams = conv.batch * image_bytes >= LARGE_MAP_BYTES
        && conv.channels.is_multiple_of(LANES)
        && result.as_ptr().addr().is_multiple_of(LANES * size_of::<E>());
    let ([height, width], [source_height, source_width]) = (correlation.result, correlation.source);
    let source_row = source_width * conv.channels;
    assert!(weights.len() >= conv.taps() * conv.channels && biases.len() >= conv.channels);
    for (row, result) in rows.zip(result.chunks_exact_mut(width * conv.channels)) {
        let (image, row) = (row / height, row % height);
        let [class, first] = correlation.rows[row];
        let source = &source[image * source_height * source_row..][..source_height * source_row];
        let source = &source[first * source_row..];
        for (segment, taps) in correlation.segments.iter().zip(&correlation.classes[class].offsets) {
            let last = taps.iter().map(|[at, _]| *at).max();
            let kernel = SegmentKernel { conv, source, taps, last, weights, biases, relu, streams };
            // SAFETY: upheld by the caller; taps are offsets in the packed weights.
            unsafe { kernel.run::<V>(segment, correlation.steps, result) };
        }
    }
    if streams {
        // SAFETY: upheld by the caller.
        unsafe { V::end_stream() };
    }
}

/// Computes the pixels of a segment.
struct SegmentKernel<'a, E> {
    conv: &'a DepthwiseConv,
    /// An image of the source, from the first row that the result reads.
    source: &'a [E],
    taps: &'a [TapOffsets],
    /// The largest offset of a tap in the source.
    last: Option<usize>,
    weights: &'a [f32],
    biases: &'a [f32],
    relu: bool,
    /// True if the stores of the result bypass the caches.
    streams: bool,
}

impl<E: LaneElement> SegmentKernel<'_, E> {
    /// # Safety
    /// As [`Lanes`] requires; taps are less than the number of weights.
    #[inline(always)]
    unsafe fn run<V: Lanes>(&self, segment: &Segment, steps: [usize; 2], result: &mut [E]) {
        let wide = self.conv.is_wide();
        let mut pixel = 0;
        while pixel < segment.count {
            let left = segment.count - pixel;
            // Four to eight independent sums of sixteen lanes keep both FMA units busy. With fewer pixels, a
            // pixel has several of them.
            pixel += unsafe {
                if wide && left >= 8 {
                    self.pixels::<V, 8, 1>(segment, pixel, steps, result)
                } else if left >= 4 {
                    self.pixels::<V, 4, 1>(segment, pixel, steps, result)
                } else if left >= 2 && self.conv.channels >= 2 * LANES {
                    self.pixels::<V, 2, 2>(segment, pixel, steps, result)
                } else if self.conv.channels >= 4 * LANES {
                    self.pixels::<V, 1, 4>(segment, pixel, steps, result)
                } else {
                    self.pixels::<V, 1, 1>(segment, pixel, steps, result)
                }
            };
        }
    }

    /// Computes `PIXELS` pixels, starting with the segment's `pixel`, `BLOCKS` registers of channels at a
    /// time, and returns `PIXELS`.
    ///
    /// # Safety
    /// As [`Self::run`]; there are that many channels.
    #[inline(always)]
    unsafe fn pixels<V: Lanes, const PIXELS: usize, const BLOCKS: usize>(
        &self,
        segment: &Segment,
        pixel: usize,
        [source_step, step]: [usize; 2],
        result: &mut [E],
    ) -> usize {
        let channels = self.conv.channels;
        let source_pixels = PIXELS * source_step;
        let (source_step, step) = (source_step * channels, step * channels);
        let result = &mut result[segment.first * channels + pixel * step..];
        // Pixels without taps may be beyond the source.
        let source = self.source.get(pixel * source_step..).unwrap_or_default();
        let end = self.last.map_or(0, |last| last + (PIXELS - 1) * source_step + channels);
        assert!(end <= source.len(), "a window reaches beyond the map");
        assert!((PIXELS - 1) * step + channels <= result.len(), "a segment reaches beyond the row");
        // The next pixels, of the last row that this one reads: the others are in the caches from the row
        // before. The hardware does not prefetch them, because the reads of a pixel's channels alternate with
        // those of others.
        let upcoming = source.get(end..).unwrap_or_default();
        let block_channels = BLOCKS * LANES;
        for block in 0..channels.div_ceil(block_channels) {
            // The last one may overlap the one before it.
            let channel = (block * block_channels).min(channels - block_channels);
            let ahead = block * block_channels;
            let (reads, writes) = (source_pixels * block_channels, PIXELS * block_channels);
            prefetch_upcoming(upcoming.get(source_pixels * ahead..).unwrap_or_default(), reads);
            if !self.streams {
                let next = result.get(PIXELS * (step + ahead)..).unwrap_or_default();
                prefetch_upcoming(next, writes);
            }
            // SAFETY: upheld by the caller; the assertions cover registers at every channel of every pixel
            // and tap.
            unsafe {
                let biases = self.biases.as_ptr().add(channel);
                let source = source.as_ptr().wrapping_add(channel);
                let weights = self.weights.as_ptr().add(channel);
                let mut sums = [[V::splat(0.0); PIXELS]; BLOCKS];
                for (number, sums) in sums.iter_mut().enumerate() {
                    *sums = [V::load(&*biases.add(number * LANES).cast()); PIXELS];
                }
                for &[at, weight] in self.taps {
                    for (number, sums) in sums.iter_mut().enumerate() {
                        let weight = V::load(&*weights.add(weight + number * LANES).cast());
                        let source = source.add(at + number * LANES);
                        for (pixel, sum) in sums.iter_mut().enumerate() {
                            let value = E::load_lanes::<V>(&*source.add(pixel * source_step).cast());
                            *sum = value.multiply_add(weight, *sum);
                        }
                    }
                }
                for (number, sums) in sums.into_iter().enumerate() {
                    for (pixel, sum) in sums.into_iter().enumerate() {
                        let sum = if self.relu { sum.relu() } else { sum };
                        let at = pixel * step + channel + number * LANES;
                        let to = result.as_mut_ptr().add(at).cast::<[E; LANES]>();
                        if self.streams {
                            E::stream_lanes(sum, &mut *to);
                        } else {
                            E::store_lanes(sum, &mut *to);
                        }
                    }
                }
            }
        }
        PIXELS
    }
}
