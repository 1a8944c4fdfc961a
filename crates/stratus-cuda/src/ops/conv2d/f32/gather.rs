//! Implicit GEMM of the forward pass and the data gradient: the gather of the left factor, from the input or
//! from the gradient of the output.
//!
//! A data gradient of stride `s` consists of `s_h · s_w` products, one per *phase*: pixels of the input with
//! equal coordinates modulo the stride have the same taps of the kernel.

use super::{BlockTile, F32Convolution, TILE_K, mixed_radix_step, part_depth};
use crate::ffi::cudnn::{Pass, Problem};
use crate::ops::{KernelBuilder, int, long};
use crate::processor::{Argument, Call};
use stratus_graph::ops::Conv2d;

/// The taps of the pixels of one phase, along one side.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PhaseTaps {
    /// The first tap.
    first: usize,
    /// The step from one tap to the next.
    next: usize,
    /// The number of taps.
    count: usize,
    /// The output of the first pixel's first tap.
    offset: i64,
    /// The distance back from one tap's output to the next tap's.
    back: usize,
}

impl PhaseTaps {
    fn new(kernel: usize, stride: usize, dilation: usize, padding: usize, phase: usize) -> Self {
        // Output p reads pixel p * stride - padding + tap * dilation.
        let mut common = (stride, dilation);
        while common.1 > 0 {
            common = (common.1, common.0 % common.1);
        }
        let (next, back) = (stride / common.0, dilation / common.0);
        let distance = |tap: usize| (phase + padding) as i64 - (tap * dilation) as i64;
        let meets = |tap: &usize| distance(*tap).rem_euclid(stride as i64) == 0;
        match (0..next.min(kernel)).find(meets) {
            Some(first) => {
                let (count, offset) = ((kernel - first).div_ceil(next), distance(first) / stride as i64);
                Self { first, next, count, offset, back }
            }
            None => Self { first: 0, next, count: 0, offset: 0, back },
        }
    }
}

/// The launch of a kernel that gathers a map.
pub(super) struct Gather {
    /// The channels, height and width of the map.
    map: [usize; 3],
    /// The channels, height and width of the result.
    result: [usize; 3],
    /// The number of pixels of the result that the launch computes, along each side.
    pixels: [usize; 2],
    /// The step between these pixels.
    pixel_step: [usize; 2],
    /// The first of these pixels.
    first_pixel: [usize; 2],
    /// In the map, the step between pixels.
    step: [usize; 2],
    /// In the map, the position of the first tap of the first pixel.
    first: [i64; 2],
    /// In the map, the step between taps.
    tap: [i64; 2],
    /// The number of taps.
    taps: [usize; 2],
    /// The first of the taps in the kernel.
    first_tap: [usize; 2],
    /// The step between taps in the kernel.
    next_tap: [usize; 2],
}

