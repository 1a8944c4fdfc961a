//! Group normalisation, of each sample's groups of channels.
//!
//! ```text
//! n = (x - mean) r,  r = 1 / sqrt(variance + ε)        y = w n + b
//! g = w dy           dx = (g - mean(g) - n mean(g n)) r
//! dw = Σ dy n        db = Σ dy
//! ```
//!
//! The loops are those of batch norm, over one sample at a time: two sums per channel, in `f32` over up to
//! [`MAX_ADDENDS`] numbers and then in `f64`, are combined to those of the groups, from which constants per
//! channel follow. The first pass takes sums about the sample's first pixel, so that a large mean costs no
//! precision. Threads divide samples; their gradients of parameters are added in the order of the threads.

use crate::native::activation::{ActivationLoop, Rectifier};
use crate::native::elementwise::CpuContext;
use crate::native::norm::loops::{Affine, Gradient, GradientSums, moments};
use crate::native::rows::MapGeometry;
use crate::native::simd::{Element, IsaLevel};
use crate::native::threads::{ThreadTeam, split, split_lengths, zip_parts};
use crate::ops::{CpuOp, NativeStep, StepOperands, native_step, typed};
use std::ops::Range;
use stratus_engine::ops::{GroupNormBackward, GroupNormForward, GroupNormGradients};

/// The number of pixels summed in `f32` before the sum is added in `f64`.
const MAX_ADDENDS: usize = 128;

/// The parameters of group norm kernels.
#[derive(Clone, Debug)]
struct GroupNorm {
    norm: stratus_graph::ops::GroupNorm,
    geometry: MapGeometry,
    level: IsaLevel,
    team: ThreadTeam,
}

