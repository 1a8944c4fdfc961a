//! Batch norm with an activation: statistics and normalisation. Gradients are in [`super::batch_backward`],
//! fused max-pooling in [`pooled`].
//!
//! ```text
//! statistics   mean, variance = E[x], E[(x - mean)²]            reads x once, two sums per channel
//! apply        y = f(scale · x + shift (+ a))                   reads x (and a), writes y
//!              scale = weight / deviation      shift = bias - mean · scale
//! ```
//!
//! Memory-bound. Sums are taken about a pivot near the mean, so that a large mean costs no precision; they
//! run in `f32` over up to [`MAX_ADDENDS`] numbers and are then added in `f64`. Tiles of a batch are combined
//! by Chan, Golub and LeVeque's update ("Updating formulae and a pairwise algorithm for computing sample
//! variances", 1979). Threads divide pixel rows; their sums are added in the order of the threads. oneDNN's
//! kernel fuses neither the sum nor pooling, and does not support slices of a map.

pub mod pooled;

use super::loops::{Affine, affine_add, moments};
use crate::native::activation::run_activated;
use crate::native::pool::max::MaxPool;
use crate::native::rows::{ChannelSlice, MapGeometry, repeat};
use crate::native::simd::{Bf16, Element, IsaLevel};
use crate::native::threads::{MAX_THREADS, ThreadTeam, split_lengths};
use pooled::disjoint::{self, DisjointPool};
use pooled::overlapping;
use stratus_engine::DType;
use stratus_engine::backend::Tile;
use stratus_engine::ops::FusedActivation;

/// The parameters of batch norm kernels.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    /// The geometry of the normalised map.
    pub geometry: MapGeometry,
    /// The location of the map and its gradient: a whole map, or a channel slice of a larger one. With a pool
    /// or an addend it is a whole map.
    pub input: ChannelSlice,
    /// The location of the output and its gradient.
    pub output: ChannelSlice,
    /// Added to the variance.
    pub epsilon: f32,
    /// The weight of the new batch in the running statistics.
    pub momentum: f32,
    /// The activation of the output. With a pool or an addend it is ReLU or nothing.
    pub activation: FusedActivation,
    /// The max-pooling after ReLU.
    pub pool: Option<Pooling>,
    /// Element type of the map.
    pub dtype: DType,
    /// Element type of the output and of all gradients: that of the map, or bf16 for a map of `f32`. With a
    /// pool it is that of the map.
    pub output_dtype: DType,
    /// The instruction set.
    pub level: IsaLevel,
    /// The threads.
    pub team: ThreadTeam,
}

/// Max-pooling after a norm.
#[derive(Clone, Debug)]
pub enum Pooling {
    /// Windows that neither overlap nor extend beyond the image.
    Disjoint(DisjointPool),
    /// All other windows.
    Overlapping(Box<MaxPool>),
}

/// The number of terms summed in `f32` before the sum is added in `f64`.
const MAX_ADDENDS: usize = 128;

/// The sections of scratch: per thread two `f64` sums per channel and two `f32` sums per element of a period;
/// constants per channel, and the same repeated over periods; staging buffers of pooled rows.
pub(crate) struct Scratch<'a> {
    pub totals: &'a mut [f64],
    pub sums: &'a mut [f32],
    pub constants: &'a mut [f32],
    pub repeated: &'a mut [f32],
    pub stagings: &'a mut [u8],
}

/// The constants per channel.
const CONSTANTS_PER_CHANNEL: usize = 4;

