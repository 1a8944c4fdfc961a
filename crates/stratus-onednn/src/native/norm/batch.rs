//! Batch norm with ReLU: statistics and normalisation. Gradients are in [`super::batch_backward`], pooled variants in [`crate::native::pool`].
//!
//! Floor: statistics read the map once, normalising reads it and writes one; the pooled form writes the pooled map alone. Sums run in `f32`
//! over short stretches and are added up in `f64`.

use super::loops::{affine, affine_add, moments};
use super::pooled::disjoint::{self, DisjointPool};
use super::pooled::overlapping;
use crate::native::pool::max::MaxPool;
use crate::native::rows::{ChannelSlice, Geometry, repeat};
use crate::native::simd::{Bf16, Element, Level};
use crate::native::threads::{MAX_THREADS, ThreadTeam, cut};
use stratus_engine::DType;
use stratus_engine::backend::Tile;

/// A batch norm as the kernels need it.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    /// The geometry of the map that it normalises.
    pub geometry: Geometry,
    /// Where that map lies, and its gradient: by itself, or part of a larger map. With a pool, and where something is added, it is by itself.
    pub input: ChannelSlice,
    /// Where the result lies, or its gradient.
    pub output: ChannelSlice,
    /// Added to the variance.
    pub epsilon: f32,
    /// The share of the new batch in the running statistics.
    pub momentum: f32,
    /// Whether the result is rectified.
    pub relu: bool,
    /// Whether the result is pooled.
    pub pool: Option<Pooling>,
    /// Element type of the map.
    pub dtype: DType,
    /// Element type of the result and of all gradients: the map's, or bf16 behind a map of `f32`. With a pool it is the map's.
    pub output_dtype: DType,
    /// Isa.
    pub level: Level,
    /// Threads.
    pub team: ThreadTeam,
}

/// The pooling behind a norm.
#[derive(Clone, Debug)]
pub enum Pooling {
    /// By windows that neither overlap nor reach beyond the image.
    Disjoint(DisjointPool),
    /// By any others.
    Overlapping(Box<MaxPool>),
}

/// Numbers that a sum in `f32` is made of before it goes to `f64`.
const ADDENDS: usize = 128;

/// The arena's scratch, cut up: per thread two sums in `f64` per channel and two in `f32` per period; shared constants.
pub(crate) struct Scratch<'a> {
    pub totals: &'a mut [f64],
    pub sums: &'a mut [f32],
    pub constants: &'a mut [f32],
    pub repeated: &'a mut [f32],
    pub stages: &'a mut [u8],
}

/// Per-channel constants kept in scratch: four vectors.
const CONSTANTS: usize = 4;

/// Calls `$call` with the types of the map and of what comes behind it.
macro_rules! by_types {
    ($norm:expr, $x:ident, $y:ident => $call:expr) => {
        match ($norm.dtype, $norm.output_dtype) {
            (DType::Bf16, _) => {
                type $x = Bf16;
                type $y = Bf16;
                $call
            }
            (_, DType::Bf16) => {
                type $x = f32;
                type $y = Bf16;
                $call
            }
            _ => {
                type $x = f32;
                type $y = f32;
                $call
            }
        }
    };
}
pub(crate) use by_types;

