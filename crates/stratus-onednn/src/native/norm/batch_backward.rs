//! The gradients of batch norm with an activation. Pooled variants are in [`super::pooled`].
//!
//! ```text
//! g = dy f'(scale · x + shift)              dbias = Σ g       dweight = Σ g (x - mean) / deviation
//! dx = scale · (g - (dbias + x̂ · dweight) / M)                M: pixels of a channel in the batch
//!    = scale · g + slope · x + offset                         slope, offset per channel
//! ```
//!
//! Two passes, because the sums must be complete before `dx` is computed; each reads `x` and `dy`, the second
//! writes `dx`. The derivative of the activation is computed from `x`, so `y` is not read. The second pass
//! runs in reverse: its first rows are those that the caches still hold from the first pass.

use super::batch::pooled::{disjoint, overlapping};
use super::batch::{BatchNorm, Pooling, Scratch, Sums, by_types, flush_length};
use super::loops::{Gradient, GradientSums, mask_and_sum};
use crate::native::activation::run_activated;
use crate::native::lanes::LaneElement;
use crate::native::rows::repeat;
use crate::native::simd::{Bf16, Element};
use crate::native::threads::{MAX_THREADS, split_lengths, zip_parts};
use bytemuck::{cast_slice, cast_slice_mut};
use stratus_engine::DType;
use stratus_engine::backend::Tile;

/// Weight, bias, mean, 1 / deviation.
type Parameters<'a> = [&'a [f32]; 4];

impl BatchNorm {
    /// Adds the tile `x`, `dy` to `dweight` and `dbias` of its batch: see
    /// [`stratus_engine::ops::BatchNormGradients`]. `index` is empty without pooling.
    #[allow(clippy::too_many_arguments)] // The operands of the step, each a slice of the arena.
    pub fn gradients(
        &self,
        x: &[u8],
        dy: &[u8],
        parameters: Parameters<'_>,
        index: &[u8],
        [dweight, dbias]: [&mut [f32]; 2],
        sums: &mut [f64],
        tile: Tile,
        scratch: &mut [u8],
    ) {
        let scratch = self.scratch(scratch);
        let totals = by_types!(self, X, Y => {
            self.gradient_totals::<X, Y>(cast_slice(x), cast_slice(dy), parameters, index, scratch)
        });
        let [.., inverse_deviation] = parameters;
        self.finish_gradients(totals, inverse_deviation, [dweight, dbias], sums, tile);
    }

    /// Adds the totals of a tile to `sums`; after the last tile these become the gradients.
    fn finish_gradients(
        &self,
        totals: &[f64],
        inverse_deviation: &[f32],
        [dweight, dbias]: [&mut [f32]; 2],
        sums: &mut [f64],
        tile: Tile,
    ) {
        let (padded, channels) = (self.geometry.padded(), self.geometry.channels);
        let (sums, weighted) = sums.split_at_mut(channels);
        for channel in 0..channels {
            for (sum, total) in
                [(&mut sums[channel], totals[channel]), (&mut weighted[channel], totals[padded + channel])]
            {
                *sum = if tile.is_first() { total } else { *sum + total };
            }
            if tile.is_last() {
                dbias[channel] = sums[channel] as f32;
                dweight[channel] = (weighted[channel] * f64::from(inverse_deviation[channel])) as f32;
            }
        }
    }

