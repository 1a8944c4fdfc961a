//! Batch norm with ReLU: statistics, normalisation, gradients. Pooled variants are in [`super::pool`].
//!
//! Floor: the forward pass reads the map twice and writes it once, the backward pass reads map and gradient twice and writes one map; the
//! pooled forms neither write nor read the normalised map. Sums run in `f32` over short stretches and are added up in `f64`.

use super::norm_loops::{affine, gradient, gradient_sums, moments};
use super::pool::{self, Pool};
use super::rows::{Geometry, repeat};
use super::simd::{Bf16, Element, Level};
use super::threads::{Team, cut};
use stratus_engine::DType;

/// A batch norm as the kernels need it.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    /// The input's geometry.
    pub geometry: Geometry,
    /// Added to the variance.
    pub epsilon: f32,
    /// The share of the new batch in the running statistics.
    pub momentum: f32,
    /// Whether the result is rectified.
    pub relu: bool,
    /// Whether the result is pooled.
    pub pool: Option<Pool>,
    /// Element type of maps.
    pub dtype: DType,
    /// Instructions.
    pub level: Level,
    /// Threads.
    pub team: Team,
}

/// Rows that are summed in `f32` before the sums go to `f64`.
const ELEMENTS_PER_FLUSH: usize = 1 << 14;

/// The arena's scratch, cut up: per thread two sums in `f64` per channel and two in `f32` per period; shared constants.
struct Scratch<'a> {
    totals: &'a mut [f64],
    sums: &'a mut [f32],
    constants: &'a mut [f32],
    repeated: &'a mut [f32],
    stages: &'a mut [u8],
}

/// Per-channel constants kept in scratch: four vectors.
const CONSTANTS: usize = 4;