impl BatchNorm {
    /// Bytes of scratch.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        let (threads, padded) = (self.team.threads(), self.geometry.padded());
        let period = self.geometry.groups * self.period();
        let floats = 2 * threads * self.period() + CONSTANTS * padded + CONSTANTS * period;
        let bytes = 8 * 2 * threads * padded + 4 * floats;
        bytes.next_multiple_of(64) + self.stage_bytes() * threads
    }

    /// How many channels' constants are repeated, and sums kept.
    pub(crate) fn period(&self) -> usize {
        let dense = self.input.is_dense() && self.output.is_dense();
        if dense { self.geometry.period() } else { self.geometry.width }
    }

    /// Cuts a range of pixel rows as [`ChannelSlice::stretches`] does, without other rows between them in any map.
    pub(crate) fn stretches(
        &self,
        rows: std::ops::Range<usize>,
    ) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> + use<> {
        let cut = if self.input.is_grouped() { &self.input } else { &self.output };
        cut.stretches(rows)
    }

    /// Bytes of one thread's stage, where the norm is pooled.
    fn stage_bytes(&self) -> usize {
        match &self.pool {
            Some(Pooling::Disjoint(pool)) => disjoint::stage_bytes(pool, &self.geometry, self.dtype.bytes()),
            Some(Pooling::Overlapping(pool)) => overlapping::stage_bytes(pool),
            None => 0,
        }
    }

    pub(crate) fn scratch<'a>(&self, bytes: &'a mut [u8]) -> Scratch<'a> {
        let (threads, padded) = (self.team.threads(), self.geometry.padded());
        let (totals, rest) = bytes.split_at_mut(8 * 2 * threads * padded);
        let (sums, rest) = rest.split_at_mut(4 * 2 * threads * self.period());
        let stages = self.stage_bytes() * threads;
        let (rest, stages) = rest.split_at_mut(rest.len() - stages);
        let (constants, repeated) = rest.split_at_mut(4 * CONSTANTS * padded);
        // The floats may end short of the stages' alignment.
        let repeated = &mut repeated[..4 * CONSTANTS * self.geometry.groups * self.period()];
        Scratch {
            stages,
            totals: bytemuck::cast_slice_mut(totals),
            sums: bytemuck::cast_slice_mut(sums),
            constants: bytemuck::cast_slice_mut(constants),
            repeated: bytemuck::cast_slice_mut(repeated),
        }
    }

    /// Sums two quantities over all pixels of each channel, on all threads; `body` adds the sums of its rows. The result is in `totals[..2 *
    /// padded]`: first quantity per channel, then second.
    pub(crate) fn reduce(
        &self,
        totals: &mut [f64],
        sums: &mut [f32],
        stages: &mut [u8],
        rows: &(dyn Fn(usize) -> std::ops::Range<usize> + Sync),
        body: &(dyn Fn(std::ops::Range<usize>, &mut Sums<'_>) + Sync),
    ) {
        let threads = self.team.threads();
        let mut parts = self.sums_of_threads(totals, sums, stages);
        self.team.run_parts(&mut parts[..threads], &|thread, part| {
            if let Some(part) = part {
                part.begin();
                body(rows(thread), part);
            }
        });
        self.join(totals);
    }

    /// What each thread adds up in.
    pub(crate) fn sums_of_threads<'a>(
        &self,
        totals: &'a mut [f64],
        sums: &'a mut [f32],
        stages: &'a mut [u8],
    ) -> [Option<Sums<'a>>; MAX_THREADS] {
        let (threads, padded, period) = (self.team.threads(), self.geometry.padded(), self.period());
        let mut total_parts = cut(totals, (0..threads).map(|_| 2 * padded));
        let mut sum_parts = cut(sums, (0..threads).map(|_| 2 * period));
        let mut stages = cut(stages, (0..threads).map(|_| self.stage_bytes()));
        std::array::from_fn(|thread| {
            (thread < threads).then(|| {
                let (first, second) = std::mem::take(&mut sum_parts[thread]).split_at_mut(period);
                Sums {
                    totals: std::mem::take(&mut total_parts[thread]),
                    first,
                    second,
                    stage: std::mem::take(&mut stages[thread]),
                    width: self.geometry.width,
                }
            })
        })
    }

    /// Adds the threads' totals up, in the order of threads, whichever finished first. The result is in `totals[..2 * padded]`.
    pub(crate) fn join(&self, totals: &mut [f64]) {
        let (threads, padded) = (self.team.threads(), self.geometry.padded());
        let (result, others) = totals.split_at_mut(2 * padded);
        for other in others[..(threads - 1) * 2 * padded].chunks_exact(2 * padded) {
            for (sum, part) in result.iter_mut().zip(other) {
                *sum += part;
            }
        }
    }

    /// The statistics of the batch, of which `x` is a tile: see [`stratus_engine::ops::BatchNormStatistics`].
    pub fn statistics(
        &self,
        x: &[u8],
        [running_mean, running_variance]: [&mut [f32]; 2],
        [mean, inverse_deviation]: [&mut [f32]; 2],
        moments: &mut [f64],
        tile: Tile,
        scratch: &mut [u8],
    ) {
        let Scratch { totals, sums, constants, repeated, stages } = self.scratch(scratch);
        match self.dtype {
            DType::Bf16 => {
                self.deviations::<Bf16>(bytemuck::cast_slice(x), totals, sums, constants, repeated, stages);
            }
            _ => self.deviations::<f32>(bytemuck::cast_slice(x), totals, sums, constants, repeated, stages),
        }
        let padded = self.geometry.padded();
        let count = self.geometry.pixels() as f64;
        let (means, squares) = moments.split_at_mut(self.geometry.channels);
        for channel in 0..self.geometry.channels {
            let offset = totals[channel] / count;
            let mut average = f64::from(constants[channel]) + offset;
            let mut square = totals[padded + channel] - count * offset * offset;
            let mut total = count;
            if !tile.is_first() {
                let before = tile.index as f64 * count;
                total += before;
                let apart = average - means[channel];
                average = means[channel] + apart * count / total;
                square += squares[channel] + apart * apart * before * count / total;
            }
            // A NaN stays one.
            square = if square < 0.0 { 0.0 } else { square };
            (means[channel], squares[channel]) = (average, square);
            if !tile.is_last() {
                continue;
            }
            let running = [&mut running_mean[channel], &mut running_variance[channel]];
            let norm = [self.epsilon, self.momentum];
            [mean[channel], inverse_deviation[channel]] = settle([average, square, total], norm, running);
        }
    }

    /// Per channel the sum of deviations from a pivot and of their squares, in `totals`; the pivots in `constants`.
    fn deviations<E: Element>(
        &self,
        x: &[E],
        totals: &mut [f64],
        sums: &mut [f32],
        constants: &mut [f32],
        repeated: &mut [f32],
        stages: &mut [u8],
    ) {
        let geometry = &self.geometry;
        let (from, period) = (&self.input, self.period());
        // Sums are taken about a number near the mean: the variance does not suffer where a channel's mean is large.
        let pivot = &mut constants[..geometry.padded()];
        row_means(from, x, pivot);
        repeat(geometry, period, pivot, repeated);
        let pivots = &*repeated;
        self.reduce(
            totals,
            sums,
            stages,
            &|thread| geometry.thread_rows(self.team.threads(), thread),
            &|rows, sums| {
                let step = from.step(period);
                for (group, rows) in self.stretches(rows) {
                    let pivot = &pivots[group * period..][..period];
                    for chunk in x[from.span(rows)].chunks(flush_length(step)) {
                        sums.clear();
                        moments(self.level, chunk, step, pivot, sums.first, sums.second);
                        sums.flush(group);
                    }
                }
            },
        );
    }

    /// Normalises `x` by the statistics of the batch, and adds `a`, which is empty where nothing is added. `index` is empty without pooling; there is
    /// no pooling of sums.
    pub fn apply(
        &self,
        [x, a]: [&[u8]; 2],
        [weight, bias, mean, inverse_deviation]: [&[f32]; 4],
        y: &mut [u8],
        index: &mut [u8],
        scratch: &mut [u8],
    ) {
        let factor = |channel: usize| f64::from(inverse_deviation[channel]);
        self.affine([x, a], [weight, bias, mean], &factor, y, index, scratch);
    }

    /// Normalises by the running statistics. `index` is empty without pooling, and where nobody asks for it.
    pub fn inference(
        &self,
        x: &[u8],
        [weight, bias, running_mean, running_variance]: [&[f32]; 4],
        y: &mut [u8],
        index: &mut [u8],
        scratch: &mut [u8],
    ) {
        let factor = |channel: usize| self.running_factor(running_variance[channel]);
        self.affine([x, &[]], [weight, bias, running_mean], &factor, y, index, scratch);
    }

    /// One over a channel's running standard deviation.
    pub(crate) fn running_factor(&self, running_variance: f32) -> f64 {
        1.0 / (f64::from(running_variance) + f64::from(self.epsilon)).sqrt()
    }

    /// `weight * (x - mean) * factor + bias`, and `a` where it is not empty, rectified and pooled as asked.
    fn affine(
        &self,
        [x, a]: [&[u8]; 2],
        [weight, bias, mean]: [&[f32]; 3],
        factor: &dyn Fn(usize) -> f64,
        y: &mut [u8],
        index: &mut [u8],
        scratch: &mut [u8],
    ) {
        let padded = self.geometry.padded();
        let Scratch { constants, repeated, stages, .. } = self.scratch(scratch);
        let (scale, shift) = constants[..2 * padded].split_at_mut(padded);
        self.scale_and_shift([weight, bias, mean], factor, [scale, shift]);
        by_types!(self, X, Y => {
            let (x, y) = (bytemuck::cast_slice(x), bytemuck::cast_slice_mut(y));
            // What is empty lies nowhere in particular: it may not be cast.
            let a = if a.is_empty() { &[] } else { bytemuck::cast_slice(a) };
            self.normalise::<X, Y>(x, a, [scale, shift], y, index, repeated, stages);
        });
    }

    /// The constants of `scale * x + shift`; 0 where channels are padding. Forward and backward pass rectify the same pixels: both take them
    /// from the statistics as they are stored.
    pub(crate) fn scale_and_shift(
        &self,
        [weight, bias, mean]: [&[f32]; 3],
        factor: &dyn Fn(usize) -> f64,
        [scale, shift]: [&mut [f32]; 2],
    ) {
        scale.fill(0.0);
        shift.fill(0.0);
        for channel in 0..self.geometry.channels {
            let factor = f64::from(weight[channel]) * factor(channel);
            scale[channel] = factor as f32;
            shift[channel] = (f64::from(bias[channel]) - f64::from(mean[channel]) * factor) as f32;
        }
    }

    /// `y = scale * x + shift + a`, rectified and pooled as asked.
    #[allow(clippy::too_many_arguments)] // The operands of the step, each a slice of the arena.
    fn normalise<X: Element, Y: Element>(
        &self,
        x: &[X],
        a: &[Y],
        [scale, shift]: [&[f32]; 2],
        y: &mut [Y],
        index: &mut [u8],
        repeated: &mut [f32],
        stages: &mut [u8],
    ) {
        let geometry = &self.geometry;
        if let Some(Pooling::Disjoint(pool)) = &self.pool {
            // With a pool both types are one.
            disjoint::forward::<Y>(self, pool, bytemuck::cast_slice(x), [scale, shift], y, index, stages);
            return;
        }
        let (period, threads) = (self.period(), self.team.threads());
        let (scales, shifts) = repeated.split_at_mut(geometry.groups * period);
        repeat(geometry, period, scale, scales);
        repeat(geometry, period, shift, shifts);
        let (scales, shifts) = (&*scales, &*shifts);
        if let Some(Pooling::Overlapping(pool)) = &self.pool {
            // As above.
            let x = bytemuck::cast_slice(x);
            overlapping::forward::<Y>(self, pool, x, [scales, shifts], y, index, stages);
            return;
        }
        let (from, place) = (&self.input, &self.output);
        let steps = [from.step(period), place.step(period)];
        let mut parts = cut(y, place.shares(threads));
        self.team.run_parts(&mut parts[..threads], &|thread, part| {
            let first = place.share_start(threads, thread);
            for (group, rows) in self.stretches(geometry.thread_rows(threads, thread)) {
                let constants = [scales, shifts].map(|c| &c[group * period..][..period]);
                let to = &mut part[place.row_start(rows.start) - first..];
                let from = from.span(rows);
                if a.is_empty() {
                    affine(self.level, &x[from], constants, self.relu, steps, to);
                } else {
                    affine_add(self.level, &x[from.clone()], &a[from], constants, self.relu, to);
                }
            }
        });
    }
}

