//! Convolution of few input channels, such as of images: forward, and the gradients of weights and bias.
//!
//! General kernels reduce over input channels, but here they would use only 1 or 3 of a register's 16 lanes.
//! These kernels reduce over taps (a tap is a window position and an input channel), with two pixels by eight
//! output channels per register:
//!
//! ```text
//! ring[row][channel][column mod stride][pixel] = x, each pixel 8 times      registers: x₀×8 | x₁×8
//! y[2 pixels, 8 out] += ring[at tap] · w[tap][8 out, twice]                 one multiply-add per tap
//! dw[tap][8 out, twice] += ring[at tap] · dy[2 pixels, 8 out]               both halves are added at the end
//! ```
//!
//! The ring holds the rows of input under the window, as `f32`, in L1; each input row is expanded once. A
//! multiply-add reads 64 bytes of the ring and, forward, nothing else: weights serve up to 14 pairs of
//! pixels, sums stay in registers. The remaining cost is writing (or reading) the large output map once.
//!
//! Threads divide the output rows of the batch; gradients are added in the order of the threads.

pub(crate) mod forward;
pub(crate) mod gradient;

use crate::native::elementwise::CpuContext;
use crate::native::lanes::{LANES, LaneElement, Lanes};
use crate::native::simd::{Element, Isa};
use crate::native::threads::{MAX_THREADS, split, split_lengths};
use forward::forward_rows;
use gradient::gradient_rows;
use std::ops::Range;
use stratus_graph::ops::Conv2d;

/// The output channels of a register, for two pixels; input pixels are repeated this number of times.
pub(crate) const CHANNELS: usize = LANES / 2;

/// The maximum number of taps in a run, which share loads of the ring.
const MAX_RUN: usize = 2;

/// The maximum number of taps: residual networks start with 7×7×3 = 147, of fewer channels than a register
/// has lanes.
const MAX_TAPS: usize = 160;

/// The maximum number of output rows whose input the ring holds. Rows are written and read in pieces of
/// different sizes, so that a load waits until the store has left the store buffer: expanding rows ahead
/// avoids the wait.
const MAX_PREFETCHED_ROWS: usize = 8;
/// The maximum size of a ring with the input of more than one output row.
const RING_BYTES: usize = 24 << 10;

/// A convolution of maps `[N, H, W, C]`.
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
    /// The number of rows of the ring.
    slots: usize,
    /// The position of each kernel column in [`Self::columns`].
    positions: Vec<usize>,
    /// The lengths of the runs of taps: [`Self::tap_runs`].
    runs: Vec<usize>,
    /// [`Self::tap_offsets`].
    offsets: Vec<usize>,
    /// The largest offset: whichever slot the first row of the window is in, some row is in the last slot.
    last_offset: usize,
    /// [`Self::row_segments`].
    segments: Vec<RingSegment>,
    cpu: CpuContext,
}

/// The pixels of one channel and residue of an expanded input row.
#[derive(Clone, Copy, Debug)]
struct RingSegment {
    /// The first element in the input row.
    from: usize,
    /// The first float in the ring row.
    to: usize,
    /// The number of pixels.
    count: usize,
}

/// The last few rows of padded input, each pixel [`CHANNELS`] times; a segment per channel and residue of the
/// column modulo the stride.
pub(crate) struct Ring<'a> {
    rows: &'a mut [f32],
    /// The image of the rows.
    image: Option<usize>,
    /// The next padded row to expand.
    next: usize,
}

impl<'a> Ring<'a> {
    /// An empty ring.
    pub(crate) fn new(rows: &'a mut [f32]) -> Self {
        rows.fill(0.0);
        Self { rows, image: None, next: 0 }
    }

    /// The floats, for the offsets of [`DirectConv::fill_ring`].
    pub(crate) fn rows(&self) -> &[f32] {
        self.rows
    }
}

impl DirectConv {
    /// The kernel for `batch` images of `input` = `[H, W]`; `None` if it does not support the convolution.
    #[must_use]
    pub fn new(conv: &Conv2d, batch: usize, input: [usize; 2], cpu: &CpuContext) -> Option<Self> {
        let output = conv.output_size(input).ok()?;
        let taps = conv.in_channels.checked_mul(conv.kernel[0])?.checked_mul(conv.kernel[1])?;
        let is_supported = conv.groups == 1
            && conv.dilation == [1, 1]
            && conv.in_channels < LANES
            && taps <= MAX_TAPS
            && conv.out_channels.is_multiple_of(CHANNELS);
        if !is_supported {
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
            segments: Vec::new(),
            cpu: cpu.clone(),
        };
        let rows = RING_BYTES / (direct.row_floats() * size_of::<f32>()).max(1);
        let prefetched = (rows.saturating_sub(conv.kernel[0]) / conv.stride[0]).min(MAX_PREFETCHED_ROWS - 1);
        direct.slots += prefetched * conv.stride[0];
        for (position, column) in direct.columns().into_iter().enumerate() {
            direct.positions[column] = position;
        }
        direct.offsets = direct.tap_offsets();
        direct.runs = direct.tap_runs();
        direct.last_offset = direct.offsets.iter().copied().max().unwrap_or(0);
        direct.segments = direct.row_segments();
        Some(direct)
    }