impl BatchNorm {
    /// Bytes of scratch.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        let (threads, padded) = (self.team.threads(), self.geometry.padded());
        let period = self.geometry.groups * self.geometry.period();
        let floats = 2 * threads * self.geometry.period() + CONSTANTS * padded + CONSTANTS * period;
        let bytes = 8 * 2 * threads * padded + 4 * floats;
        bytes.next_multiple_of(64) + self.stage_bytes() * threads
    }

    /// Bytes of one thread's stage: a strip's input and its gradient, where the norm is pooled and they fit the nearest cache.
    fn stage_bytes(&self) -> usize {
        let strip = self.pool.map_or(0, |pool| pool.strip_elements(&self.geometry) * self.dtype.bytes());
        if 2 * strip <= pool::LARGEST_STAGE { (2 * strip).next_multiple_of(64) } else { 0 }
    }

    fn scratch<'a>(&self, bytes: &'a mut [u8]) -> Scratch<'a> {
        let (threads, padded) = (self.team.threads(), self.geometry.padded());
        let (totals, rest) = bytes.split_at_mut(8 * 2 * threads * padded);
        let (sums, rest) = rest.split_at_mut(4 * 2 * threads * self.geometry.period());
        let stages = self.stage_bytes() * threads;
        let (rest, stages) = rest.split_at_mut(rest.len() - stages);
        let (constants, repeated) = rest.split_at_mut(4 * CONSTANTS * padded);
        // The floats may end short of the stages' alignment.
        let repeated = &mut repeated[..4 * CONSTANTS * self.geometry.groups * self.geometry.period()];
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
    fn reduce(
        &self,
        totals: &mut [f64],
        sums: &mut [f32],
        stages: &mut [u8],
        rows: &(dyn Fn(usize) -> std::ops::Range<usize> + Sync),
        body: &(dyn Fn(std::ops::Range<usize>, &mut Sums<'_>) + Sync),
    ) {
        let (threads, padded, period) = (self.team.threads(), self.geometry.padded(), self.geometry.period());
        let mut total_parts = cut(&mut totals[..], (0..threads).map(|_| 2 * padded));
        let mut sum_parts = cut(sums, (0..threads).map(|_| 2 * period));
        let mut stages = cut(stages, (0..threads).map(|_| self.stage_bytes()));
        let mut parts: [Option<Sums<'_>>; super::threads::MAX_THREADS] = std::array::from_fn(|thread| {
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
        });
        self.team.run_parts(&mut parts[..threads], &|thread, part| {
            if let Some(part) = part {
                part.totals.fill(0.0);
                body(rows(thread), part);
            }
        });
        // In the order of threads, whichever finished first.
        let (result, others) = totals.split_at_mut(2 * padded);
        for other in others[..(threads - 1) * 2 * padded].chunks_exact(2 * padded) {
            for (sum, part) in result.iter_mut().zip(other) {
                *sum += part;
            }
        }
    }

    /// Training forward. `index` is empty without pooling.
    #[allow(clippy::too_many_arguments)] // The operands of the step, each a slice of the arena.
    pub fn forward(
        &self,
        x: &[u8],
        [weight, bias]: [&[f32]; 2],
        [running_mean, running_variance]: [&mut [f32]; 2],
        y: &mut [u8],
        [mean, inverse_deviation]: [&mut [f32]; 2],
        index: &mut [u8],
        scratch: &mut [u8],
    ) {
        match self.dtype {
            DType::Bf16 => self.forward_as::<Bf16>(
                bytemuck::cast_slice(x),
                [weight, bias],
                [running_mean, running_variance],
                bytemuck::cast_slice_mut(y),
                [mean, inverse_deviation],
                index,
                scratch,
            ),
            _ => self.forward_as::<f32>(
                bytemuck::cast_slice(x),
                [weight, bias],
                [running_mean, running_variance],
                bytemuck::cast_slice_mut(y),
                [mean, inverse_deviation],
                index,
                scratch,
            ),
        }
    }

    #[allow(clippy::too_many_arguments)] // As `forward`.
    fn forward_as<E: Element>(
        &self,
        x: &[E],
        [weight, bias]: [&[f32]; 2],
        [running_mean, running_variance]: [&mut [f32]; 2],
        y: &mut [E],
        [mean, inverse_deviation]: [&mut [f32]; 2],
        index: &mut [u8],
        scratch: &mut [u8],
    ) {
        let geometry = &self.geometry;
        let (padded, row, period) = (geometry.padded(), geometry.row_elements(), geometry.period());
        let Scratch { totals, sums, constants, repeated, stages } = self.scratch(scratch);
        // Sums are taken about a number near the mean: the variance does not suffer where a channel's mean is large.
        let pivot = &mut constants[..padded];
        row_means(geometry, x, pivot);
        repeat(geometry, pivot, repeated);
        let pivots = &*repeated;
        self.reduce(
            totals,
            sums,
            stages,
            &|thread| geometry.thread_rows(self.team.threads(), thread),
            &|rows, sums| {
                for (group, rows) in geometry.stretches(rows) {
                    let pivot = &pivots[group * period..][..period];
                    for chunk in x[rows.start * row..rows.end * row].chunks(flush_length(period)) {
                        sums.clear();
                        moments(self.level, chunk, pivot, sums.first, sums.second);
                        sums.flush(group);
                    }
                }
            },
        );
        let count = geometry.pixels() as f64;
        let (scale_shift, _) = constants.split_at_mut(2 * padded);
        // The scale takes the place of the pivot, channel by channel; both are 0 where channels are padding.
        let (scale, shift) = scale_shift.split_at_mut(padded);
        shift.fill(0.0);
        for channel in 0..geometry.channels {
            let offset = totals[channel] / count;
            let batch_mean = f64::from(scale[channel]) + offset;
            // A NaN stays one.
            let variance = totals[padded + channel] / count - offset * offset;
            let variance = if variance < 0.0 { 0.0 } else { variance };
            let unbiased = if count > 1.0 { variance * count / (count - 1.0) } else { variance };
            let inverse = 1.0 / (variance + f64::from(self.epsilon)).sqrt();
            mean[channel] = batch_mean as f32;
            inverse_deviation[channel] = inverse as f32;
            let keep = 1.0 - f64::from(self.momentum);
            running_mean[channel] =
                (keep * f64::from(running_mean[channel]) + f64::from(self.momentum) * batch_mean) as f32;
            running_variance[channel] =
                (keep * f64::from(running_variance[channel]) + f64::from(self.momentum) * unbiased) as f32;
            // From the statistics as they are stored, so that the backward pass rectifies the same pixels.
            let factor = f64::from(weight[channel]) * f64::from(inverse_deviation[channel]);
            shift[channel] = (f64::from(bias[channel]) - f64::from(mean[channel]) * factor) as f32;
            scale[channel] = factor as f32;
        }
        self.normalise(x, [scale, shift], y, index, repeated, stages);
    }

    /// Inference forward: running statistics.
    pub fn inference(
        &self,
        x: &[u8],
        [weight, bias, running_mean, running_variance]: [&[f32]; 4],
        y: &mut [u8],
        scratch: &mut [u8],
    ) {
        let padded = self.geometry.padded();
        let Scratch { constants, repeated, stages, .. } = self.scratch(scratch);
        let (scale, shift) = constants[..2 * padded].split_at_mut(padded);
        scale.fill(0.0);
        shift.fill(0.0);
        for channel in 0..self.geometry.channels {
            let inverse = 1.0 / (f64::from(running_variance[channel]) + f64::from(self.epsilon)).sqrt();
            let factor = f64::from(weight[channel]) * inverse;
            scale[channel] = factor as f32;
            shift[channel] = (f64::from(bias[channel]) - f64::from(running_mean[channel]) * factor) as f32;
        }
        match self.dtype {
            DType::Bf16 => {
                let (x, y) = (bytemuck::cast_slice::<_, Bf16>(x), bytemuck::cast_slice_mut(y));
                self.normalise(x, [scale, shift], y, &mut [], repeated, stages);
            }
            _ => self.normalise::<f32>(
                bytemuck::cast_slice(x),
                [scale, shift],
                bytemuck::cast_slice_mut(y),
                &mut [],
                repeated,
                stages,
            ),
        }
    }

    /// `y = scale * x + shift`, rectified and pooled as asked.
    fn normalise<E: Element>(
        &self,
        x: &[E],
        [scale, shift]: [&[f32]; 2],
        y: &mut [E],
        index: &mut [u8],
        repeated: &mut [f32],
        stages: &mut [u8],
    ) {
        let geometry = &self.geometry;
        if let Some(pool) = &self.pool {
            pool::forward(self, pool, x, [scale, shift], y, index, stages);
            return;
        }
        let (row, period, threads) = (geometry.row_elements(), geometry.period(), self.team.threads());
        let (scales, shifts) = repeated.split_at_mut(geometry.groups * period);
        repeat(geometry, scale, scales);
        repeat(geometry, shift, shifts);
        let (scales, shifts) = (&*scales, &*shifts);
        let mut parts = cut(y, (0..threads).map(|t| geometry.thread_rows(threads, t).len() * row));
        self.team.run_parts(&mut parts[..threads], &|thread, part| {
            let rows = geometry.thread_rows(threads, thread);
            let first = rows.start;
            for (group, rows) in geometry.stretches(rows) {
                let constants = [scales, shifts].map(|c| &c[group * period..][..period]);
                let from = &x[rows.start * row..rows.end * row];
                affine(
                    self.level,
                    from,
                    constants,
                    self.relu,
                    &mut part[(rows.start - first) * row..(rows.end - first) * row],
                );
            }
        });
    }

    /// Backward: `dx`, `dweight`, `dbias`. `index` is empty without pooling.
    #[allow(clippy::too_many_arguments)] // The operands of the step, each a slice of the arena.
    pub fn backward(
        &self,
        x: &[u8],
        dy: &[u8],
        parameters: [&[f32]; 4],
        index: &[u8],
        dx: &mut [u8],
        gradients: [&mut [f32]; 2],
        scratch: &mut [u8],
    ) {
        use bytemuck::{cast_slice, cast_slice_mut};
        match self.dtype {
            DType::Bf16 => self.backward_as::<Bf16>(
                cast_slice(x),
                cast_slice(dy),
                parameters,
                index,
                cast_slice_mut(dx),
                gradients,
                scratch,
            ),
            _ => self.backward_as::<f32>(
                cast_slice(x),
                cast_slice(dy),
                parameters,
                index,
                cast_slice_mut(dx),
                gradients,
                scratch,
            ),
        }
    }

    #[allow(clippy::too_many_arguments)] // As `backward`.
    fn backward_as<E: Element>(
        &self,
        x: &[E],
        dy: &[E],
        [weight, bias, mean, inverse_deviation]: [&[f32]; 4],
        index: &[u8],
        dx: &mut [E],
        [dweight, dbias]: [&mut [f32]; 2],
        scratch: &mut [u8],
    ) {
        let geometry = &self.geometry;
        let (padded, row, period, threads) =
            (geometry.padded(), geometry.row_elements(), geometry.period(), self.team.threads());
        let Scratch { totals, sums, constants, repeated, stages } = self.scratch(scratch);
        constants.fill(0.0);
        {
            let (scale, rest) = constants.split_at_mut(padded);
            let (shift, rest) = rest.split_at_mut(padded);
            for channel in 0..geometry.channels {
                let factor = f64::from(weight[channel]) * f64::from(inverse_deviation[channel]);
                scale[channel] = factor as f32;
                shift[channel] = (f64::from(bias[channel]) - f64::from(mean[channel]) * factor) as f32;
                rest[channel] = mean[channel];
            }
        }
        for (constant, repeated) in
            constants.chunks_exact(padded).zip(repeated.chunks_exact_mut(geometry.groups * period)).take(3)
        {
            repeat(geometry, constant, repeated);
        }
        if let Some(pool) = &self.pool {
            let means = &constants[2 * padded..3 * padded];
            self.reduce(
                totals,
                sums,
                stages,
                &|thread| pool.thread_strips(geometry, threads, thread),
                &|strips, sums| {
                    pool::reduce_gradients(self, pool, strips, x, dy, index, means, sums);
                },
            );
        } else {
            let repeated = &*repeated;
            self.reduce(
                totals,
                sums,
                stages,
                &|thread| geometry.thread_rows(threads, thread),
                &|rows, sums| {
                    for (group, rows) in geometry.stretches(rows) {
                        let c =
                            [0, 1, 2].map(|i| &repeated[(i * geometry.groups + group) * period..][..period]);
                        let range = rows.start * row..rows.end * row;
                        let length = flush_length(period);
                        for (x, dy) in x[range.clone()].chunks(length).zip(dy[range].chunks(length)) {
                            sums.clear();
                            gradient_sums(self.level, x, dy, c, self.relu, sums.first, sums.second);
                            sums.flush(group);
                        }
                    }
                },
            );
        }
        // dx = scale * g - scale / M * (sum g + xhat * sum(g * xhat)), as scale * g + slope * x + offset.
        let count = geometry.pixels() as f64;
        {
            let (_, rest) = constants.split_at_mut(2 * padded);
            let (slope, offset) = rest.split_at_mut(padded);
            for channel in 0..geometry.channels {
                let inverse = f64::from(inverse_deviation[channel]);
                let (sum, weighted) = (totals[channel], totals[padded + channel] * inverse);
                dbias[channel] = sum as f32;
                dweight[channel] = weighted as f32;
                let scale = f64::from(weight[channel]) * inverse;
                let factor = -scale * inverse * weighted / count;
                slope[channel] = factor as f32;
                offset[channel] = (-scale * sum / count - factor * f64::from(mean[channel])) as f32;
            }
        }
        if let Some(pool) = &self.pool {
            pool::backward(self, pool, x, dy, index, constants, dx, stages);
            return;
        }
        for (constant, repeated) in
            constants.chunks_exact(padded).zip(repeated.chunks_exact_mut(geometry.groups * period)).skip(2)
        {
            repeat(geometry, constant, repeated);
        }
        let repeated = &*repeated;
        let mut parts = cut(dx, (0..threads).map(|t| geometry.thread_rows(threads, t).len() * row));
        self.team.run_parts(&mut parts[..threads], &|thread, part| {
            let rows = geometry.thread_rows(threads, thread);
            let first = rows.start;
            for (group, rows) in geometry.stretches(rows) {
                let c = [0, 1, 2, 3].map(|i| &repeated[(i * geometry.groups + group) * period..][..period]);
                let range = rows.start * row..rows.end * row;
                let to = &mut part[(rows.start - first) * row..(rows.end - first) * row];
                gradient(self.level, &x[range.clone()], &dy[range], c, self.relu, to);
            }
        });
    }
}

/// Sets `means` to the mean of each channel over the middle row of the first image: near the channel's own mean, and a function of the
/// input alone.
fn row_means<E: Element>(geometry: &Geometry, x: &[E], means: &mut [f32]) {
    let row = geometry.row_elements();
    for (group, means) in means.chunks_exact_mut(geometry.width).enumerate() {
        means.fill(0.0);
        let pixels = &x[(group * geometry.height + geometry.height / 2) * row..][..row];
        for pixel in pixels.chunks_exact(geometry.width) {
            for (mean, value) in means.iter_mut().zip(pixel) {
                *mean += value.load();
            }
        }
        means.iter_mut().for_each(|mean| *mean /= geometry.row as f32);
    }
}

/// One thread's sums.
pub(super) struct Sums<'a> {
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

/// Elements between two flushes: a multiple of the period.
fn flush_length(period: usize) -> usize {
    period * (ELEMENTS_PER_FLUSH / period).max(1)
}

#[cfg(test)]
#[path = "batch_norm_tests.rs"]
mod tests;