/// A channel's mean and inverse deviation, from its average, the sum of squared deviations and the count; takes a step with its running statistics.
pub(crate) fn settle(
    [average, square, total]: [f64; 3],
    [epsilon, momentum]: [f32; 2],
    running: [&mut f32; 2],
) -> [f32; 2] {
    let unbiased = square / if total > 1.0 { total - 1.0 } else { total };
    let (keep, momentum) = (1.0 - f64::from(momentum), f64::from(momentum));
    for (running, new) in running.into_iter().zip([average, unbiased]) {
        *running = (keep * f64::from(*running) + momentum * new) as f32;
    }
    [average as f32, (1.0 / (square / total + f64::from(epsilon)).sqrt()) as f32]
}

/// Sets `means` to the mean of each channel over the middle row of the first image of the map that lies in `x`: near the channel's own mean, and a
/// function of the input alone.
fn row_means<E: Element>(from: &ChannelSlice, x: &[E], means: &mut [f32]) {
    let geometry = from.part();
    for (group, means) in means.chunks_exact_mut(geometry.width).enumerate() {
        means.fill(0.0);
        let middle = group * geometry.height + geometry.height / 2;
        for pixel in x[from.span(middle..middle + 1)].chunks(from.pixel_step()) {
            for (mean, value) in means.iter_mut().zip(pixel) {
                *mean += value.load();
            }
        }
        means.iter_mut().for_each(|mean| *mean /= geometry.row as f32);
    }
}

/// One thread's sums.
pub(crate) struct Sums<'a> {
    totals: &'a mut [f64],
    /// First quantity, per element of a period.
    pub first: &'a mut [f32],
    /// Second quantity.
    pub second: &'a mut [f32],
    /// Room for a strip.
    pub stage: &'a mut [u8],
    width: usize,
}

impl Sums<'_> {
    /// Zeroes the totals.
    pub fn begin(&mut self) {
        self.totals.fill(0.0);
    }

    /// Zeroes the `f32` sums.
    pub fn clear(&mut self) {
        self.first.fill(0.0);
        self.second.fill(0.0);
    }

    /// Adds the `f32` sums to the totals of a channel group.
    pub fn flush(&mut self, group: usize) {
        let (first, second) = self.totals.split_at_mut(self.totals.len() / 2);
        for (totals, sums) in [(first, &*self.first), (second, &*self.second)] {
            let totals = &mut totals[group * self.width..][..self.width];
            for repeat in sums.chunks_exact(self.width) {
                for (total, &sum) in totals.iter_mut().zip(repeat) {
                    *total += f64::from(sum);
                }
            }
        }
    }
}

/// Elements between two flushes.
pub(crate) fn flush_length(period: usize) -> usize {
    period * ADDENDS
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