/// Calls `$call` with the element types of the map and of the output.
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
    /// Returns whether ReLU is applied to the output.
    pub(crate) fn relu(&self) -> bool {
        self.activation == FusedActivation::RELU
    }

    /// The scratch bytes.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        let (threads, padded) = (self.team.threads(), self.geometry.padded());
        let period = self.geometry.groups * self.period();
        let floats =
            2 * threads * self.period() + CONSTANTS_PER_CHANNEL * padded + CONSTANTS_PER_CHANNEL * period;
        let bytes = 8 * 2 * threads * padded + 4 * floats;
        bytes.next_multiple_of(64) + self.staging_bytes() * threads
    }

    /// Elements over which constants are repeated and sums are kept.
    pub(crate) fn period(&self) -> usize {
        let dense = self.input.is_dense() && self.output.is_dense();
        if dense { self.geometry.period() } else { self.geometry.pixel_channels }
    }

    /// Divides a range of pixel rows as [`ChannelSlice::stretches`] does: contiguous in both maps.
    pub(crate) fn stretches(
        &self,
        rows: std::ops::Range<usize>,
    ) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> + use<> {
        let slice = if self.input.is_grouped() { &self.input } else { &self.output };
        slice.stretches(rows)
    }

    /// The bytes of a thread's staging buffer for pooling.
    fn staging_bytes(&self) -> usize {
        match &self.pool {
            Some(Pooling::Disjoint(pool)) => {
                disjoint::staging_bytes(pool, &self.geometry, self.dtype.bytes())
            }
            Some(Pooling::Overlapping(pool)) => overlapping::staging_bytes(pool),
            None => 0,
        }
    }

    pub(crate) fn scratch<'a>(&self, bytes: &'a mut [u8]) -> Scratch<'a> {
        let (threads, padded) = (self.team.threads(), self.geometry.padded());
        let (totals, rest) = bytes.split_at_mut(8 * 2 * threads * padded);
        let (sums, rest) = rest.split_at_mut(4 * 2 * threads * self.period());
        let stagings = self.staging_bytes() * threads;
        let (rest, stagings) = rest.split_at_mut(rest.len() - stagings);
        let (constants, repeated) = rest.split_at_mut(4 * CONSTANTS_PER_CHANNEL * padded);
        // There may be a gap before the staging buffers, which are aligned.
        let repeated = &mut repeated[..4 * CONSTANTS_PER_CHANNEL * self.geometry.groups * self.period()];
        Scratch {
            stagings,
            totals: bytemuck::cast_slice_mut(totals),
            sums: bytemuck::cast_slice_mut(sums),
            constants: bytemuck::cast_slice_mut(constants),
            repeated: bytemuck::cast_slice_mut(repeated),
        }
    }

    /// Computes two sums per channel over all pixels, on all threads; `body` adds those of its rows. The
    /// result is in `totals[..2 * padded]`: the first quantity per channel, then the second.
    pub(crate) fn reduce(
        &self,
        totals: &mut [f64],
        sums: &mut [f32],
        stagings: &mut [u8],
        rows: &(dyn Fn(usize) -> std::ops::Range<usize> + Sync),
        body: &(dyn Fn(std::ops::Range<usize>, &mut Sums<'_>) + Sync),
    ) {
        let threads = self.team.threads();
        let mut parts = self.thread_sums(totals, sums, stagings);
        self.team.run_parts(&mut parts[..threads], &|thread, part| {
            if let Some(part) = part {
                part.begin();
                body(rows(thread), part);
            }
        });
        self.add_threads(totals);
    }

    /// The sums of each thread.
    pub(crate) fn thread_sums<'a>(
        &self,
        totals: &'a mut [f64],
        sums: &'a mut [f32],
        stagings: &'a mut [u8],
    ) -> [Option<Sums<'a>>; MAX_THREADS] {
        let (threads, padded, period) = (self.team.threads(), self.geometry.padded(), self.period());
        let mut total_parts = split_lengths(totals, (0..threads).map(|_| 2 * padded));
        let mut sum_parts = split_lengths(sums, (0..threads).map(|_| 2 * period));
        let mut stagings = split_lengths(stagings, (0..threads).map(|_| self.staging_bytes()));
        std::array::from_fn(|thread| {
            (thread < threads).then(|| {
                let (first, second) = std::mem::take(&mut sum_parts[thread]).split_at_mut(period);
                Sums {
                    totals: std::mem::take(&mut total_parts[thread]),
                    first,
                    second,
                    staging: std::mem::take(&mut stagings[thread]),
                    width: self.geometry.pixel_channels,
                }
            })
        })
    }

    /// Adds the threads' totals in the order of the threads, into `totals[..2 * padded]`.
    pub(crate) fn add_threads(&self, totals: &mut [f64]) {
        let (threads, padded) = (self.team.threads(), self.geometry.padded());
        let (result, others) = totals.split_at_mut(2 * padded);
        for other in others[..(threads - 1) * 2 * padded].chunks_exact(2 * padded) {
            for (sum, part) in result.iter_mut().zip(other) {
                *sum += part;
            }
        }
    }

    /// Adds the tile `x` to the statistics of its batch: see [`stratus_engine::ops::BatchNormStatistics`].
    pub fn statistics(
        &self,
        x: &[u8],
        [running_mean, running_variance]: [&mut [f32]; 2],
        [mean, inverse_deviation]: [&mut [f32]; 2],
        moments: &mut [f64],
        tile: Tile,
        scratch: &mut [u8],
    ) {
        let Scratch { totals, sums, constants, repeated, stagings } = self.scratch(scratch);
        match self.dtype {
            DType::Bf16 => {
                self.deviation_sums::<Bf16>(
                    bytemuck::cast_slice(x),
                    totals,
                    sums,
                    constants,
                    repeated,
                    stagings,
                );
            }
            _ => {
                self.deviation_sums::<f32>(
                    bytemuck::cast_slice(x),
                    totals,
                    sums,
                    constants,
                    repeated,
                    stagings,
                );
            }
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
                let before = tile.run_index as f64 * count;
                total += before;
                let delta = average - means[channel];
                average = means[channel] + delta * count / total;
                square += squares[channel] + delta * delta * before * count / total;
            }
            // A comparison that propagates NaN.
            square = if square < 0.0 { 0.0 } else { square };
            (means[channel], squares[channel]) = (average, square);
            if !tile.is_last() {
                continue;
            }
            let running = [&mut running_mean[channel], &mut running_variance[channel]];
            let norm = [self.epsilon, self.momentum];
            [mean[channel], inverse_deviation[channel]] =
                finish_statistics([average, square, total], norm, running);
        }
    }

    /// Computes Σ x and Σ x² per channel: see [`stratus_engine::ops::BatchNormSums`].
    pub fn sums(&self, x: &[u8], sums: &mut [f64], scratch: &mut [u8]) {
        let Scratch { totals, sums: partial, constants, repeated, stagings } = self.scratch(scratch);
        match self.dtype {
            DType::Bf16 => {
                let x: &[Bf16] = bytemuck::cast_slice(x);
                self.deviation_sums(x, totals, partial, constants, repeated, stagings);
            }
            _ => {
                let x: &[f32] = bytemuck::cast_slice(x);
                self.deviation_sums(x, totals, partial, constants, repeated, stagings);
            }
        }
        let (padded, count) = (self.geometry.padded(), self.geometry.pixels() as f64);
        let (firsts, squares) = sums.split_at_mut(self.geometry.channels);
        for (channel, (first, square)) in firsts.iter_mut().zip(squares).enumerate() {
            let (pivot, offset) = (f64::from(constants[channel]), totals[channel]);
            *first = offset + count * pivot;
            *square = totals[padded + channel] + pivot * (2.0 * offset + count * pivot);
        }
    }

    /// Computes Σ (x - pivot) and Σ (x - pivot)² per channel, in `totals`; the pivots in `constants`.
    fn deviation_sums<E: Element>(
        &self,
        x: &[E],
        totals: &mut [f64],
        sums: &mut [f32],
        constants: &mut [f32],
        repeated: &mut [f32],
        stagings: &mut [u8],
    ) {
        let geometry = &self.geometry;
        let (input, period) = (&self.input, self.period());
        let pivot = &mut constants[..geometry.padded()];
        pivots_of(input, x, pivot);
        repeat(geometry, period, pivot, repeated);
        let pivots = &*repeated;
        self.reduce(
            totals,
            sums,
            stagings,
            &|thread| geometry.thread_rows(self.team.threads(), thread),
            &|rows, sums| {
                let step = input.step(period);
                for (group, rows) in self.stretches(rows) {
                    let pivot = &pivots[group * period..][..period];
                    for chunk in x[input.span(rows)].chunks(flush_length(step)) {
                        sums.clear();
                        moments(self.level, chunk, step, pivot, sums.first, sums.second);
                        sums.flush(group);
                    }
                }
            },
        );
    }

    /// Normalises `x` by the statistics of the batch and adds `a`, which may be empty. `index` is empty
    /// without pooling; sums are not pooled.
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

    /// Normalises by the running statistics. `index` is empty without pooling, or if it is not needed.
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

    /// 1 / running standard deviation.
    pub(crate) fn running_factor(&self, running_variance: f32) -> f64 {
        1.0 / (f64::from(running_variance) + f64::from(self.epsilon)).sqrt()
    }

    /// `weight * (x - mean) * factor + bias (+ a)`, with optional ReLU and pooling.
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
        let Scratch { constants, repeated, stagings, .. } = self.scratch(scratch);
        let (scale, shift) = constants[..2 * padded].split_at_mut(padded);
        self.scale_and_shift([weight, bias, mean], factor, [scale, shift]);
        by_types!(self, X, Y => {
            let (x, y) = (bytemuck::cast_slice(x), bytemuck::cast_slice_mut(y));
            // An empty slice may be misaligned.
            let a = if a.is_empty() { &[] } else { bytemuck::cast_slice(a) };
            self.apply_affine::<X, Y>(x, a, [scale, shift], y, index, repeated, stagings);
        });
    }

    /// `scale` and `shift` per channel, 0 for padded channels. Forward and backward compute them from the
    /// same stored statistics, so they agree on which pixels ReLU masks.
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

    /// `y = scale * x + shift + a`, with optional ReLU and pooling.
    #[allow(clippy::too_many_arguments)] // The operands of the step, each a slice of the arena.
    fn apply_affine<X: Element, Y: Element>(
        &self,
        x: &[X],
        a: &[Y],
        [scale, shift]: [&[f32]; 2],
        y: &mut [Y],
        index: &mut [u8],
        repeated: &mut [f32],
        stagings: &mut [u8],
    ) {
        let geometry = &self.geometry;
        if let Some(Pooling::Disjoint(pool)) = &self.pool {
            // With a pool both types are the same.
            disjoint::forward::<Y>(self, pool, bytemuck::cast_slice(x), [scale, shift], y, index, stagings);
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
            overlapping::forward::<Y>(self, pool, x, [scales, shifts], y, index, stagings);
            return;
        }
        let (input, output) = (&self.input, &self.output);
        let steps = [input.step(period), output.step(period)];
        let mut parts = split_lengths(y, output.shares(threads));
        self.team.run_parts(&mut parts[..threads], &|thread, part| {
            let first = output.share_start(threads, thread);
            for (group, rows) in self.stretches(geometry.thread_rows(threads, thread)) {
                let constants = [scales, shifts].map(|c| &c[group * period..][..period]);
                let to = &mut part[output.row_start(rows.start) - first..];
                let from = input.span(rows);
                let (level, x) = (self.level, &x[from.clone()]);
                if a.is_empty() {
                    run_activated(self.activation, Affine { level, x, constants, steps, y: to });
                } else {
                    affine_add(level, x, &a[from], constants, self.relu(), to);
                }
            }
        });
    }
}

