//! The gradient of the weights, of some registers of outputs.

use super::{GroupedConv, spread};
use crate::native::conv::correlation::KernelColumn;
use crate::native::lanes::{LANES, LaneElement, Lanes, with_lanes};
use std::ops::Range;

with_lanes! {
    pub(super) fn gradient_blocks / gradient_blocks_body(
        conv: &GroupedConv,
        blocks: Range<usize>,
        x: &[E],
        dy: &[E],
        sums: &mut [f32],
    )
}

/// The inputs whose sums are in registers together.
const INPUTS: usize = 4;

/// The size of the output rows for which a block is computed before the next, so that they and the input rows
/// that they read, which are not counted, stay in L2.
const CHUNK_BYTES: usize = 128 << 10;

/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn gradient_blocks_body<V: Lanes, E: LaneElement>(
    conv: &GroupedConv,
    blocks: Range<usize>,
    x: &[E],
    dy: &[E],
    sums: &mut [f32],
) {
    let [height, width] = conv.passes.forward.result;
    sums.fill(0.0);
    let rows = conv.batch * height;
    let chunk = (CHUNK_BYTES / (width * conv.channels * size_of::<E>()).max(1)).max(1);
    for first in (0..rows).step_by(chunk) {
        for (block, sums) in blocks.clone().zip(sums.chunks_exact_mut(conv.block_floats())) {
            for row in first..(first + chunk).min(rows) {
                let kernel = RowKernel { conv, x, dy, row, block };
                // SAFETY: upheld by the caller.
                unsafe {
                    match conv.group {
                        4 => kernel.add::<V, 4>(sums),
                        8 => kernel.add::<V, 8>(sums),
                        _ => kernel.add::<V, LANES>(sums),
                    }
                }
            }
        }
    }
}

/// Adds a row of the output, counted over all images, to the sums of a block.
struct RowKernel<'a, E> {
    conv: &'a GroupedConv,
    x: &'a [E],
    dy: &'a [E],
    row: usize,
    block: usize,
}

impl<E: LaneElement> RowKernel<'_, E> {
    /// # Safety
    /// As [`Lanes`] requires.
    #[inline(always)]
    unsafe fn add<V: Lanes, const GROUP: usize>(&self, sums: &mut [f32]) {
        let conv = self.conv;
        let channels = conv.channels;
        let ([in_height, in_width], [height, width]) =
            (conv.passes.forward.source, conv.passes.forward.result);
        let (image, row) = (self.row / height, self.row % height);
        let [class, first] = conv.passes.forward.rows[row];
        let dy = &self.dy[self.row * width * channels..(self.row + 1) * width * channels];
        let step = conv.stride[1] * channels;
        for tap in &conv.passes.forward.classes[class].taps {
            let from = (image * in_height + first + tap.pixel) * in_width * channels;
            let x = &self.x[from..from + in_width * channels];
            for (number, KernelColumn { outputs: pixels, first }) in conv.passes.columns.iter().enumerate() {
                if pixels.is_empty() {
                    continue;
                }
                let start = first + (pixels.start * conv.stride[1]) as isize;
                let end = start + ((pixels.len() - 1) * conv.stride[1]) as isize;
                assert!(start >= 0 && end < in_width as isize && pixels.end <= width, "a tap beyond the row");
                // SAFETY: upheld by the caller; the assertion covers every pixel.
                unsafe {
                    let x = x.as_ptr().add(start as usize * channels + conv.first_input(self.block));
                    let dy = dy.as_ptr().add(pixels.start * channels + self.block * LANES);
                    let tap = tap.position * conv.kernel[1] + number;
                    let sums: &mut [[f32; LANES]] = sums.as_chunks_mut().0;
                    let sums = &mut sums[tap * conv.group..(tap + 1) * conv.group];
                    for (chunk, sums) in sums.as_chunks_mut::<INPUTS>().0.iter_mut().enumerate() {
                        let mut totals = [V::splat(0.0); INPUTS];
                        for pixel in 0..pixels.len() {
                            let gradient = E::load_lanes::<V>(&*dy.add(pixel * channels).cast());
                            let x = x.add(pixel * step);
                            for (input, total) in totals.iter_mut().enumerate() {
                                let value = spread::<V, E, GROUP>(x, chunk * INPUTS + input);
                                *total = value.multiply_add(gradient, *total);
                            }
                        }
                        for (total, sum) in totals.into_iter().zip(sums) {
                            total.add(V::load(sum)).store(sum);
                        }
                    }
                }
            }
        }
    }
}
