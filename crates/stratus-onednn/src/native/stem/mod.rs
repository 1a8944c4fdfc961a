//! The stem of a network: convolution of images, batch norm, ReLU and 2×2 max-pooling. Only the pooled map is
//! written to memory. The algebra is in [`stratus_engine::ops::Stem`]; in short, with `x_t` the input of tap
//! `t` and M outputs per channel:
//!
//! ```text
//! C[t, u] = Σ x_t x_u    s[t] = Σ x_t                                  [`correlation`]
//! mean = wᵀs / M         variance = wᵀC w / M - mean²                  without making the map
//! y = max over 2×2 of relu(x * (w · scale) + shift)                    scale, shift folded into w and bias
//! dw_t = scale · (Σ g x_t - (Σ g / M) s_t - (Σ g x̂ / M) Σ x̂ x_t)       g: dy at the argmax, else 0
//!        Σ x̂ x_t = ((C w)_t - mean · s_t) / deviation
//! ```
//!
//! The convolution is that of [`crate::native::conv::direct`]: two rows of it stay in L1 until they are
//! pooled. The forward pass reads the images and writes a quarter of the map; oneDNN's kernels would write
//! the map and read it three times. Threads divide images forward, rows of the convolution's output backward.

mod correlation;

use crate::native::norm::batch::finish_statistics;
use correlation::Correlation;

use crate::native::conv::direct::forward::RowKernel;
use crate::native::conv::direct::gradient::{GradientRows, add_rows};
use crate::native::conv::direct::{CHANNELS, DirectConv, Ring};
use crate::native::elementwise::CpuContext;
use crate::native::lanes::{LANES, LaneElement, Lanes, with_lanes};
use crate::native::rows::MapGeometry;
use crate::native::threads::{MAX_THREADS, split, split_lengths};
use std::ops::Range;
use stratus_engine::backend::Tile;
use stratus_engine::ops::Stem;

/// The rows of a pooling window.
const WINDOW: usize = 2;

/// The index value of outputs without a gradient, because ReLU masks them.
const RELU_MASKED: f32 = 255.0;

/// The number of rows whose gradients are summed in `f32` before the sums are added in `f64`.
const ROWS_PER_FLUSH: usize = 128;

/// The parameters of stem kernels.
#[derive(Clone, Debug)]
pub struct StemKernel {
    stem: Stem,
    conv: DirectConv,
    correlation: Correlation,
    /// `[H, W]` of the convolution's output.
    output: [usize; 2],
    batch: usize,
    /// The layout of the pooled map.
    pooled: MapGeometry,
    cpu: CpuContext,
}

/// A thread's share of a pooling pass.
#[derive(Default)]
struct ThreadShare<'a, E> {
    y: &'a mut [E],
    index: &'a mut [u8],
    scratch: &'a mut [f32],
}

impl StemKernel {
    /// The kernels for `batch` images `[N, H, W, C]` of `input` = `[H, W]`, with a pooled map in layout
    /// `pooled`; `None` if they do not support the stem.
    #[must_use]
    pub fn new(
        stem: Stem,
        batch: usize,
        input: [usize; 2],
        pooled: MapGeometry,
        cpu: &CpuContext,
    ) -> Option<Self> {
        let output = stem.conv.output_size(input).ok()?;
        if !pooled.pixel_channels.is_multiple_of(CHANNELS) {
            return None;
        }
        let conv = DirectConv::new(&stem.conv, batch, input, cpu)?;
        let correlation = Correlation::new(&stem.conv, batch, input, cpu)?;
        Some(Self { stem, conv, correlation, output, batch, pooled, cpu: cpu.clone() })
    }

    fn taps(&self) -> usize {
        self.conv.taps()
    }

    /// The outputs per channel: M.
    fn count(&self) -> usize {
        self.batch * self.output[0] * self.output[1]
    }

    /// A thread's rows of the convolution's output, counted over all images.
    fn thread_rows(&self, thread: usize) -> Range<usize> {
        split(self.batch * self.output[0], self.cpu.team.threads(), thread)
    }

    /// The floats of a row of the convolution's output, with eight channels.
    fn row_floats(&self) -> usize {
        self.conv.pairs() * LANES
    }

    /// The floats of a thread's scratch for pooling: two rows of all channels, and the ring of input rows.
    fn strip_floats(&self) -> usize {
        WINDOW * self.conv.groups() * self.row_floats() + self.conv.ring_floats()
    }

    /// The scratch bytes of [`Self::apply`] and [`Self::inference`].
    #[must_use]
    pub fn apply_scratch_bytes(&self) -> usize {
        let shared = self.conv.packed_floats() + self.conv.groups() * LANES;
        size_of::<f32>() * (shared + self.cpu.team.threads() * self.strip_floats())
    }