/// The mean and 1 / deviation of a channel, from its mean, sum of squared deviations and count; updates the
/// running statistics.
pub(crate) fn finish_statistics(
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

/// Writes the running statistics, mean and inverse deviation from the sums of `count` elements per channel:
/// see [`stratus_engine::ops::BatchNormStatisticsFromSums`].
pub(crate) fn finish_sums(
    sums: &[f64],
    count: f64,
    constants: [f32; 2],
    [running_mean, running_variance]: [&mut [f32]; 2],
    [mean, inverse_deviation]: [&mut [f32]; 2],
) {
    let channels = mean.len();
    for channel in 0..channels {
        let average = sums[channel] / count;
        let square = sums[channels + channel] - sums[channel] * average;
        // A comparison that propagates NaN.
        let square = if square < 0.0 { 0.0 } else { square };
        let running = [&mut running_mean[channel], &mut running_variance[channel]];
        [mean[channel], inverse_deviation[channel]] =
            finish_statistics([average, square, count], constants, running);
    }
}

/// The mean of each channel over the middle row of the first image: near the channel's mean, and a function
/// of the input alone.
fn pivots_of<E: Element>(input: &ChannelSlice, x: &[E], means: &mut [f32]) {
    let geometry = input.slice();
    for (group, means) in means.chunks_exact_mut(geometry.pixel_channels).enumerate() {
        means.fill(0.0);
        let middle = group * geometry.height + geometry.height / 2;
        for pixel in x[input.span(middle..middle + 1)].chunks(input.pixel_step()) {
            for (mean, value) in means.iter_mut().zip(pixel) {
                *mean += value.load();
            }
        }
        means.iter_mut().for_each(|mean| *mean /= geometry.row_pixels as f32);
    }
}

/// The sums of a thread.
pub(crate) struct Sums<'a> {
    totals: &'a mut [f64],
    /// First quantity, per element of a period.
    pub first: &'a mut [f32],
    /// Second quantity.
    pub second: &'a mut [f32],
    /// The staging buffer of pooled rows.
    pub staging: &'a mut [u8],
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

    /// Adds the `f32` sums to the `f64` totals of a channel group.
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

/// The number of elements between two flushes.
pub(crate) fn flush_length(period: usize) -> usize {
    period * MAX_ADDENDS
}

#[cfg(test)]
mod tests;
