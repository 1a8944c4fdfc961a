//! Convolution of maps with few input channels, such as images: forward, and the gradient of the weights.
//!
//! General kernels reduce over input channels and find one or three of them in a register made for sixteen. These reduce over taps (a tap is a
//! pixel of the window and an input channel). The rows of input under the window are kept as `f32` with each pixel eight times over, so that
//! two neighbouring pixels fill a register; eight output channels of two pixels are then one multiply-add per tap, forward and backward.
//! Reading an input pixel costs as much as computing with it, whatever its type: what is left to pay is the large map, read or written once.

use super::direct_forward::forward_rows;
use super::direct_gradient::gradient_rows;
use crate::native::lanes::{LANES, LaneElement, Lanes};
use crate::native::simd::{Element, Isa, Level};
use crate::native::threads::{MAX_THREADS, ThreadTeam, cut, split};
use std::ops::Range;
use stratus_graph::ops::Conv2d;

/// Output channels that are computed at once, each for two pixels: each input pixel is repeated as often.
pub(crate) const CHANNELS: usize = LANES / 2;

/// Taps that share what they read.
const LONGEST_RUN: usize = 2;

/// The most taps, of fewer channels than a register holds: the stem of residual networks, 7×7 over three channels, has 147.
const MOST_TAPS: usize = 160;

/// Rows of output for which the ring holds input, and the bytes of a ring for which it holds more than for one. A row is written in other pieces than
/// it is read in: reading waits until what was written has left the core's store buffer, which the rows written behind it take care of.
const MOST_AHEAD: usize = 8;
const RING_BYTES: usize = 24 << 10;

/// A convolution of maps that lie channels last.
#[derive(Clone, Debug)]
pub struct DirectConv {
    in_channels: usize,
    out_channels: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    batch: usize,
    input: [usize; 2],
    output: [usize; 2],
    /// Rows of input in the ring.
    slots: usize,
    /// Where each column of the window comes among [`Self::columns`].
    positions: Vec<usize>,
    /// Taps that share what they read: [`Self::tap_runs`].
    pub(super) runs: Vec<usize>,
    /// [`Self::tap_offsets`].
    offsets: Vec<usize>,
    /// The largest of them: some row of the window lies in the last slot, whichever the first one is in.
    pub(super) last_offset: usize,
    /// [`Self::row_stretches`].
    stretches: Vec<Stretch>,
    level: Level,
    team: ThreadTeam,
}

/// Pixels of one channel and remainder that a row of input fills in.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    /// Element of the row that the first one is.
    from: usize,
    /// Where it goes in a row of the ring.
    to: usize,
    /// How many there are.
    count: usize,
}

/// The last few rows of padded input, each pixel [`CHANNELS`] times over, one stretch per channel and remainder of the column by the stride.
pub(crate) struct Ring<'a> {
    rows: &'a mut [f32],
    /// The image whose rows these are.
    image: Option<usize>,
    /// The padded row that is filled in next.
    next: usize,
}

impl<'a> Ring<'a> {
    /// A ring without rows.
    pub(crate) fn new(rows: &'a mut [f32]) -> Self {
        rows.fill(0.0);
        Self { rows, image: None, next: 0 }
    }

    /// Its rows, for [`DirectConv::bring`]'s offsets.
    pub(crate) fn rows(&self) -> &[f32] {
        self.rows
    }
}