    /// `dweight` and `dbias` with ReLU after a residual sum, whose `dy` is masked in place: see
    /// [`stratus_engine::ops::BatchNormAddReluGradients`]. `part` is added to `dy` first, unless it is empty.
    #[allow(clippy::too_many_arguments)] // The operands of the step, each a slice of the arena.
    pub fn gradients_after_sum<E: Element>(
        &self,
        [x, y, part]: [&[E]; 3],
        [mean, inverse_deviation]: [&[f32]; 2],
        dy: &mut [E],
        gradients: [&mut [f32]; 2],
        sums: &mut [f64],
        tile: Tile,
        scratch: &mut [u8],
    ) {
        let geometry = &self.geometry;
        let (row, period, threads) = (geometry.row_elements(), self.period(), self.team.threads());
        let Scratch { totals, sums: room, constants, repeated, stagings } = self.scratch(scratch);
        let means = &mut constants[..geometry.padded()];
        means.fill(0.0);
        means[..geometry.channels].copy_from_slice(&mean[..geometry.channels]);
        repeat(geometry, period, means, repeated);
        let means = &*repeated;
        let rows = |thread| geometry.thread_rows(threads, thread);
        let shares = self.thread_sums(totals, room, stagings);
        let maps = split_lengths(dy, (0..threads).map(|thread| rows(thread).len() * row));
        let mut parts: [(Option<Sums<'_>>, &mut [E]); MAX_THREADS] = zip_parts(shares, maps);
        self.team.run_parts(&mut parts[..threads], &|thread, (sums, dy)| {
            let Some(sums) = sums else { return };
            sums.begin();
            let first = rows(thread).start;
            for (group, rows) in self.stretches(rows(thread)) {
                let mean = &means[group * period..][..period];
                let dy = &mut dy[(rows.start - first) * row..(rows.end - first) * row];
                for (number, dy) in dy.chunks_mut(flush_length(period)).enumerate() {
                    let start = rows.start * row + number * flush_length(period);
                    let [x, y] = [x, y].map(|map| &map[start..start + dy.len()]);
                    sums.clear();
                    if part.is_empty() {
                        let maps = [x, y, &[]];
                        mask_and_sum::<E, false>(self.level, maps, mean, dy, sums.first, sums.second);
                    } else {
                        let maps = [x, y, &part[start..start + dy.len()]];
                        mask_and_sum::<E, true>(self.level, maps, mean, dy, sums.first, sums.second);
                    }
                    sums.flush(group);
                }
            }
        });
        self.add_threads(totals);
        self.finish_gradients(totals, inverse_deviation, gradients, sums, tile);
    }

    /// Σ g and Σ g (x - mean) per channel.
    fn gradient_totals<'a, X: Element, Y: LaneElement>(
        &self,
        x: &[X],
        dy: &[Y],
        [weight, bias, mean, inverse_deviation]: Parameters<'_>,
        index: &[u8],
        scratch: Scratch<'a>,
    ) -> &'a [f64] {
        let geometry = &self.geometry;
        let (padded, period, threads) = (geometry.padded(), self.period(), self.team.threads());
        let Scratch { totals, sums, constants, repeated, stagings } = scratch;
        let (scale, rest) = constants.split_at_mut(padded);
        let (shift, rest) = rest.split_at_mut(padded);
        let factor = |channel: usize| f64::from(inverse_deviation[channel]);
        self.scale_and_shift([weight, bias, mean], &factor, [scale, shift]);
        let means = &mut rest[..padded];
        means.fill(0.0);
        means[..geometry.channels].copy_from_slice(&mean[..geometry.channels]);
        if let Some(Pooling::Disjoint(pool)) = &self.pool {
            // With a pool both types are the same.
            let x: &[Y] = cast_slice(x);
            self.reduce(
                totals,
                sums,
                stagings,
                &|thread| pool.thread_strips(geometry, threads, thread),
                &|strips, sums| disjoint::reduce_gradients(self, pool, strips, x, dy, index, means, sums),
            );
            return totals;
        }
        for (constant, repeated) in
            constants.chunks_exact(padded).zip(repeated.chunks_exact_mut(geometry.groups * period)).take(3)
        {
            repeat(geometry, period, constant, repeated);
        }
        let (repeated, input, output) = (&*repeated, &self.input, &self.output);
        if let Some(Pooling::Overlapping(pool)) = &self.pool {
            let x: &[Y] = cast_slice(x);
            let each = geometry.groups * period;
            let c = [0, 1, 2].map(|i| &repeated[i * each..(i + 1) * each]);
            self.reduce(
                totals,
                sums,
                stagings,
                &|thread| geometry.thread_rows(threads, thread),
                &|rows, sums| overlapping::reduce_gradients(self, pool, rows, x, dy, index, c, sums),
            );
            return totals;
        }
        let steps = [input.step(period), output.step(period)];
        self.reduce(
            totals,
            sums,
            stagings,
            &|thread| geometry.thread_rows(threads, thread),
            &|rows, sums| {
                for (group, rows) in self.stretches(rows) {
                    let c = [0, 1, 2].map(|i| &repeated[(i * geometry.groups + group) * period..][..period]);
                    let dy = dy[output.row_start(rows.start)..].chunks(flush_length(steps[1]));
                    for (x, dy) in x[input.span(rows)].chunks(flush_length(steps[0])).zip(dy) {
                        sums.clear();
                        let (level, constants) = (self.level, c);
                        let (first, second) = (&mut *sums.first, &mut *sums.second);
                        let body = GradientSums { level, x, dy, constants, steps, first, second };
                        run_activated(self.activation, body);
                        sums.flush(group);
                    }
                }
            },
        );
        totals
    }