    /// The scratch bytes of [`Self::statistics`].
    #[must_use]
    pub fn statistics_scratch_bytes(&self) -> usize {
        self.correlation.scratch_bytes()
    }

    /// The scratch bytes of [`Self::gradients`].
    #[must_use]
    pub fn gradients_scratch_bytes(&self) -> usize {
        let sums = size_of::<f64>() * self.stem.conv.out_channels * (self.taps() + 1);
        self.cpu.team.threads() * (sums + size_of::<f32>() * self.conv.gradient_floats())
    }

    /// See [`stratus_engine::ops::StemStatistics`].
    pub fn statistics<E: LaneElement>(
        &self,
        [images, weight]: [&[E]; 2],
        [running_mean, running_variance]: [&mut [f32]; 2],
        [mean, inverse_deviation]: [&mut [f32]; 2],
        correlation: &mut [f64],
        tile: Tile,
        scratch: &mut [u8],
    ) {
        self.correlation.add(images, tile.is_first(), correlation, scratch);
        if !tile.is_last() {
            return;
        }
        let taps = self.taps();
        let (products, sums) = correlation.split_at_mut(taps * taps);
        for row in 1..taps {
            for column in 0..row {
                products[row * taps + column] = products[column * taps + row];
            }
        }
        let total = (self.count() * tile.count) as f64;
        let norm = &self.stem.norm;
        for (channel, weight) in weight.chunks_exact(taps).enumerate() {
            let weight = |tap: usize| f64::from(weight[tap].load());
            let average = (0..taps).map(|tap| weight(tap) * sums[tap]).sum::<f64>() / total;
            let row = |tap: usize| products[tap * taps..][..taps].iter().zip(0..);
            let along = |tap: usize| row(tap).map(|(product, other)| product * weight(other)).sum::<f64>();
            let square = (0..taps).map(|tap| weight(tap) * along(tap)).sum::<f64>();
            let squares = square - total * average * average;
            // A comparison that propagates NaN.
            let squares = if squares < 0.0 { 0.0 } else { squares };
            let running = [&mut running_mean[channel], &mut running_variance[channel]];
            let constants = [norm.epsilon, norm.momentum];
            [mean[channel], inverse_deviation[channel]] =
                finish_statistics([average, squares, total], constants, running);
        }
    }

    /// See [`stratus_engine::ops::StemApply`].
    pub fn apply<E: LaneElement>(
        &self,
        [images, weight]: [&[E]; 2],
        parameters: [&[f32]; 3],
        inverse_deviation: &[f32],
        y: &mut [E],
        index: &mut [u8],
        scratch: &mut [f32],
    ) {
        let factor = |channel: usize| f64::from(inverse_deviation[channel]);
        self.pool([images, weight], parameters, &factor, y, index, scratch);
    }

    /// See [`stratus_engine::ops::StemInference`].
    pub fn inference<E: LaneElement>(
        &self,
        [images, weight]: [&[E]; 2],
        parameters: [&[f32]; 3],
        running_variance: &[f32],
        y: &mut [E],
        scratch: &mut [f32],
    ) {
        let epsilon = f64::from(self.stem.norm.epsilon);
        let factor = |channel: usize| 1.0 / (f64::from(running_variance[channel]) + epsilon).sqrt();
        self.pool([images, weight], parameters, &factor, y, &mut [], scratch);
    }

