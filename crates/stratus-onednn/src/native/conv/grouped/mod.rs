//! Convolution in groups of 4, 8, or a multiple of 16 channels, of maps `[N, H, W, C]`: forward, and the
//! gradients of input and weights.
//!
//! ```text
//! y[p][o] = Σ over taps, i of x[p · stride + tap][i of o's group] · w[tap][i][o]    16 outputs a register
//! ```
//!
//! A register of outputs belongs to one group, or to two of 8 channels or four of 4. The inputs of a
//! product are one number of each group, repeated over its lanes ([`spread`]); they are read from L1 for
//! four pixels, for which the register of weights is loaded once. The input gradient is the same with
//! transposed weights; the gradient of the weights keeps the sums of four inputs in registers along a
//! row.
//!
//! Threads divide the rows of the batch; for the gradient of the weights they divide the registers of
//! outputs.

mod correlate;
mod gradient;
#[cfg(test)]
mod tests;

use super::correlation::{Correlation, Correlations};
use crate::native::elementwise::CpuContext;
use crate::native::lanes::{LANES, LaneElement, Lanes};
use crate::native::simd::Isa;
use crate::native::threads::{split, split_lengths};
use correlate::correlate_rows;
use gradient::gradient_blocks;
use stratus_graph::ops::Conv2d;

/// The maximum number of channels of a group: with more, a convolution is close to a dense one, for which
/// oneDNN has better kernels.
const MAX_GROUP: usize = 64;

/// A convolution in groups.
#[derive(Clone, Debug)]
pub struct GroupedConv {
    channels: usize,
    /// The channels of a group, of input and output.
    group: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    batch: usize,
    passes: Correlations,
    cpu: CpuContext,
}

/// One number of each group of `group` channels, repeated over the group's lanes: input `number` of each.
///
/// # Safety
/// As [`Lanes`] requires; `from` is the first input of the first of the groups, and all their inputs are
/// readable.
#[inline(always)]
unsafe fn spread<V: Lanes, E: LaneElement, const GROUP: usize>(from: *const E, number: usize) -> V {
    // SAFETY: upheld by the caller.
    unsafe {
        match GROUP {
            4 => E::load_lanes::<V>(&*from.cast()).repeat_in_quads(number),
            8 => {
                let each = [0, 8].map(|first| V::splat((*from.add(first + number)).load()));
                each[0].low_halves(each[1])
            }
            _ => V::splat((*from.add(number)).load()),
        }
    }
}

impl GroupedConv {
    /// The kernel for `batch` images of `input` = `[H, W]`; `None` if it does not support the convolution.
    #[must_use]
    pub fn new(conv: &Conv2d, batch: usize, input: [usize; 2], cpu: &CpuContext) -> Option<Self> {
        let channels = conv.in_channels;
        let group = channels / conv.groups.max(1);
        let is_supported = conv.groups > 1
            && conv.out_channels == channels
            && channels.is_multiple_of(LANES)
            && (matches!(group, 4 | 8) || group.is_multiple_of(LANES))
            && group <= MAX_GROUP
            && !conv.bias;
        if !is_supported || batch == 0 {
            return None;
        }
        let passes = Correlations::new(conv, input, group * LANES)?;
        let (kernel, stride, cpu) = (conv.kernel, conv.stride, cpu.clone());
        Some(Self { channels, group, kernel, stride, batch, passes, cpu })
    }

    fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// The registers of channels of a pixel.
    fn blocks(&self) -> usize {
        self.channels / LANES
    }

    /// The first input of the groups of a block.
    fn first_input(&self, block: usize) -> usize {
        let first = block * LANES;
        first - first % self.group.max(LANES)
    }

    /// Returns whether there are 32 registers of 16 lanes.
    fn is_wide(&self) -> bool {
        self.cpu.level.isa() == Isa::Avx512
    }

    /// The packed weights of a block, and the sums of their gradient.
    fn block_floats(&self) -> usize {
        self.taps() * self.group * LANES
    }