    /// `dx`: see [`stratus_engine::ops::BatchNormBackwardData`]. `index` is empty without pooling.
    #[allow(clippy::too_many_arguments)] // The operands of the step, each a slice of the arena.
    pub fn backward_data(
        &self,
        x: &[u8],
        dy: &[u8],
        parameters: Parameters<'_>,
        [dweight, dbias]: [&[f32]; 2],
        index: &[u8],
        dx: &mut [u8],
        tile: Tile,
        scratch: &mut [u8],
    ) {
        let [weight, bias, mean, inverse_deviation] = parameters;
        let geometry = &self.geometry;
        let padded = geometry.padded();
        let Scratch { constants, repeated, stagings, .. } = self.scratch(scratch);
        {
            let (scale, rest) = constants.split_at_mut(padded);
            let (shift, rest) = rest.split_at_mut(padded);
            let (slope, offset) = rest.split_at_mut(padded);
            let factor = |channel: usize| f64::from(inverse_deviation[channel]);
            self.scale_and_shift([weight, bias, mean], &factor, [scale, shift]);
            slope.fill(0.0);
            offset.fill(0.0);
            // See the header for slope and offset; M counts the whole batch.
            let count = (geometry.pixels() * tile.count) as f64;
            for channel in 0..geometry.channels {
                let inverse = factor(channel);
                let scale = f64::from(weight[channel]) * inverse;
                let slope_of_channel = -scale * inverse * f64::from(dweight[channel]) / count;
                slope[channel] = slope_of_channel as f32;
                offset[channel] = (-scale * f64::from(dbias[channel]) / count
                    - slope_of_channel * f64::from(mean[channel])) as f32;
            }
        }
        by_types!(self, X, Y => {
            let (x, dy, dx) = (cast_slice(x), cast_slice(dy), cast_slice_mut(dx));
            self.input_gradient::<X, Y>(x, dy, index, constants, repeated, stagings, dx);
        });
    }

    /// `dx` with constant statistics: see [`stratus_engine::ops::BatchNormInferenceBackward`]. `index` is
    /// empty without pooling.
    pub fn inference_backward(
        &self,
        x: &[u8],
        dy: &[u8],
        [weight, bias, running_mean, running_variance]: Parameters<'_>,
        index: &[u8],
        dx: &mut [u8],
        scratch: &mut [u8],
    ) {
        let padded = self.geometry.padded();
        let Scratch { constants, repeated, stagings, .. } = self.scratch(scratch);
        let (scale, rest) = constants.split_at_mut(padded);
        let (shift, rest) = rest.split_at_mut(padded);
        let factor = |channel: usize| self.running_factor(running_variance[channel]);
        self.scale_and_shift([weight, bias, running_mean], &factor, [scale, shift]);
        // No gradient through the statistics: slope and offset are 0.
        rest.fill(0.0);
        by_types!(self, X, Y => {
            let (x, dy, dx) = (cast_slice(x), cast_slice(dy), cast_slice_mut(dx));
            self.input_gradient::<X, Y>(x, dy, index, constants, repeated, stagings, dx);
        });
    }

    /// `dx = scale * g + slope * x + offset`; `constants` holds scale, shift, slope, offset.
    #[allow(clippy::too_many_arguments)] // As `backward_data`.
    fn input_gradient<X: Element, Y: LaneElement>(
        &self,
        x: &[X],
        dy: &[Y],
        index: &[u8],
        constants: &[f32],
        repeated: &mut [f32],
        stagings: &mut [u8],
        dx: &mut [Y],
    ) {
        let geometry = &self.geometry;
        let (padded, period, threads) = (geometry.padded(), self.period(), self.team.threads());
        if let Some(Pooling::Disjoint(pool)) = &self.pool {
            // As above.
            disjoint::backward::<Y>(self, pool, cast_slice(x), dy, index, constants, dx, stagings);
            return;
        }
        for (constant, repeated) in
            constants.chunks_exact(padded).zip(repeated.chunks_exact_mut(geometry.groups * period))
        {
            repeat(geometry, period, constant, repeated);
        }
        let (repeated, input, output) = (&*repeated, &self.input, &self.output);
        if let Some(Pooling::Overlapping(pool)) = &self.pool {
            let each = geometry.groups * period;
            let c = [0, 1, 2, 3].map(|i| &repeated[i * each..(i + 1) * each]);
            overlapping::backward::<Y>(self, pool, [cast_slice(x), dy], index, c, dx, stagings);
            return;
        }
        let steps = [input.step(period), output.step(period)];
        let mut parts = split_lengths(dx, input.shares(threads));
        self.team.run_parts(&mut parts[..threads], &|thread, part| {
            let first = input.share_start(threads, thread);
            for (group, rows) in self.stretches(geometry.thread_rows(threads, thread)) {
                let c = [0, 1, 2, 3].map(|i| &repeated[(i * geometry.groups + group) * period..][..period]);
                let dy = &dy[output.row_start(rows.start)..];
                let span = input.span(rows);
                let (x, to) = (&x[span.clone()], &mut part[span.start - first..span.end - first]);
                // In reverse: the caches hold the rows that the sums read last.
                let length = flush_length(steps[0]);
                for (number, (x, to)) in x.chunks(length).zip(to.chunks_mut(length)).enumerate().rev() {
                    let dy = &dy[number * flush_length(steps[1])..];
                    let (level, constants) = (self.level, c);
                    run_activated(self.activation, Gradient { level, x, dy, constants, steps, dx: to });
                }
            }
        });
    }
}
