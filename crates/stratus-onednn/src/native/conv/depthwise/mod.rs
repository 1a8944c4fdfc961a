//! Depthwise convolution of maps `[N, H, W, C]`: forward, and the gradients of input, weights and bias.
//!
//! ```text
//! y[p][c] = Σ over taps of x[p · stride + tap][c] · w[tap][c]             p: output pixels
//! dx[q][c] = Σ over taps of dy[(q - tap) / stride][c] · w[tap][c]         where the division is exact
//! dw[tap][c] = Σ over p of x[p · stride + tap][c] · dy[p][c]
//! ```
//!
//! The first two are the same loop over other pixels ([`correlate`]): a register of channels of several
//! pixels at a time, so that a weight is loaded once for all of them. The third keeps the sums of several
//! taps in registers along a row ([`gradient`]).
//!
//! Rows are computed in order, so that the rows under a window stay in L2 until the last row that reads
//! them, and each map is read from memory once. With nine taps, the loads from L1 take about as long as
//! the reads from memory.
//!
//! Threads divide the rows of the batch; gradients are added in the order of the threads.

mod correlate;
mod gradient;
#[cfg(test)]
mod tests;

use super::correlation::{Correlation, Correlations, KernelColumn, LineTap, RowClass};
use crate::native::activation::activate_in_place;
use crate::native::elementwise::CpuContext;
use crate::native::lanes::{LANES, LaneElement};
use crate::native::simd::Isa;
use crate::native::threads::{split, split_lengths};
use correlate::{RowOutput, correlate_rows};
use gradient::gradient_rows;
use std::ops::Range;
use stratus_engine::ops::FusedActivation;
use stratus_graph::ops::Conv2d;

/// The maximum number of taps of a kernel: its sums have to stay in L1.
const MAX_TAPS: usize = 256;

/// The minimum size of a result whose stores bypass the caches.
const LARGE_MAP_BYTES: usize = 16 << 20;

/// A tap of the weight gradient, for the rows of a class.
#[derive(Clone, Debug)]
struct GradientTap {
    /// Its number in the kernel.
    tap: usize,
    /// The output pixels of a row for which the tap is inside the input.
    outputs: Range<usize>,
    /// The offset of the element that output pixel 0 reads, relative to the first input row that the output
    /// row reads; it may lie outside the input.
    offset: isize,
}

/// Taps of the weight gradient whose sums are in registers together.
#[derive(Clone, Debug)]
struct TapGroup {
    taps: Vec<GradientTap>,
    /// The output pixels for which all taps are inside. If there is none, an empty range at the largest
    /// start of the taps' ranges.
    common: Range<usize>,
}

/// Divides the taps of a class of rows into groups; with 32 registers (`wide`) they are larger.
fn tap_groups(taps: &[GradientTap], wide: bool) -> Vec<TapGroup> {
    let (mut groups, mut rest) = (Vec::new(), taps);
    while !rest.is_empty() {
        let length = match rest.len() {
            9.. if wide => 9,
            3 | 6 => 3,
            4 | 7 | 8 => 4,
            5.. => 5,
            _ => 1,
        };
        let (taps, remaining) = rest.split_at(length);
        let from = taps.iter().map(|tap| tap.outputs.start).max().unwrap_or(0);
        let to = taps.iter().map(|tap| tap.outputs.end).min().unwrap_or(0);
        groups.push(TapGroup { taps: taps.to_vec(), common: from..to.max(from) });
        rest = remaining;
    }
    groups
}

/// A depthwise convolution.
#[derive(Clone, Debug)]
pub struct DepthwiseConv {
    channels: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    batch: usize,
    forward: Correlation,
    backward: Correlation,
    /// The groups of taps of each class of rows of the output.
    gradient_groups: Vec<Vec<TapGroup>>,
    cpu: CpuContext,
}

impl DepthwiseConv {
    /// The kernel for `batch` images of `input` = `[H, W]`; `None` if it does not support the convolution.
    #[must_use]
    pub fn new(conv: &Conv2d, batch: usize, input: [usize; 2], cpu: &CpuContext) -> Option<Self> {
        let channels = conv.in_channels;
        let is_depthwise = conv.groups == channels && conv.out_channels == channels;
        let taps = conv.kernel[0].checked_mul(conv.kernel[1])?;
        // The last register of channels may overlap the one before it.
        if !is_depthwise || channels < LANES || taps > MAX_TAPS || batch == 0 {
            return None;
        }
        let Correlations { forward, backward, columns } = Correlations::new(conv, input, channels)?;
        let row_of_taps = |row: &LineTap| {
            let tap = |(number, column): (usize, &KernelColumn)| GradientTap {
                tap: row.position * conv.kernel[1] + number,
                outputs: column.outputs.clone(),
                offset: ((row.pixel * input[1]) as isize + column.first) * channels as isize,
            };
            columns.iter().enumerate().map(tap).filter(|tap| !tap.outputs.is_empty()).collect::<Vec<_>>()
        };
        let wide = cpu.level.isa() == Isa::Avx512;
        let groups_of = |class: &RowClass| {
            let taps: Vec<GradientTap> = class.taps.iter().flat_map(row_of_taps).collect();
            tap_groups(&taps, wide)
        };
        let gradient_groups = forward.classes.iter().map(groups_of).collect();
        let (kernel, cpu) = (conv.kernel, cpu.clone());
        Some(Self { channels, kernel, stride: conv.stride, batch, forward, backward, gradient_groups, cpu })
    }

    fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Registers of channels of a pixel; the last one may overlap the one before it.
    fn blocks(&self) -> usize {
        self.channels.div_ceil(LANES)
    }

    /// The first channel of a block.
    fn block_start(&self, block: usize) -> usize {
        (block * LANES).min(self.channels - LANES)
    }

    /// Returns whether there are 32 registers of 16 lanes.
    fn is_wide(&self) -> bool {
        self.cpu.level.isa() == Isa::Avx512
    }

    /// The scratch bytes of [`Self::forward`] and [`Self::backward_data`].
    #[must_use]
    pub fn correlation_scratch_bytes(&self) -> usize {
        (self.taps() + 1) * self.channels * size_of::<f32>()
    }

    /// The scratch bytes of [`Self::gradients`].
    #[must_use]
    pub fn gradients_scratch_bytes(&self) -> usize {
        self.cpu.team.threads() * self.sums() * size_of::<f32>()
    }

    /// The sums of a thread: those of the taps, then those of the bias, of each block.
    fn sums(&self) -> usize {
        (self.taps() + 1) * self.blocks() * LANES
    }

    /// `y = f(x * weights + bias)` with an activation `f`; NaN is propagated. Weights are `[C, 1, KH, KW]`;
    /// `bias` may be empty.
    pub fn forward<E: LaneElement>(
        &self,
        x: &[E],
        weights: &[E],
        bias: &[f32],
        activation: FusedActivation,
        y: &mut [E],
        scratch: &mut [f32],
    ) {
        self.correlate(&self.forward, x, weights, bias, activation, y, scratch);
    }

    /// The gradient of `x`.
    pub fn backward_data<E: LaneElement>(&self, dy: &[E], weights: &[E], dx: &mut [E], scratch: &mut [f32]) {
        self.correlate(&self.backward, dy, weights, &[], FusedActivation::Identity, dx, scratch);
    }

    #[allow(clippy::too_many_arguments)] // As `forward`.
    fn correlate<E: LaneElement>(
        &self,
        correlation: &Correlation,
        source: &[E],
        weights: &[E],
        bias: &[f32],
        activation: FusedActivation,
        result: &mut [E],
        scratch: &mut [f32],
    ) {
        let (packed, biases) = scratch.split_at_mut(self.taps() * self.channels);
        for (tap, packed) in packed.chunks_exact_mut(self.channels).enumerate() {
            for (to, weight) in packed.iter_mut().zip(weights[tap..].iter().step_by(self.taps())) {
                *to = weight.load();
            }
        }
        let biases = &mut biases[..self.channels];
        biases.fill(0.0);
        biases[..bias.len()].copy_from_slice(bias);
        let (packed, biases) = (&*packed, &*biases);
        let (threads, [height, width]) = (self.cpu.team.threads(), correlation.result);
        let rows = |thread| split(self.batch * height, threads, thread);
        let mut parts = split_lengths(result, (0..threads).map(|t| rows(t).len() * width * self.channels));
        let row_elements = width * self.channels;
        self.cpu.team.run_parts(&mut parts[..threads], &|thread, part| {
            let (level, rows) = (self.cpu.level, rows(thread));
            if let Some(relu) = activation.as_plain_relu() {
                let streams = self.streams(correlation, part);
                let output = RowOutput { relu, streams };
                correlate_rows(level, self, correlation, rows, source, packed, biases, output, part);
                return;
            }
            // Other activations follow while a row is in the caches.
            let output = RowOutput { relu: false, streams: false };
            for (row, part) in rows.zip(part.chunks_exact_mut(row_elements)) {
                let one = row..row + 1;
                correlate_rows(level, self, correlation, one, source, packed, biases, output, part);
                activate_in_place(level, activation, part);
            }
        });
    }

    /// Returns whether the stores of a result bypass the caches: if it is large, and every register is
    /// aligned.
    fn streams<E>(&self, correlation: &Correlation, result: &[E]) -> bool {
        let image_bytes = correlation.result.iter().product::<usize>() * self.channels * size_of::<E>();
        self.batch * image_bytes >= LARGE_MAP_BYTES
            && self.channels.is_multiple_of(LANES)
            && result.as_ptr().addr().is_multiple_of(LANES * size_of::<E>())
    }

    /// Computes the gradients of weights `[C, 1, KH, KW]` and bias from `x` and `dy`; `bias` may be empty.
    pub fn gradients<E: LaneElement>(
        &self,
        x: &[E],
        dy: &[E],
        weights: &mut [f32],
        bias: &mut [f32],
        scratch: &mut [f32],
    ) {
        let threads = self.cpu.team.threads();
        let rows = |thread| split(self.batch * self.forward.result[0], threads, thread);
        let mut parts = split_lengths(scratch, (0..threads).map(|_| self.sums()));
        let has_bias = !bias.is_empty();
        self.cpu.team.run_parts(&mut parts[..threads], &|thread, sums| {
            gradient_rows(self.cpu.level, self, rows(thread), x, dy, has_bias, sums);
        });
        let total = |tap: usize, channel: usize| {
            let block = channel / LANES;
            let at = (block * (self.taps() + 1) + tap) * LANES + channel - self.block_start(block);
            parts[..threads].iter().map(|part| part[at]).sum::<f32>()
        };
        for (channel, weights) in weights.chunks_exact_mut(self.taps()).enumerate() {
            weights.iter_mut().enumerate().for_each(|(tap, weight)| *weight = total(tap, channel));
        }
        for (channel, bias) in bias.iter_mut().enumerate() {
            *bias = total(self.taps(), channel);
        }
    }
}