/// The scratch of a thread.
struct Scratch<'a> {
    /// Two sums per channel of the current sample.
    sums: [&'a mut [f64]; 2],
    /// The gradients of weight and bias of the thread's samples.
    gradients: [&'a mut [f64]; 2],
    /// Constants per channel: up to four.
    constants: [&'a mut [f32]; 4],
    /// The same over a period of a channel block.
    repeated: [&'a mut [f32]; 4],
    /// Two sums over a period.
    partial: [&'a mut [f32]; 2],
}

/// A closure called for each sample: its position in the maps, the sample of the written map, scratch.
type SampleBody<'a, E> = dyn Fn(Range<usize>, &mut [E], &mut Scratch<'_>) + Sync + 'a;

/// The statistics of a group of a sample.
#[derive(Clone, Copy)]
struct Moments {
    mean: f64,
    /// 1 / √(variance + epsilon).
    inverse: f64,
}

impl GroupNorm {
    fn new(norm: stratus_graph::ops::GroupNorm, geometry: MapGeometry, cpu: &CpuContext) -> Self {
        Self { norm, geometry, level: cpu.level, team: cpu.team.clone() }
    }

    /// The elements of a thread's scratch, in `f64` and in `f32`.
    fn scratch_elements(&self) -> [usize; 2] {
        let (padded, period) = (self.geometry.padded(), self.geometry.period());
        [4 * padded, 4 * padded + 6 * period]
    }

    fn scratch_bytes(&self) -> usize {
        let [doubles, floats] = self.scratch_elements();
        self.team.threads() * (doubles * size_of::<f64>() + floats * size_of::<f32>())
    }

    fn images(&self) -> usize {
        self.geometry.planes / self.geometry.groups.max(1)
    }

    fn sample_elements(&self) -> usize {
        self.geometry.groups * self.geometry.plane_elements()
    }

    /// Calls `body` for each sample of `map`, on all threads.
    fn for_each_sample<E: Element>(&self, map: &mut [E], scratch: &mut [u8], body: &SampleBody<'_, E>) {
        let (threads, images, elements) = (self.team.threads(), self.images(), self.sample_elements());
        let [doubles, floats] = self.scratch_elements();
        let (scratch_doubles, scratch_floats) = scratch.split_at_mut(threads * doubles * size_of::<f64>());
        let scratch_doubles: &mut [f64] = bytemuck::cast_slice_mut(scratch_doubles);
        let scratch_floats: &mut [f32] =
            bytemuck::cast_slice_mut(&mut scratch_floats[..threads * floats * size_of::<f32>()]);
        let samples = |thread| split(images, threads, thread);
        // Sums of parameters' gradients have no map to write.
        let each = if map.is_empty() { 0 } else { elements };
        let maps = split_lengths(map, (0..threads).map(|thread| samples(thread).len() * each));
        let mut parts = zip_parts(
            maps,
            zip_parts(
                split_lengths(scratch_doubles, (0..threads).map(|_| doubles)),
                split_lengths(scratch_floats, (0..threads).map(|_| floats)),
            ),
        );
        self.team.run_parts(&mut parts[..threads], &|thread, (map, (doubles, floats))| {
            let mut scratch = self.scratch(doubles, floats);
            scratch.gradients.iter_mut().for_each(|sums| sums.fill(0.0));
            for (number, sample) in samples(thread).enumerate() {
                let part = &mut map[number * each..][..each];
                body(sample * elements..(sample + 1) * elements, part, &mut scratch);
            }
        });
    }

    fn scratch<'a>(&self, doubles: &'a mut [f64], floats: &'a mut [f32]) -> Scratch<'a> {
        let (padded, period) = (self.geometry.padded(), self.geometry.period());
        let (sums, gradients) = doubles.split_at_mut(2 * padded);
        let (constants, floats) = floats.split_at_mut(4 * padded);
        let (repeated, partial) = floats.split_at_mut(4 * period);
        Scratch {
            sums: pieces(sums, padded),
            gradients: pieces(gradients, padded),
            constants: pieces(constants, padded),
            repeated: pieces(repeated, period),
            partial: pieces(partial, period),
        }
    }

    /// The channels of a channel block.
    fn block(&self, number: usize) -> Range<usize> {
        let width = self.geometry.pixel_channels;
        number * width..(number + 1) * width
    }

    /// Adds two sums per channel of a sample. `add` adds the elements of a range of a channel block to sums
    /// over a period, with the first `count` constants repeated over it.
    fn sum<const COUNT: usize>(
        &self,
        scratch: &mut Scratch<'_>,
        add: impl Fn(Range<usize>, [&[f32]; COUNT], [&mut [f32]; 2]),
    ) {
        let Scratch { sums, constants, repeated, partial, .. } = scratch;
        let (plane, period) = (self.geometry.plane_elements(), self.geometry.period());
        sums.iter_mut().for_each(|sums| sums.fill(0.0));
        for block in 0..self.geometry.groups {
            repeat(constants, self.block(block), repeated, COUNT);
            for first in (0..plane).step_by(period * MAX_ADDENDS) {
                let range = first..plane.min(first + period * MAX_ADDENDS);
                let [a, b] = partial;
                a.fill(0.0);
                b.fill(0.0);
                let constants: [&[f32]; COUNT] = std::array::from_fn(|number| &*repeated[number]);
                add(block * plane + range.start..block * plane + range.end, constants, [a, b]);
                for (sums, partial) in sums.iter_mut().zip([a, b]) {
                    let sums = &mut sums[self.block(block)];
                    for part in partial.chunks_exact(sums.len()) {
                        sums.iter_mut().zip(part).for_each(|(sum, part)| *sum += f64::from(*part));
                    }
                }
            }
        }
    }

    /// The channels of a group.
    fn channels(&self, group: usize) -> Range<usize> {
        let channels = self.norm.group_channels();
        group * channels..(group + 1) * channels
    }

    /// The pixels of a sample.
    fn pixels(&self) -> f64 {
        (self.geometry.height * self.geometry.row_pixels) as f64
    }

    /// Sums the sample `x`, and calls `set` with each group's channels and statistics.
    fn for_each_group<E: Element>(
        &self,
        x: &[E],
        scratch: &mut Scratch<'_>,
        mut set: impl FnMut(Range<usize>, Moments, &mut Scratch<'_>),
    ) {
        let (plane, period) = (self.geometry.plane_elements(), self.geometry.period());
        for block in 0..self.geometry.groups {
            let pivots = &mut scratch.constants[0][self.block(block)];
            pivots.iter_mut().zip(&x[block * plane..]).for_each(|(pivot, x)| *pivot = x.load());
        }
        self.sum(scratch, |range, [pivots], [first, second]| {
            moments(self.level, &x[range], period, pivots, first, second);
        });
        let pixels = self.pixels();
        for group in 0..self.norm.groups {
            let channels = self.channels(group);
            let [first, second] = &scratch.sums;
            let pivots = &scratch.constants[0];
            let channel_mean = |c: usize| f64::from(pivots[c]) + first[c] / pixels;
            let count = channels.len() as f64;
            let mean = channels.clone().map(channel_mean).sum::<f64>() / count;
            let squares = channels.clone().map(|c| {
                second[c] - first[c] * first[c] / pixels + pixels * (channel_mean(c) - mean).powi(2)
            });
            let variance = squares.sum::<f64>() / (pixels * count);
            // Rounding may make it negative. NaN propagates, unlike through `max`.
            let variance = if variance < 0.0 { 0.0 } else { variance };
            let inverse = (variance + f64::from(self.norm.epsilon)).sqrt().recip();
            set(channels, Moments { mean, inverse }, scratch);
        }
    }

    /// Sums `dy` and `dy (x - mean)` of a sample. The means are the first constants.
    fn gradient_sums<E: Element>(&self, x: &[E], dy: &[E], scratch: &mut Scratch<'_>) {
        let steps = [self.geometry.period(); 2];
        self.sum(scratch, |range, [mean], [first, second]| {
            let (x, dy) = (&x[range.clone()], &dy[range]);
            // Without an activation only the mean is used.
            let (level, constants) = (self.level, [mean; 3]);
            GradientSums { level, x, dy, constants, steps, first, second }.run::<Rectifier>(Rectifier::NONE);
        });
    }

    /// Computes `y` from `x`, with a factor and a term per channel.
    fn forward<E: Element>(&self, x: &[E], parameters: Option<[&[f32]; 2]>, y: &mut [E], scratch: &mut [u8]) {
        let (plane, period) = (self.geometry.plane_elements(), self.geometry.period());
        self.for_each_sample(y, scratch, &|sample, y, scratch| {
            let x = &x[sample];
            self.for_each_group(x, scratch, |channels, Moments { mean, inverse }, scratch| {
                for c in channels {
                    let [weight, bias] =
                        parameters.map_or([1.0, 0.0], |all| all.map(|all| f64::from(all[c])));
                    let scale = weight * inverse;
                    scratch.constants[1][c] = scale as f32;
                    scratch.constants[2][c] = (bias - mean * scale) as f32;
                }
            });
            let Scratch { constants: [_, scale, shift, _], repeated, .. } = scratch;
            for constants in [&mut **scale, &mut **shift] {
                constants[self.geometry.channels..].fill(0.0);
            }
            for block in 0..self.geometry.groups {
                let [a, b, ..] = repeated;
                spread(&scale[self.block(block)], a);
                spread(&shift[self.block(block)], b);
                let range = block * plane..(block + 1) * plane;
                let (level, x, y) = (self.level, &x[range.clone()], &mut y[range]);
                let body = Affine { level, x, constants: [a, b], steps: [period; 2], y };
                body.run::<Rectifier>(Rectifier::NONE);
            }
        });
    }

    /// Sets the first constants to the means of each channel's group, and the second to the inverse
    /// deviations.
    fn set_moments<E: Element>(&self, x: &[E], scratch: &mut Scratch<'_>) {
        self.for_each_group(x, scratch, |channels, Moments { mean, inverse }, scratch| {
            // The pivots of the group have been used.
            scratch.constants[0][channels.clone()].fill(mean as f32);
            scratch.constants[1][channels].fill(inverse as f32);
        });
    }

    /// Computes `dx` from `x` and `dy`.
    fn backward<E: Element>(
        &self,
        [x, dy]: [&[E]; 2],
        weight: Option<&[f32]>,
        dx: &mut [E],
        scratch: &mut [u8],
    ) {
        let (plane, period) = (self.geometry.plane_elements(), self.geometry.period());
        self.for_each_sample(dx, scratch, &|sample, dx, scratch| {
            let (x, dy) = (&x[sample.clone()], &dy[sample]);
            self.set_moments(x, scratch);
            self.gradient_sums(x, dy, scratch);
            let weight = |c: usize| weight.map_or(1.0, |weight| f64::from(weight[c]));
            let Scratch { sums: [plain, along], constants, repeated, .. } = scratch;
            let [means, scales, slopes, offsets] = constants;
            for group in 0..self.norm.groups {
                let channels = self.channels(group);
                let count = self.pixels() * channels.len() as f64;
                let mean_of =
                    |sums: &[f64]| channels.clone().map(|c| weight(c) * sums[c]).sum::<f64>() / count;
                let (mean, inverse) = (f64::from(means[channels.start]), f64::from(scales[channels.start]));
                let slope = -mean_of(along) * inverse.powi(3);
                let offset = -mean_of(plain) * inverse - slope * mean;
                for c in channels {
                    scales[c] = (weight(c) * inverse) as f32;
                    (slopes[c], offsets[c]) = (slope as f32, offset as f32);
                }
            }
            for constants in [&mut **scales, &mut **slopes, &mut **offsets] {
                constants[self.geometry.channels..].fill(0.0);
            }
            for block in 0..self.geometry.groups {
                let [a, b, c, _] = repeated;
                for (constants, to) in [(&*scales, &mut *a), (slopes, b), (offsets, c)] {
                    spread(&constants[self.block(block)], to);
                }
                let range = block * plane..(block + 1) * plane;
                let (x, dy) = (&x[range.clone()], &dy[range.clone()]);
                // Without an activation the shift, its second constant, is not used.
                let (level, dx) = (self.level, &mut dx[range]);
                let body = Gradient { level, x, dy, constants: [a, a, b, c], steps: [period; 2], dx };
                body.run::<Rectifier>(Rectifier::NONE);
            }
        });
    }

    /// Computes `dweight` and `dbias` from `x` and `dy`.
    fn gradients<E: Element>(
        &self,
        [x, dy]: [&[E]; 2],
        [dweight, dbias]: [&mut [f32]; 2],
        scratch: &mut [u8],
    ) {
        self.for_each_sample(&mut [], scratch, &|sample, _: &mut [E], scratch| {
            let (x, dy) = (&x[sample.clone()], &dy[sample]);
            self.set_moments(x, scratch);
            self.gradient_sums(x, dy, scratch);
            let Scratch { sums: [plain, along], gradients: [products, sums], constants, .. } = scratch;
            for c in 0..self.geometry.channels {
                products[c] += along[c] * f64::from(constants[1][c]);
                sums[c] += plain[c];
            }
        });
        let ([doubles, _], padded) = (self.scratch_elements(), self.geometry.padded());
        let totals = &scratch[..self.team.threads() * doubles * size_of::<f64>()];
        let totals: &[f64] = bytemuck::cast_slice(totals);
        for (channel, (dweight, dbias)) in dweight.iter_mut().zip(dbias).enumerate() {
            let sum = |at: usize| totals.chunks_exact(doubles).map(|part| part[at]).sum::<f64>() as f32;
            (*dweight, *dbias) = (sum(2 * padded + channel), sum(3 * padded + channel));
        }
    }
}

/// Divides a slice into pieces of equal length.
fn pieces<T, const COUNT: usize>(mut slice: &mut [T], length: usize) -> [&mut [T]; COUNT] {
    std::array::from_fn(|_| {
        let (piece, rest) = std::mem::take(&mut slice).split_at_mut(length);
        slice = rest;
        piece
    })
}

/// Repeats the constants of a channel block over a period.
fn spread(constants: &[f32], to: &mut [f32]) {
    to.chunks_exact_mut(constants.len().max(1)).for_each(|to| to.copy_from_slice(constants));
}

/// Repeats the first `count` kinds of constants of a channel block.
fn repeat(constants: &[&mut [f32]; 4], block: Range<usize>, to: &mut [&mut [f32]; 4], count: usize) {
    for (constants, to) in constants.iter().zip(to).take(count) {
        spread(&constants[block.clone()], to);
    }
}

impl CpuOp for GroupNormForward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let affine = self.norm.affine;
        let y = if affine { 3 } else { 1 };
        operands.expect_same_layout(&[0, y])?;
        let norm = GroupNorm::new(self.norm, operands.geometry(0)?, cpu);
        Ok(typed!(operands.one_type(&[0, y])?, E => native_step(norm.scratch_bytes(), move |o| {
            let parameters = affine.then(|| [&*o.elements(1), &*o.elements(2)]);
            norm.forward::<E>(o.elements(0), parameters, o.elements(y), o.take(y + 1));
        })))
    }
}

impl CpuOp for GroupNormBackward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let affine = self.norm.affine;
        let dx = if affine { 3 } else { 2 };
        operands.expect_same_layout(&[0, 1, dx])?;
        let norm = GroupNorm::new(self.norm, operands.geometry(0)?, cpu);
        Ok(typed!(operands.one_type(&[0, 1, dx])?, E => native_step(norm.scratch_bytes(), move |o| {
            let weight = affine.then(|| &*o.elements(2));
            norm.backward::<E>([o.elements(0), o.elements(1)], weight, o.elements(dx), o.take(dx + 1));
        })))
    }
}

impl CpuOp for GroupNormGradients {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 1])?;
        let norm = GroupNorm::new(self.norm, operands.geometry(0)?, cpu);
        Ok(typed!(operands.one_type(&[0, 1])?, E => native_step(norm.scratch_bytes(), move |o| {
            let gradients = [o.elements(2), o.elements(3)];
            norm.gradients::<E>([o.elements(0), o.elements(1)], gradients, o.take(4));
        })))
    }
}