impl DirectConv {
    /// The convolution of a batch of `input` sized maps; `None` where another kernel has to do it.
    #[must_use]
    pub fn new(
        conv: &Conv2d,
        batch: usize,
        input: [usize; 2],
        level: Level,
        team: ThreadTeam,
    ) -> Option<Self> {
        let output = conv.output_size(input).ok()?;
        let taps = conv.in_channels.checked_mul(conv.kernel[0])?.checked_mul(conv.kernel[1])?;
        let suits = conv.groups == 1
            && conv.dilation == [1, 1]
            && conv.in_channels < LANES
            && taps <= MOST_TAPS
            && conv.out_channels.is_multiple_of(CHANNELS);
        if !suits {
            return None;
        }
        let mut direct = Self {
            in_channels: conv.in_channels,
            out_channels: conv.out_channels,
            kernel: conv.kernel,
            stride: conv.stride,
            padding: conv.padding_before,
            batch,
            input,
            output,
            slots: conv.kernel[0],
            positions: vec![0; conv.kernel[1]],
            runs: Vec::new(),
            offsets: Vec::new(),
            last_offset: 0,
            stretches: Vec::new(),
            level,
            team,
        };
        let rows = RING_BYTES / (direct.row_floats() * size_of::<f32>()).max(1);
        let ahead = (rows.saturating_sub(conv.kernel[0]) / conv.stride[0]).min(MOST_AHEAD - 1);
        direct.slots += ahead * conv.stride[0];
        for (position, column) in direct.columns().into_iter().enumerate() {
            direct.positions[column] = position;
        }
        direct.offsets = direct.tap_offsets();
        direct.runs = direct.tap_runs();
        direct.last_offset = direct.offsets.iter().copied().max().unwrap_or(0);
        direct.stretches = direct.row_stretches();
        Some(direct)
    }

    pub(crate) fn out_channels(&self) -> usize {
        self.out_channels
    }

    /// Whether registers are as wide and as many as AVX-512's.
    pub(crate) fn is_wide(&self) -> bool {
        self.level.isa() == Isa::Avx512
    }

    pub(crate) fn taps(&self) -> usize {
        self.in_channels * self.kernel[0] * self.kernel[1]
    }

    pub(crate) fn groups(&self) -> usize {
        self.out_channels / CHANNELS
    }

    /// Registers of a row of output, the last one half filled where the row is odd.
    pub(crate) fn pairs(&self) -> usize {
        self.output[1].div_ceil(2)
    }

    /// Pixels of one stretch of a padded row.
    fn stretch(&self) -> usize {
        2 * self.pairs() + (self.kernel[1] - 1) / self.stride[1]
    }

    fn row_floats(&self) -> usize {
        self.in_channels * self.stride[1] * self.stretch() * CHANNELS
    }

    pub(crate) fn ring_floats(&self) -> usize {
        self.slots * self.row_floats()
    }

    pub(crate) fn packed_floats(&self) -> usize {
        self.groups() * self.taps() * LANES
    }

    /// Elements of a row of output.
    pub(crate) fn row_elements(&self) -> usize {
        self.output[1] * self.out_channels
    }

    /// Floats of one thread's scratch for the gradient: the ring, a row of the output's gradient, sums.
    pub(crate) fn gradient_floats(&self) -> usize {
        let row = self.groups() * self.pairs() * LANES;
        self.ring_floats() + row + self.packed_floats() + self.groups() * LANES
    }

    /// Bytes of scratch of [`Self::forward`].
    #[must_use]
    pub fn forward_scratch_bytes(&self) -> usize {
        let shared = self.packed_floats() + self.groups() * LANES;
        (shared + self.team.threads() * self.ring_floats()) * size_of::<f32>()
    }

    /// Bytes of scratch of [`Self::gradients`].
    #[must_use]
    pub fn gradients_scratch_bytes(&self) -> usize {
        self.team.threads() * self.gradient_floats() * size_of::<f32>()
    }

    /// The output rows of one thread, counted over all images.
    fn thread_rows(&self, thread: usize) -> Range<usize> {
        split(self.batch * self.output[0], self.team.threads(), thread)
    }

    /// `y` from `x`, weights `[O, I, H, W]` and, where there is one, a bias; rectified where `relu` (NaN passes).
    pub fn forward<E: LaneElement>(
        &self,
        x: &[E],
        weights: &[E],
        bias: &[f32],
        relu: bool,
        y: &mut [E],
        scratch: &mut [f32],
    ) {
        let (packed, scratch) = scratch.split_at_mut(self.packed_floats());
        let (biases, scratch) = scratch.split_at_mut(self.groups() * LANES);
        self.pack(weights, packed);
        for (lanes, group) in biases.chunks_exact_mut(LANES).zip(0..) {
            for (lane, value) in lanes.iter_mut().enumerate() {
                *value = bias.get(group * CHANNELS + lane % CHANNELS).copied().unwrap_or(0.0);
            }
        }
        let (packed, biases) = (&*packed, &*biases);
        let threads = self.team.threads();
        let mut rows = cut(y, (0..threads).map(|t| self.thread_rows(t).len() * self.row_elements()));
        let mut rings = cut(scratch, (0..threads).map(|_| self.ring_floats()));
        let mut parts: [(&mut [E], &mut [f32]); MAX_THREADS] =
            std::array::from_fn(|t| (std::mem::take(&mut rows[t]), std::mem::take(&mut rings[t])));
        self.team.run_parts(&mut parts[..threads], &|thread, (y, ring)| {
            forward_rows(self.level, self, self.thread_rows(thread), x, packed, biases, relu, y, ring);
        });
    }