    /// Computes the pooled map, normalised by `(x - mean) * factor * norm_weight + norm_bias`; `index` may be
    /// empty.
    fn pool<E: LaneElement>(
        &self,
        [images, weight]: [&[E]; 2],
        [norm_weight, norm_bias, mean]: [&[f32]; 3],
        factor: &dyn Fn(usize) -> f64,
        y: &mut [E],
        index: &mut [u8],
        scratch: &mut [f32],
    ) {
        let (threads, groups) = (self.cpu.team.threads(), self.conv.groups());
        let (packed, scratch) = scratch.split_at_mut(self.conv.packed_floats());
        let (shifts, scratch) = scratch.split_at_mut(groups * LANES);
        self.conv.pack(weight, packed);
        for channel in 0..self.stem.conv.out_channels {
            let scale = f64::from(norm_weight[channel]) * factor(channel);
            let shift = (f64::from(norm_bias[channel]) - f64::from(mean[channel]) * scale) as f32;
            let lane = channel / CHANNELS * LANES + channel % CHANNELS;
            (shifts[lane], shifts[lane + CHANNELS]) = (shift, shift);
            for tap in 0..self.taps() {
                let at = self.conv.packed_at(channel, tap);
                let scaled = (f64::from(packed[at]) * scale) as f32;
                (packed[at], packed[at + CHANNELS]) = (scaled, scaled);
            }
        }
        let constants = [&*packed, &*shifts];
        // Threads divide images: with blocked channels, a range of rows would not be contiguous in the map.
        let images_of = |thread: usize| split(self.batch, threads, thread);
        let elements = self.pooled.plane_elements() * self.pooled.groups;
        let lengths = || (0..threads).map(|thread| images_of(thread).len() * elements);
        let keep = !index.is_empty();
        let mut ys = split_lengths(y, lengths());
        let mut indices = split_lengths(index, lengths().map(|length| if keep { length } else { 0 }));
        let mut scratches = split_lengths(scratch, (0..threads).map(|_| self.strip_floats()));
        let mut shares: [ThreadShare<'_, E>; MAX_THREADS] = std::array::from_fn(|thread| ThreadShare {
            y: std::mem::take(&mut ys[thread]),
            index: std::mem::take(&mut indices[thread]),
            scratch: std::mem::take(&mut scratches[thread]),
        });
        self.cpu.team.run_parts(&mut shares[..threads], &|thread, share| {
            pool_images(self.cpu.level, self, images_of(thread), images, constants, share);
        });
    }

    /// See [`stratus_engine::ops::StemGradients`].
    #[allow(clippy::too_many_arguments)] // The operands of the step.
    pub fn gradients<E: LaneElement>(
        &self,
        [images, weight, dy]: [&[E]; 3],
        [norm_weight, mean, inverse_deviation]: [&[f32]; 3],
        correlation: &[f64],
        index: &[u8],
        dweight: &mut [f32],
        [dnorm_weight, dnorm_bias]: [&mut [f32]; 2],
        sums: &mut [f64],
        tile: Tile,
        scratch: &mut [u8],
    ) {
        let (threads, taps) = (self.cpu.team.threads(), self.taps());
        let per_thread = sums.len();
        let (totals, rest) = scratch.split_at_mut(threads * per_thread * size_of::<f64>());
        let totals: &mut [f64] = bytemuck::cast_slice_mut(totals);
        let rest: &mut [f32] = bytemuck::cast_slice_mut(rest);
        let mut ends = split_lengths(&mut totals[..], (0..threads).map(|_| per_thread));
        let mut scratches = split_lengths(rest, (0..threads).map(|_| self.conv.gradient_floats()));
        let mut parts: [(&mut [f64], &mut [f32]); MAX_THREADS] = std::array::from_fn(|thread| {
            (std::mem::take(&mut ends[thread]), std::mem::take(&mut scratches[thread]))
        });
        self.cpu.team.run_parts(&mut parts[..threads], &|thread, (totals, scratch)| {
            totals.fill(0.0);
            let rows = self.thread_rows(thread);
            for first in rows.clone().step_by(ROWS_PER_FLUSH) {
                let rows = first..rows.end.min(first + ROWS_PER_FLUSH);
                gradient_rows(self.cpu.level, self, rows, images, dy, index, scratch);
                self.flush(scratch, totals);
            }
        });
        if tile.is_first() {
            sums.fill(0.0);
        }
        // In the order of the threads.
        for part in totals.chunks_exact(per_thread) {
            for (sum, part) in sums.iter_mut().zip(part) {
                *sum += part;
            }
        }
        if !tile.is_last() {
            return;
        }
        let (products, pixels) = correlation.split_at(taps * taps);
        let count = (self.count() * tile.count) as f64;
        let by_channel = weight.chunks_exact(taps).zip(dweight.chunks_exact_mut(taps));
        for (channel, ((weight, dweight), sums)) in by_channel.zip(sums.chunks_exact(taps + 1)).enumerate() {
            let weight = |tap: usize| f64::from(weight[tap].load());
            let [scale, mean, inverse] =
                [norm_weight, mean, inverse_deviation].map(|values| f64::from(values[channel]));
            let (sums, total) = (&sums[..taps], sums[taps]);
            let weighted =
                sums.iter().zip(0..).map(|(sum, tap)| sum * weight(tap)).sum::<f64>() - mean * total;
            (dnorm_bias[channel], dnorm_weight[channel]) = (total as f32, (weighted * inverse) as f32);
            for (tap, dweight) in dweight.iter_mut().enumerate() {
                let row = products[tap * taps..][..taps].iter().zip(0..);
                let along = row.map(|(product, other)| product * weight(other)).sum::<f64>();
                let normalised = (along - mean * pixels[tap]) * inverse;
                let rest = sums[tap] - total / count * pixels[tap] - weighted * inverse / count * normalised;
                *dweight = (scale * inverse * rest) as f32;
            }
        }
    }

    /// Adds the sums at the end of a thread's scratch to its totals; within a register, even pixels before
    /// odd ones.
    fn flush(&self, scratch: &[f32], totals: &mut [f64]) {
        let taps = self.taps();
        let (_, sums) =
            scratch.split_at(scratch.len() - self.conv.packed_floats() - self.conv.groups() * LANES);
        let both = |at: usize| f64::from(sums[at]) + f64::from(sums[at + CHANNELS]);
        for (channel, totals) in totals.chunks_exact_mut(taps + 1).enumerate() {
            for (tap, total) in totals[..taps].iter_mut().enumerate() {
                *total += both(self.conv.packed_at(channel, tap));
            }
            let group = channel / CHANNELS * LANES + channel % CHANNELS;
            totals[taps] += both(self.conv.packed_floats() + group);
        }
    }

    /// The offset of eight channels of the first pixel of a pooled row, in the map of an image.
    fn pooled_at(&self, row: usize, group: usize) -> usize {
        let channel = group * CHANNELS;
        let plane = channel / self.pooled.pixel_channels;
        (plane * self.pooled.height + row) * self.pooled.row_elements() + channel % self.pooled.pixel_channels
    }
}