    pub(crate) fn out_channels(&self) -> usize {
        self.out_channels
    }

    /// Returns whether there are 32 registers of 16 lanes.
    pub(crate) fn is_wide(&self) -> bool {
        self.cpu.level.isa() == Isa::Avx512
    }

    pub(crate) fn taps(&self) -> usize {
        self.in_channels * self.kernel[0] * self.kernel[1]
    }

    pub(crate) fn groups(&self) -> usize {
        self.out_channels / CHANNELS
    }

    /// The pairs of pixels of an output row; the last one is half empty if the row is odd.
    pub(crate) fn pairs(&self) -> usize {
        self.output[1].div_ceil(2)
    }

    /// The pixels of a segment of a padded row.
    fn segment_pixels(&self) -> usize {
        2 * self.pairs() + (self.kernel[1] - 1) / self.stride[1]
    }

    fn row_floats(&self) -> usize {
        self.in_channels * self.stride[1] * self.segment_pixels() * CHANNELS
    }

    pub(crate) fn ring_floats(&self) -> usize {
        self.slots * self.row_floats()
    }

    pub(crate) fn packed_floats(&self) -> usize {
        self.groups() * self.taps() * LANES
    }

    /// The elements of an output row.
    pub(crate) fn row_elements(&self) -> usize {
        self.output[1] * self.out_channels
    }

    /// The floats of a thread's scratch for gradients: ring, a row of `dy`, sums.
    pub(crate) fn gradient_floats(&self) -> usize {
        let row = self.groups() * self.pairs() * LANES;
        self.ring_floats() + row + self.packed_floats() + self.groups() * LANES
    }

    /// The scratch bytes of [`Self::forward`].
    #[must_use]
    pub fn forward_scratch_bytes(&self) -> usize {
        let shared = self.packed_floats() + self.groups() * LANES;
        (shared + self.cpu.team.threads() * self.ring_floats()) * size_of::<f32>()
    }

    /// The scratch bytes of [`Self::gradients`].
    #[must_use]
    pub fn gradients_scratch_bytes(&self) -> usize {
        self.cpu.team.threads() * self.gradient_floats() * size_of::<f32>()
    }

    /// A thread's output rows, counted over all images.
    fn thread_rows(&self, thread: usize) -> Range<usize> {
        split(self.batch * self.output[0], self.cpu.team.threads(), thread)
    }