    /// The gradients of the weights, `[O, I, H, W]`, and of the bias where there is one, from `x` and `dy`.
    pub fn gradients<E: LaneElement>(
        &self,
        x: &[E],
        dy: &[E],
        weights: &mut [f32],
        bias: &mut [f32],
        scratch: &mut [f32],
    ) {
        let threads = self.team.threads();
        let mut parts = cut(scratch, (0..threads).map(|_| self.gradient_floats()));
        self.team.run_parts(&mut parts[..threads], &|thread, scratch| {
            gradient_rows(self.level, self, self.thread_rows(thread), x, dy, scratch);
        });
        // In the order of the threads; of a thread, even pixels before odd ones.
        let total = |at: usize| {
            let of_thread = |part: &&mut [f32]| {
                let sums = &part[part.len() - self.packed_floats() - self.groups() * LANES..];
                sums[at] + sums[at + CHANNELS]
            };
            parts[..threads].iter().map(of_thread).sum::<f32>()
        };
        for (channel, weights) in weights.chunks_exact_mut(self.taps()).enumerate() {
            for (tap, weight) in weights.iter_mut().enumerate() {
                *weight = total(self.packed_at(channel, tap));
            }
        }
        for (channel, bias) in bias.iter_mut().enumerate() {
            *bias = total(self.packed_floats() + channel / CHANNELS * LANES + channel % CHANNELS);
        }
    }

    /// Where a weight lies among the packed ones; taps are counted as the weights lie.
    pub(crate) fn packed_at(&self, channel: usize, tap: usize) -> usize {
        let column = tap % self.kernel[1];
        let tap = tap - column + self.positions[column];
        (channel / CHANNELS * self.taps() + tap) * LANES + channel % CHANNELS
    }

    /// Weights as registers: per group of channels and tap, twice over.
    pub(crate) fn pack<E: Element>(&self, weights: &[E], packed: &mut [f32]) {
        for (channel, weights) in weights.chunks_exact(self.taps()).enumerate() {
            for (tap, weight) in weights.iter().enumerate() {
                let at = self.packed_at(channel, tap);
                packed[at] = weight.load();
                packed[at + CHANNELS] = weight.load();
            }
        }
    }

    /// Where the pixels of each tap, in their order, begin in the ring, for every slot that the window's first row may lie in.
    fn tap_offsets(&self) -> Vec<usize> {
        let [height, width] = self.kernel;
        let columns = self.columns();
        let mut offsets = Vec::with_capacity(self.slots * self.taps());
        for first in 0..self.slots {
            for channel in 0..self.in_channels {
                for row in 0..height {
                    let slot = (first + row) % self.slots * self.row_floats();
                    for column in &columns[..width] {
                        let stretch = channel * self.stride[1] + column % self.stride[1];
                        let pixel = stretch * self.stretch() + column / self.stride[1];
                        offsets.push(slot + pixel * CHANNELS);
                    }
                }
            }
        }
        offsets
    }

    /// The columns of the window in the order of taps: those next to each other, as far as there are any, that see the same registers, two pixels on.
    fn columns(&self) -> Vec<usize> {
        let mut columns: Vec<usize> = (0..self.kernel[1]).collect();
        columns.sort_by_key(|column| {
            let pixel = column / self.stride[1];
            (column % self.stride[1], pixel % 2, pixel)
        });
        columns
    }

    /// How many taps in a row see the same registers, one further on; at most [`LONGEST_RUN`] of them make a run.
    fn tap_runs(&self) -> Vec<usize> {
        let mut runs: Vec<usize> = Vec::new();
        let rows = self.offsets[..self.taps()].chunks_exact(self.kernel[1]);
        for row in rows {
            for (column, offset) in row.iter().enumerate() {
                let follows = column > 0 && row[column - 1] + LANES == *offset;
                match runs.last_mut() {
                    Some(run) if follows && *run < LONGEST_RUN => *run += 1,
                    _ => runs.push(1),
                }
            }
        }
        runs
    }