impl F32Convolution<'_> {
    /// The gather of the forward pass.
    pub(super) fn forward(&self) -> Gather {
        let Problem { x, y, .. } = self.problem;
        let Conv2d { kernel, stride, dilation, padding_before, .. } = *self.conv;
        Gather {
            map: [x[1], x[2], x[3]],
            result: [y[1], y[2], y[3]],
            pixels: [y[2], y[3]],
            pixel_step: [1, 1],
            first_pixel: [0, 0],
            step: stride,
            first: padding_before.map(|padding| -(padding as i64)),
            tap: dilation.map(|dilation| dilation as i64),
            taps: kernel,
            first_tap: [0, 0],
            next_tap: [1, 1],
        }
    }

    /// The gathers of the data gradient, one per phase.
    pub(super) fn phases(&self) -> Vec<Gather> {
        let Problem { x, y, .. } = self.problem;
        let Conv2d { kernel, stride, dilation, padding_before, .. } = *self.conv;
        let phases = (0..stride[0]).flat_map(|h| (0..stride[1]).map(move |w| [h, w]));
        // A small map has no pixels of some phases.
        let phases = phases.filter(|phase| phase[0] < x[2] && phase[1] < x[3]);
        let gather = |phase: [usize; 2]| {
            let taps = [0, 1].map(|side| {
                PhaseTaps::new(kernel[side], stride[side], dilation[side], padding_before[side], phase[side])
            });
            Gather {
                map: [y[1], y[2], y[3]],
                result: [x[1], x[2], x[3]],
                pixels: [0, 1].map(|side| (x[2 + side] - phase[side]).div_ceil(stride[side])),
                pixel_step: stride,
                first_pixel: phase,
                step: [1, 1],
                first: taps.map(|taps| taps.offset),
                tap: taps.map(|taps| -(taps.back as i64)),
                taps: taps.map(|taps| taps.count),
                first_tap: taps.map(|taps| taps.first),
                next_tap: taps.map(|taps| taps.next),
            }
        };
        phases.map(gather).collect()
    }

    /// The launch for one gather.
    pub(super) fn gather(
        &self,
        tile: &BlockTile,
        gather: &Gather,
        to: Argument,
        parts: usize,
        builder: &KernelBuilder<'_>,
    ) -> Result<Box<dyn Call>, String> {
        let [x, weight, y] = self.arguments;
        let map = if self.problem.pass == Pass::Forward { x } else { y };
        let [channels, height, width] = gather.map;
        let [columns, result_height, result_width] = gather.result;
        let rows = self.problem.x[0] * gather.pixels[0] * gather.pixels[1];
        let depth = gather.taps[0] * gather.taps[1] * channels;
        let part = part_depth(depth, parts);
        // The kernel divides by it, even without taps.
        let taps_w = gather.taps[1].max(1);
        let mut arguments = vec![map, weight, to, long(self.elements())];
        for number in [rows, columns, depth, part, channels, height, width] {
            arguments.push(int(number)?);
        }
        let pairs = [gather.pixels, gather.step];
        for number in pairs.into_iter().flatten() {
            arguments.push(int(number)?);
        }
        for number in [gather.first, gather.tap].into_iter().flatten() {
            arguments
                .push(Argument::Int(i32::try_from(number).map_err(|_| format!("{number} is too large"))?));
        }
        let pairs = [
            [gather.taps[0], taps_w],
            [result_height, result_width],
            gather.pixel_step,
            gather.first_pixel,
            self.conv.kernel,
            gather.first_tap,
            gather.next_tap,
        ];
        let moves = [TILE_K, tile.rows_at_a_time()].map(|by| mixed_radix_step(by, [channels, taps_w]));
        for number in pairs.into_iter().flatten().chain(moves.into_iter().flatten()) {
            arguments.push(int(number)?);
        }
        self.launch(tile, "convolve", [rows, columns], parts, arguments, builder)
    }
}

#[cfg(test)]
mod tests {
    use super::PhaseTaps;

    #[test]
    fn every_tap_contributes_once_to_its_output() {
        for (kernel, stride, dilation, padding) in
            [(3, 1, 1, 1), (3, 2, 1, 1), (1, 2, 1, 0), (2, 3, 1, 0), (3, 2, 3, 0), (5, 4, 2, 3), (7, 6, 4, 9)]
        {
            for pixel in 0..2 * stride {
                let taps = PhaseTaps::new(kernel, stride, dilation, padding, pixel % stride);
                let seen = (0..taps.count).map(|i| {
                    let output = (pixel / stride) as i64 + taps.offset - (i * taps.back) as i64;
                    (taps.first + i * taps.next, output)
                });
                let expected = (0..kernel).filter_map(|tap| {
                    let distance = (pixel + padding) as i64 - (tap * dilation) as i64;
                    (distance % stride as i64 == 0).then_some((tap, distance / stride as i64))
                });
                assert!(seen.eq(expected), "{kernel} {stride} {dilation} {padding} {pixel}");
            }
        }
    }
}