    /// `y = x * weights + bias`, with ReLU if `relu` (NaN is propagated). Weights are `[O, I, H, W]`; `bias`
    /// may be empty.
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
        let threads = self.cpu.team.threads();
        let mut rows =
            split_lengths(y, (0..threads).map(|t| self.thread_rows(t).len() * self.row_elements()));
        let mut rings = split_lengths(scratch, (0..threads).map(|_| self.ring_floats()));
        let mut parts: [(&mut [E], &mut [f32]); MAX_THREADS] =
            std::array::from_fn(|t| (std::mem::take(&mut rows[t]), std::mem::take(&mut rings[t])));
        self.cpu.team.run_parts(&mut parts[..threads], &|thread, (y, ring)| {
            forward_rows(self.cpu.level, self, self.thread_rows(thread), x, packed, biases, relu, y, ring);
        });
    }

    /// Computes the gradients of weights `[O, I, H, W]` and bias from `x` and `dy`; `bias` may be empty.
    pub fn gradients<E: LaneElement>(
        &self,
        x: &[E],
        dy: &[E],
        weights: &mut [f32],
        bias: &mut [f32],
        scratch: &mut [f32],
    ) {
        let threads = self.cpu.team.threads();
        let mut parts = split_lengths(scratch, (0..threads).map(|_| self.gradient_floats()));
        self.cpu.team.run_parts(&mut parts[..threads], &|thread, scratch| {
            gradient_rows(self.cpu.level, self, self.thread_rows(thread), x, dy, scratch);
        });
        // In the order of the threads; within a thread, even pixels before odd ones.
        let total = |at: usize| {
            let thread_sum = |part: &&mut [f32]| {
                let sums = &part[part.len() - self.packed_floats() - self.groups() * LANES..];
                sums[at] + sums[at + CHANNELS]
            };
            parts[..threads].iter().map(thread_sum).sum::<f32>()
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

    /// The position of a weight among the packed ones. `tap` is an index in the layout of the weights.
    pub(crate) fn packed_at(&self, channel: usize, tap: usize) -> usize {
        let column = tap % self.kernel[1];
        let tap = tap - column + self.positions[column];
        (channel / CHANNELS * self.taps() + tap) * LANES + channel % CHANNELS
    }

    /// Packs weights: `[groups of 8 output channels][tap][8, twice]`.
    pub(crate) fn pack<E: Element>(&self, weights: &[E], packed: &mut [f32]) {
        for (channel, weights) in weights.chunks_exact(self.taps()).enumerate() {
            for (tap, weight) in weights.iter().enumerate() {
                let at = self.packed_at(channel, tap);
                packed[at] = weight.load();
                packed[at + CHANNELS] = weight.load();
            }
        }
    }

    /// The offset of each tap's pixels in the ring, for every slot of the window's first row.
    fn tap_offsets(&self) -> Vec<usize> {
        let [height, width] = self.kernel;
        let columns = self.columns();
        let mut offsets = Vec::with_capacity(self.slots * self.taps());
        for first in 0..self.slots {
            for channel in 0..self.in_channels {
                for row in 0..height {
                    let slot = (first + row) % self.slots * self.row_floats();
                    for column in &columns[..width] {
                        let segment = channel * self.stride[1] + column % self.stride[1];
                        let pixel = segment * self.segment_pixels() + column / self.stride[1];
                        offsets.push(slot + pixel * CHANNELS);
                    }
                }
            }
        }
        offsets
    }

    /// The kernel columns in the order of taps: those two pixels apart within a residue are neighbours,
    /// because they read the same registers shifted by one.
    fn columns(&self) -> Vec<usize> {
        let mut columns: Vec<usize> = (0..self.kernel[1]).collect();
        columns.sort_by_key(|column| {
            let pixel = column / self.stride[1];
            (column % self.stride[1], pixel % 2, pixel)
        });
        columns
    }

    /// The lengths of the runs of taps, at most [`MAX_RUN`]. Each tap of a run reads the data of the one
    /// before it, shifted by a register.
    fn tap_runs(&self) -> Vec<usize> {
        let mut runs: Vec<usize> = Vec::new();
        let rows = self.offsets[..self.taps()].chunks_exact(self.kernel[1]);
        for row in rows {
            for (column, offset) in row.iter().enumerate() {
                let follows = column > 0 && row[column - 1] + LANES == *offset;
                match runs.last_mut() {
                    Some(run) if follows && *run < MAX_RUN => *run += 1,
                    _ => runs.push(1),
                }
            }
        }
        runs
    }

    /// The segments of a row of the ring.
    fn row_segments(&self) -> Vec<RingSegment> {
        let ([_, stride], [_, padding]) = (self.stride, self.padding);
        let each =
            (0..self.in_channels).flat_map(|channel| (0..stride).map(move |remainder| (channel, remainder)));
        each.enumerate()
            .map(|(number, (channel, remainder))| {
                let before = padding.saturating_sub(remainder).div_ceil(stride).min(self.segment_pixels());
                let end = (padding + self.input[1]).saturating_sub(remainder).div_ceil(stride);
                let count = end.clamp(before, self.segment_pixels()) - before;
                let column = (before * stride + remainder).saturating_sub(padding);
                let to = (number * self.segment_pixels() + before) * CHANNELS;
                RingSegment { from: column * self.in_channels + channel, to, count }
            })
            .collect()
    }

    /// Expands the rows of `x` under the window of output row `row`, counted over all images, into the ring;
    /// rows already in it stay. Padding is zero. Returns each tap's offset in the ring.
    ///
    /// # Safety
    /// As [`Lanes`] requires.
    #[inline(always)]
    pub(crate) unsafe fn fill_ring<V: Lanes, E: LaneElement>(
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
                for segment in self.segments.iter().filter(|segment| segment.count > 0) {
                    let to: &mut [[f32; CHANNELS]] =
                        row[segment.to..segment.to + segment.count * CHANNELS].as_chunks_mut().0;
                    // SAFETY: upheld by the caller, here and below.
                    if step == 1 && segment.count >= LANES {
                        unsafe { repeat::<V, E>(&source[segment.from..][..segment.count], to) };
                    } else {
                        for (copies, pixel) in to.iter_mut().zip(source[segment.from..].iter().step_by(step))
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

/// Writes each of [`LANES`] or more consecutive pixels eight times. The last [`LANES`] may overlap those
/// before them.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn repeat<V: Lanes, E: LaneElement>(pixels: &[E], to: &mut [[f32; CHANNELS]]) {
    let mut from = 0;
    while from < pixels.len() {
        let at = from.min(pixels.len() - LANES);
        if let (Some(pixels), Some(to)) = (
            pixels[at..].first_chunk(),
            to[at..].as_flattened_mut().as_chunks_mut().0.first_chunk_mut::<{ LANES / 2 }>(),
        ) {
            // SAFETY: upheld by the caller.
            unsafe { E::load_lanes::<V>(pixels).store_repeated(to) };
        }
        from += LANES;
    }
}

#[cfg(test)]
pub mod tests;