    /// Where the pixels of a row of input lie in a row of the ring.
    fn row_stretches(&self) -> Vec<Stretch> {
        let ([_, stride], [_, padding]) = (self.stride, self.padding);
        let each =
            (0..self.in_channels).flat_map(|channel| (0..stride).map(move |remainder| (channel, remainder)));
        each.enumerate()
            .map(|(number, (channel, remainder))| {
                let before = padding.saturating_sub(remainder).div_ceil(stride).min(self.stretch());
                let end = (padding + self.input[1]).saturating_sub(remainder).div_ceil(stride);
                let count = end.clamp(before, self.stretch()) - before;
                let column = (before * stride + remainder).saturating_sub(padding);
                let to = (number * self.stretch() + before) * CHANNELS;
                Stretch { from: column * self.in_channels + channel, to, count }
            })
            .collect()
    }

    /// Brings the rows of `x` under the window of output row `row`, counted over all images, into the ring, whose earlier rows are kept where the
    /// window moves down an image. What no row of input covers in it stays zero. Returns where each tap's pixels begin in the ring.
    ///
    /// # Safety
    /// Of [`Lanes`].
    #[inline(always)]
    pub(crate) unsafe fn bring<V: Lanes, E: LaneElement>(
        &self,
        x: &[E],
        row: usize,
        ring: &mut Ring<'_>,
    ) -> &[usize] {
        let (number, first) = (row / self.output[0], row % self.output[0] * self.stride[0]);
        if ring.image != Some(number) {
            (ring.image, ring.next) = (Some(number), 0);
        }
        let elements = self.input[1] * self.in_channels;
        let image = &x[number * self.input[0] * elements..(number + 1) * self.input[0] * elements];
        let step = self.stride[1] * self.in_channels;
        if ring.next < first + self.kernel[0] {
            let last = (self.output[0] - 1) * self.stride[0] + self.kernel[0];
            let end = last.min(first + self.slots);
            for padded in ring.next.max(first)..end {
                let slot = padded % self.slots * self.row_floats();
                let row = &mut ring.rows[slot..slot + self.row_floats()];
                let source = padded.checked_sub(self.padding[0]).filter(|&row| row < self.input[0]);
                let Some(source) = source else {
                    row.fill(0.0);
                    continue;
                };
                let source = &image[source * elements..(source + 1) * elements];
                for stretch in self.stretches.iter().filter(|stretch| stretch.count > 0) {
                    let to: &mut [[f32; CHANNELS]] =
                        row[stretch.to..stretch.to + stretch.count * CHANNELS].as_chunks_mut().0;
                    // SAFETY: the caller's, here and below.
                    if step == 1 && stretch.count >= LANES {
                        unsafe { repeat::<V, E>(&source[stretch.from..][..stretch.count], to) };
                    } else {
                        for (copies, pixel) in to.iter_mut().zip(source[stretch.from..].iter().step_by(step))
                        {
                            unsafe { V::splat(pixel.load()).store_half(copies) };
                        }
                    }
                }
            }
            ring.next = end;
        }
        let slot = first % self.slots;
        &self.offsets[slot * self.taps()..(slot + 1) * self.taps()]
    }
}

/// Writes pixels that lie next to each other, [`LANES`] or more of them, eight times each. The last ones are written with those before them.
///
/// # Safety
/// Of [`Lanes`].
#[inline(always)]
unsafe fn repeat<V: Lanes, E: LaneElement>(pixels: &[E], to: &mut [[f32; CHANNELS]]) {
    let mut from = 0;
    while from < pixels.len() {
        let at = from.min(pixels.len() - LANES);
        if let (Some(pixels), Some(to)) = (
            pixels[at..].first_chunk(),
            to[at..].as_flattened_mut().as_chunks_mut().0.first_chunk_mut::<{ LANES / 2 }>(),
        ) {
            // SAFETY: the caller's.
            unsafe { E::load_lanes::<V>(pixels).store_repeated(to) };
        }
        from += LANES;
    }
}

#[cfg(test)]
#[path = "direct_tests.rs"]
pub mod tests;
