//! The forward pass and the gradient of the input: pixels of a row times the weights of their taps.

use super::DepthwiseConv;
use crate::native::conv::correlation::{Correlation, PixelGroup, SegmentView};
use crate::native::lanes::{LANES, LaneElement, Lanes, with_lanes};
use crate::native::simd::prefetch_l1;
use std::ops::Range;

with_lanes! {
    pub(super) fn correlate_rows / correlate_rows_body(
        conv: &DepthwiseConv,
        correlation: &Correlation,
        rows: Range<usize>,
        source: &[E],
        weights: &[f32],
        biases: &[f32],
        output: RowOutput,
        result: &mut [E],
    )
}

/// How results are stored.
#[derive(Clone, Copy)]
pub(super) struct RowOutput {
    /// True if ReLU is applied.
    pub(super) relu: bool,
    /// True if the stores bypass the caches; every register must be aligned.
    pub(super) streams: bool,
}

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
    output: RowOutput,
    result: &mut [E],
) {
    assert!(weights.len() >= conv.taps() * conv.channels && biases.len() >= conv.channels);
    for (row, result) in rows.zip(result.chunks_exact_mut(correlation.result[1] * conv.channels)) {
        let (class, source) = correlation.row(row, conv.channels, source);
        for segment in SegmentView::of_row(correlation, class, source, conv.channels) {
            let kernel = SegmentKernel { conv, segment, weights, biases, output };
            // SAFETY: upheld by the caller; taps are offsets in the packed weights.
            unsafe { kernel.run::<V>(result) };
        }
    }
    if output.streams {
        // SAFETY: upheld by the caller.
        unsafe { V::end_stream() };
    }
}

/// Computes the pixels of a segment.
struct SegmentKernel<'a, E> {
    conv: &'a DepthwiseConv,
    segment: SegmentView<'a, E>,
    weights: &'a [f32],
    biases: &'a [f32],
    output: RowOutput,
}

impl<E: LaneElement> SegmentKernel<'_, E> {
    /// # Safety
    /// As [`Lanes`] requires; taps are less than the number of weights.
    #[inline(always)]
    unsafe fn run<V: Lanes>(&self, result: &mut [E]) {
        let wide = self.conv.is_wide();
        let mut pixel = 0;
        while pixel < self.segment.len() {
            let left = self.segment.len() - pixel;
            // Four to eight independent sums of sixteen lanes keep both FMA units busy. With fewer pixels, a
            // pixel has several of them.
            pixel += unsafe {
                if wide && left >= 8 {
                    self.pixels::<V, 8, 1>(pixel, result)
                } else if left >= 4 {
                    self.pixels::<V, 4, 1>(pixel, result)
                } else if left >= 2 && self.conv.channels >= 2 * LANES {
                    self.pixels::<V, 2, 2>(pixel, result)
                } else if self.conv.channels >= 4 * LANES {
                    self.pixels::<V, 1, 4>(pixel, result)
                } else {
                    self.pixels::<V, 1, 1>(pixel, result)
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
        pixel: usize,
        result: &mut [E],
    ) -> usize {
        let channels = self.conv.channels;
        let PixelGroup { source, end, result, steps } = self.segment.pixels(pixel, PIXELS, result);
        let [source_step, step] = steps;
        let block_channels = BLOCKS * LANES;
        for block in 0..channels.div_ceil(block_channels) {
            // The last one may overlap the one before it.
            let channel = (block * block_channels).min(channels - block_channels);
            // A part of the next pixels with each block, of the last row that they read: the others are
            // in the caches from the row before. The hardware does not prefetch them, because the reads
            // of a pixel's channels alternate with those of others.
            let read = PIXELS * self.segment.source_pixels * block_channels;
            prefetch_l1(source, end + block * read..end + (block + 1) * read);
            if !self.output.streams {
                let (next, written) = (PIXELS * step, PIXELS * block_channels);
                prefetch_l1(result, next + block * written..next + (block + 1) * written);
            }
            // SAFETY: upheld by the caller; registers of channels at every pixel and tap are inside.
            unsafe {
                let biases = self.biases.as_ptr().add(channel);
                let source = source.as_ptr().wrapping_add(channel);
                let weights = self.weights.as_ptr().add(channel);
                let mut sums = [[V::splat(0.0); PIXELS]; BLOCKS];
                for (number, sums) in sums.iter_mut().enumerate() {
                    *sums = [V::load(&*biases.add(number * LANES).cast()); PIXELS];
                }
                for &[at, weight] in self.segment.taps {
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
                        let sum = if self.output.relu { sum.relu() } else { sum };
                        let at = pixel * step + channel + number * LANES;
                        let to = result.as_mut_ptr().add(at).cast::<[E; LANES]>();
                        if self.output.streams {
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