with_lanes! {
    fn pool_images / pool_images_body(
        stem: &StemKernel,
        images: Range<usize>,
        x: &[E],
        constants: [&[f32]; 2],
        share: &mut ThreadShare<'_, E>,
    )
}

/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn pool_images_body<V: Lanes, E: LaneElement>(
    stem: &StemKernel,
    images: Range<usize>,
    x: &[E],
    constants: [&[f32]; 2],
    share: &mut ThreadShare<'_, E>,
) {
    let (groups, row_floats) = (stem.conv.groups(), stem.row_floats());
    let (stage, ring) = share.scratch.split_at_mut(WINDOW * groups * row_floats);
    let mut ring = Ring::new(ring);
    let elements = stem.pooled.plane_elements() * stem.pooled.groups;
    let keep = !share.index.is_empty();
    for ((number, image), y) in images.enumerate().zip(share.y.chunks_exact_mut(elements.max(1))) {
        let index = if keep { &mut share.index[number * elements..][..elements] } else { &mut [] };
        if stem.pooled.padded() > stem.stem.conv.out_channels {
            // Padded channels are zero.
            y.fill(E::store(0.0));
            index.fill(0);
        }
        for strip in 0..stem.pooled.height {
            for i in 0..WINDOW {
                let row = image * stem.output[0] + strip * WINDOW + i;
                // SAFETY: upheld by the caller, here and below.
                let offsets = unsafe { stem.conv.fill_ring::<V, E>(x, row, &mut ring) };
                for group in 0..groups {
                    let to = &mut stage[(group * WINDOW + i) * row_floats..][..row_floats];
                    let kernel = RowKernel::new(
                        &stem.conv,
                        ring.rows(),
                        offsets,
                        constants,
                        false,
                        group,
                        (CHANNELS, 0),
                    );
                    unsafe { kernel.run::<V, f32>(to) };
                }
            }
            for (group, rows) in stage.chunks_exact(WINDOW * row_floats).enumerate() {
                let at = stem.pooled_at(strip, group);
                let index = if keep { &mut index[at..] } else { &mut [] };
                unsafe { pool_strip::<V, E>(stem, rows, &mut y[at..], index) };
            }
        }
    }
}