    /// The scratch bytes of all passes.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.blocks() * self.block_floats() * size_of::<f32>()
    }

    /// Calls `body` for every weight of a block: with its position in weights `[O, I / groups, KH, KW]`
    /// and in packed ones, `[tap][input][16 outputs]`. If `transposed`, inputs and outputs have changed
    /// roles.
    fn each_weight(&self, block: usize, transposed: bool, mut body: impl FnMut(usize, usize)) {
        let taps = self.taps();
        for lane in 0..LANES {
            let channel = block * LANES + lane;
            let within = channel % self.group;
            for other in 0..self.group {
                let pair = if transposed {
                    (channel - within + other) * self.group + within
                } else {
                    channel * self.group + other
                };
                for tap in 0..taps {
                    body(pair * taps + tap, (tap * self.group + other) * LANES + lane);
                }
            }
        }
    }

    /// `y = x * weights`, with ReLU if `relu` (NaN is propagated). Weights are `[C, C / groups, KH, KW]`.
    pub fn forward<E: LaneElement>(
        &self,
        x: &[E],
        weights: &[E],
        relu: bool,
        y: &mut [E],
        scratch: &mut [f32],
    ) {
        self.correlate(&self.passes.forward, false, x, weights, relu, y, scratch);
    }

    /// The gradient of `x`.
    pub fn backward_data<E: LaneElement>(&self, dy: &[E], weights: &[E], dx: &mut [E], scratch: &mut [f32]) {
        self.correlate(&self.passes.backward, true, dy, weights, false, dx, scratch);
    }

    #[allow(clippy::too_many_arguments)] // As `forward`.
    fn correlate<E: LaneElement>(
        &self,
        correlation: &Correlation,
        transposed: bool,
        source: &[E],
        weights: &[E],
        relu: bool,
        result: &mut [E],
        scratch: &mut [f32],
    ) {
        let (threads, [height, width]) = (self.cpu.team.threads(), correlation.result);
        let packed = &mut scratch[..self.blocks() * self.block_floats()];
        let blocks = |thread| split(self.blocks(), threads, thread);
        let mut parts =
            split_lengths(&mut *packed, (0..threads).map(|t| blocks(t).len() * self.block_floats()));
        self.cpu.team.run_parts(&mut parts[..threads], &|thread, packed| {
            for (block, packed) in blocks(thread).zip(packed.chunks_exact_mut(self.block_floats())) {
                self.each_weight(block, transposed, |at, packed_at| packed[packed_at] = weights[at].load());
            }
        });
        let packed = &*packed;
        let rows = |thread| split(self.batch * height, threads, thread);
        let mut parts = split_lengths(result, (0..threads).map(|t| rows(t).len() * width * self.channels));
        self.cpu.team.run_parts(&mut parts[..threads], &|thread, part| {
            correlate_rows(self.cpu.level, self, correlation, rows(thread), source, packed, relu, part);
        });
    }

    /// Computes the gradient of weights `[C, C / groups, KH, KW]` from `x` and `dy`.
    pub fn gradient<E: LaneElement>(&self, x: &[E], dy: &[E], weights: &mut [f32], scratch: &mut [f32]) {
        let threads = self.cpu.team.threads();
        let blocks = |thread| split(self.blocks(), threads, thread);
        let mut parts =
            split_lengths(&mut *scratch, (0..threads).map(|t| blocks(t).len() * self.block_floats()));
        self.cpu.team.run_parts(&mut parts[..threads], &|thread, sums| {
            gradient_blocks(self.cpu.level, self, blocks(thread), x, dy, sums);
        });
        // The weights of a block are those of its outputs.
        let sums = &scratch[..self.blocks() * self.block_floats()];
        let mut parts = split_lengths(weights, (0..threads).map(|t| blocks(t).len() * self.block_floats()));
        self.cpu.team.run_parts(&mut parts[..threads], &|thread, weights| {
            let first = blocks(thread).start;
            for block in blocks(thread) {
                let sums = &sums[block * self.block_floats()..][..self.block_floats()];
                let before = first * self.block_floats();
                self.each_weight(block, false, |at, summed_at| weights[at - before] = sums[summed_at]);
            }
        });
    }
}
