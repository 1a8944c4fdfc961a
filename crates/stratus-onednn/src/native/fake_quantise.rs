//! Maps and weights in real numbers, rounded as in int8. Memory-bound.

use super::elementwise::{CpuContext, MIN_PARALLEL_ELEMENTS};
use super::quantised::ROUNDING;
use super::simd::{Element, multiversion};
use super::threads::{split, split_lengths};
use stratus_engine::ops::Uint8Scale;

/// Partial maxima, enough to fill the registers.
const MAXIMUM_LANES: usize = 32;

impl CpuContext {
    /// See [`stratus_engine::ops::FakeQuantise`].
    pub fn fake_quantise<E: Element>(&self, bytes: Uint8Scale, x: &[E], y: &mut [E]) {
        self.for_ranges(y, &|range, y| round_map(self.level, bytes, &x[range], y));
    }

    /// See [`stratus_engine::ops::FakeQuantiseBackward`].
    pub fn fake_quantise_backward<E: Element>(&self, bytes: Uint8Scale, x: &[E], dy: &[E], dx: &mut [E]) {
        self.for_ranges(dx, &|range, dx| mask_clipped(self.level, bytes, &x[range.clone()], &dy[range], dx));
    }

    /// See [`stratus_engine::ops::FakeQuantiseWeights`]. `limit` is the largest magnitude in int8.
    pub fn fake_quantise_weights<E: Element>(
        &self,
        channels: usize,
        limit: f32,
        weights: &[f32],
        rounded: &mut [E],
    ) {
        let threads = self.team.threads();
        let length = (weights.len() / channels.max(1)).max(1);
        let share = |thread: usize| split(channels, threads, thread);
        let serial = weights.len() < MIN_PARALLEL_ELEMENTS;
        let mut parts = split_lengths(rounded, (0..threads).map(|thread| share(thread).len() * length));
        let task = |thread: usize, rounded: &mut &mut [E]| {
            let weights = weights.get(share(thread).start * length..).unwrap_or_default();
            for (rounded, weights) in rounded.chunks_exact_mut(length).zip(weights.chunks_exact(length)) {
                round_channel(self.level, limit, weights, rounded);
            }
        };
        if serial {
            self.team.run_serially(&mut parts[..threads], &task);
        } else {
            self.team.run_parts(&mut parts[..threads], &task);
        }
    }
}

multiversion! {
    fn round_map / round_map_body [E: Element] [E] (bytes: Uint8Scale, x: &[E], y: &mut [E])
}

#[inline(always)]
fn round_map_body<E: Element>(bytes: Uint8Scale, x: &[E], y: &mut [E]) {
    // The same operations as in the conversion to bytes, so that both choose the same one.
    let factor = bytes.scale.recip();
    let low = -f32::from(bytes.zero_point);
    for (y, x) in y.iter_mut().zip(x) {
        // NaN passes through.
        let steps = (x.load() * factor).clamp(low, low + 255.0);
        *y = E::store(((steps + ROUNDING) - ROUNDING) * bytes.scale);
    }
}

multiversion! {
    fn mask_clipped / mask_clipped_body [E: Element] [E] (
        bytes: Uint8Scale,
        x: &[E],
        dy: &[E],
        dx: &mut [E],
    )
}

#[inline(always)]
fn mask_clipped_body<E: Element>(bytes: Uint8Scale, x: &[E], dy: &[E], dx: &mut [E]) {
    let factor = bytes.scale.recip();
    let low = -f32::from(bytes.zero_point);
    let high = low + 255.0;
    for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
        // One step beyond the range still shows that a number is out of it.
        let steps = (x.load() * factor).clamp(low - 1.0, high + 1.0);
        let rounded = (steps + ROUNDING) - ROUNDING;
        *dx = E::store(if (rounded < low) | (rounded > high) { 0.0 } else { dy.load() });
    }
}

multiversion! {
    fn round_channel / round_channel_body [E: Element] [E] (limit: f32, weights: &[f32], rounded: &mut [E])
}

#[inline(always)]
fn round_channel_body<E: Element>(limit: f32, weights: &[f32], rounded: &mut [E]) {
    let mut lanes = [0.0_f32; MAXIMUM_LANES];
    let mut blocks = weights.chunks_exact(MAXIMUM_LANES);
    let larger = |most: f32, weight: f32| if weight.abs() > most { weight.abs() } else { most };
    for block in &mut blocks {
        for (most, weight) in lanes.iter_mut().zip(block) {
            *most = larger(*most, *weight);
        }
    }
    let most = blocks.remainder().iter().chain(&lanes).fold(0.0, |most, weight| larger(most, *weight));
    let scale = most / limit;
    let scale = if scale.is_normal() { scale } else { 1.0 };
    for (rounded, weight) in rounded.iter_mut().zip(weights) {
        let steps = (weight / scale).clamp(-limit, limit);
        *rounded = E::store(((steps + ROUNDING) - ROUNDING) * scale);
    }
}