/// Pools two rows of eight channels.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn pool_strip<V: Lanes, E: LaneElement>(
    stem: &StemKernel,
    rows: &[f32],
    y: &mut [E],
    index: &mut [u8],
) {
    let (windows, width) = (stem.pooled.row_pixels, stem.pooled.pixel_channels);
    let rows: &[[f32; LANES]] = rows.as_chunks().0;
    let (first, second) = rows.split_at(rows.len() / WINDOW);
    // SAFETY: upheld by the caller, here and below.
    let numbers = unsafe { [V::splat(0.0), V::splat(1.0), V::splat(2.0), V::splat(3.0)] };
    let masked = unsafe { V::splat(RELU_MASKED) };
    // Two windows per register; a single last one is pooled twice.
    for window in (0..windows).step_by(2) {
        let other = (window + 1).min(windows - 1);
        unsafe {
            let [a, b] = [V::load(&first[window]), V::load(&first[other])];
            let [c, d] = [V::load(&second[window]), V::load(&second[other])];
            let values = [a.low_halves(b), a.high_halves(b), c.low_halves(d), c.high_halves(d)];
            let mut best = values[0].maximum(values[1]).maximum(values[2].maximum(values[3]));
            let mut argmax = numbers[3];
            for number in (0..3).rev() {
                argmax = values[number].select_equal(best, numbers[number], argmax);
            }
            if stem.stem.relu {
                argmax = best.select_not_positive(masked, argmax);
                best = best.relu();
            }
            let at = window * width;
            if width == CHANNELS
                && let Some(y) = y[at..].first_chunk_mut()
                && other > window
            {
                E::store_lanes(best, y);
                if let Some(index) = index.get_mut(at..).and_then(|index| index.first_chunk_mut()) {
                    argmax.store_u8(index);
                }
                continue;
            }
            let (mut stored, mut bytes) = ([E::store(0.0); LANES], [0; LANES]);
            E::store_lanes(best, &mut stored);
            argmax.store_u8(&mut bytes);
            for (half, window) in (window..=other).enumerate() {
                let (at, from) = (window * width, half * CHANNELS);
                y[at..at + CHANNELS].copy_from_slice(&stored[from..from + CHANNELS]);
                if let Some(index) = index.get_mut(at..at + CHANNELS) {
                    index.copy_from_slice(&bytes[from..from + CHANNELS]);
                }
            }
        }
    }
}

/// The gradient of the normalised map: `dy` at the argmax of each window, zero elsewhere.
struct PooledGradient<'a, E> {
    stem: &'a StemKernel,
    dy: &'a [E],
    index: &'a [u8],
}

impl<E: LaneElement> GradientRows for PooledGradient<'_, E> {
    #[inline(always)]
    unsafe fn row<V: Lanes>(&self, row: usize, group: usize, to: &mut [[f32; LANES]]) -> V {
        let (stem, pooled) = (self.stem, &self.stem.pooled);
        // SAFETY: upheld by the caller, here and below.
        let zero = unsafe { V::splat(0.0) };
        let mut total = zero;
        let (image, row) = (row / stem.output[0], row % stem.output[0]);
        let (strip, i) = (row / WINDOW, row % WINDOW);
        let windows = if strip < pooled.height { pooled.row_pixels } else { 0 };
        let number = (i * WINDOW) as f32;
        let numbers = unsafe { [V::splat(number), V::splat(number + 1.0)] };
        let start = image * pooled.plane_elements() * pooled.groups + stem.pooled_at(strip, group);
        for window in (0..windows).step_by(2) {
            let at = start + window * pooled.pixel_channels;
            let (dy, index) = if pooled.pixel_channels == CHANNELS
                && window + 1 < windows
                && let Some(dy) = self.dy[at..].first_chunk()
                && let Some(index) = self.index[at..].first_chunk()
            {
                unsafe { (E::load_lanes::<V>(dy), V::load_u8(index)) }
            } else {
                let (mut dy, mut index) = ([E::store(0.0); LANES], [0; LANES]);
                for half in 0..2.min(windows - window) {
                    let (from, to) = (at + half * pooled.pixel_channels, half * CHANNELS);
                    dy[to..to + CHANNELS].copy_from_slice(&self.dy[from..from + CHANNELS]);
                    index[to..to + CHANNELS].copy_from_slice(&self.index[from..from + CHANNELS]);
                }
                unsafe { (E::load_lanes::<V>(&dy), V::load_u8(&index)) }
            };
            unsafe {
                let left = index.select_equal(numbers[0], dy, zero);
                let right = index.select_equal(numbers[1], dy, zero);
                let pairs = [left.low_halves(right), left.high_halves(right)];
                for (pair, to) in pairs.into_iter().zip(&mut to[window..windows.min(window + 2)]) {
                    total = total.add(pair);
                    pair.store(to);
                }
            }
        }
        // Pixels beyond the last window.
        for to in &mut to[windows..] {
            unsafe { zero.store(to) };
        }
        total
    }
}

with_lanes! {
    fn gradient_rows / gradient_rows_body(
        stem: &StemKernel,
        rows: Range<usize>,
        x: &[E],
        dy: &[E],
        index: &[u8],
        scratch: &mut [f32],
    )
}

/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn gradient_rows_body<V: Lanes, E: LaneElement>(
    stem: &StemKernel,
    rows: Range<usize>,
    x: &[E],
    dy: &[E],
    index: &[u8],
    scratch: &mut [f32],
) {
    // SAFETY: upheld by the caller.
    unsafe { add_rows::<V, E>(&stem.conv, rows, x, &PooledGradient { stem, dy, index }, scratch) };
}

#[cfg(test)]
mod tests;
