//! Layer normalisation over the channels of each pixel.
//!
//! ```text
//! n = (x - mean) r,  r = 1 / sqrt(variance + ε)        y = w n + b
//! g = w dy           dx = (g - mean(g) - n mean(g n)) r
//! dw = Σ dy n        db = Σ dy
//! ```
//!
//! One pass: a pixel's channels are gathered into scratch, which the L1 cache holds, and read there
//! repeatedly. The variance is that of the differences to the mean. Sums over channels have sixteen partial
//! sums, of every sixteenth channel; those over pixels run in `f32` over up to [`MAX_ADDENDS`] and then in
//! `f64`, and those of the threads are added in the order of the threads.

use super::pixels::PixelView;
use crate::native::elementwise::CpuContext;
use crate::native::rows::MapGeometry;
use crate::native::simd::{Element, IsaLevel, multiversion};
use crate::native::threads::{split_lengths, zip_parts};

/// Partial sums over channels: the lanes of an AVX-512 register.
const LANES: usize = 16;

/// The number of pixels summed in `f32` before the sum is added in `f64`.
const MAX_ADDENDS: usize = 128;

/// The parameters of layer norm kernels.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    pixels: PixelView,
    epsilon: f32,
    level: IsaLevel,
}

/// The sums of a thread: over some pixels and over all of its pixels, the products first.
type Sums<'a> = (&'a mut [f32], &'a mut [f64]);

impl LayerNorm {
    /// The normalisation of maps with this geometry.
    #[must_use]
    pub fn new(epsilon: f32, geometry: MapGeometry, cpu: &CpuContext) -> Self {
        let pixels = PixelView { geometry, team: cpu.team.clone() };
        Self { pixels, epsilon, level: cpu.level }
    }

    fn channels(&self) -> usize {
        self.pixels.geometry.channels
    }

    /// The scratch bytes of [`forward`](Self::forward) and [`backward`](Self::backward): two pixels per
    /// thread.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.pixels.team.threads() * 2 * self.channels() * size_of::<f32>()
    }

    /// The scratch bytes of [`gradients`](Self::gradients): two pixels and two sums over pixels, in both
    /// types, per thread.
    #[must_use]
    pub fn gradients_scratch_bytes(&self) -> usize {
        self.pixels.team.threads() * self.channels() * (4 * size_of::<f32>() + 2 * size_of::<f64>())
    }

    /// Computes `y` from `x`.
    pub fn forward<E: Element>(
        &self,
        x: &[E],
        [weight, bias]: [&[f32]; 2],
        y: &mut [E],
        scratch: &mut [f32],
    ) {
        self.pixels.for_each_share(y, scratch, 2 * self.channels(), &|first, pixels, y, scratch| {
            normalise(self.level, self, pixels, &x[first..first + y.len()], [weight, bias], y, scratch);
        });
    }

    /// Computes `dx` from `x` and `dy`.
    pub fn backward<E: Element>(&self, x: &[E], dy: &[E], weight: &[f32], dx: &mut [E], scratch: &mut [f32]) {
        self.pixels.for_each_share(dx, scratch, 2 * self.channels(), &|first, pixels, dx, scratch| {
            let maps = [x, dy].map(|map| &map[first..first + dx.len()]);
            gradient(self.level, self, pixels, maps, weight, dx, scratch);
        });
    }

    /// Computes `dweight` and `dbias` from `x` and `dy`.
    pub fn gradients<E: Element>(
        &self,
        x: &[E],
        dy: &[E],
        [dweight, dbias]: [&mut [f32]; 2],
        scratch: &mut [u8],
    ) {
        let (threads, channels) = (self.pixels.team.threads(), self.channels());
        let width = self.pixels.geometry.padded();
        let (totals, floats) = scratch.split_at_mut(threads * channels * 2 * size_of::<f64>());
        let totals: &mut [f64] = bytemuck::cast_slice_mut(totals);
        let floats: &mut [f32] =
            bytemuck::cast_slice_mut(&mut floats[..threads * channels * 4 * size_of::<f32>()]);
        let mut parts = zip_parts(
            split_lengths(totals, (0..threads).map(|_| 2 * channels)),
            split_lengths(floats, (0..threads).map(|_| 4 * channels)),
        );
        self.pixels.team.run_parts(&mut parts[..threads], &|thread, (totals, floats)| {
            totals.fill(0.0);
            let (pixel, sums) = floats.split_at_mut(2 * channels);
            for (first, pixels) in self.pixels.shares(thread) {
                let maps = [x, dy].map(|map| &map[first..first + pixels * width]);
                add_pixels(self.level, self, pixels, maps, pixel, (sums, totals));
            }
        });
        for (channel, (dweight, dbias)) in dweight.iter_mut().zip(dbias).enumerate().take(channels) {
            let sum = |at: usize| totals.chunks_exact(2 * channels).map(|part| part[at]).sum::<f64>() as f32;
            (*dweight, *dbias) = (sum(channel), sum(channels + channel));
        }
    }

    /// The mean of a pixel's channels, and 1 / √(variance + epsilon).
    #[inline(always)]
    fn moments(&self, x: &[f32]) -> [f32; 2] {
        let count = x.len() as f32;
        let mean = sum(x, x, |x, _| x) / count;
        let variance = sum(x, x, |x, _| (x - mean) * (x - mean)) / count;
        [mean, 1.0 / (variance + self.epsilon).sqrt()]
    }
}

/// The sum of `term(a, b)` over pairs, in [`LANES`] partial sums, which are then added in halves.
#[inline(always)]
fn sum(a: &[f32], b: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (wholes, rest) = (a.chunks_exact(LANES).zip(b.chunks_exact(LANES)), a.len() / LANES * LANES);
    for (a, b) in wholes {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += term(*a, *b);
        }
    }
    for ((lane, a), b) in lanes.iter_mut().zip(&a[rest..]).zip(&b[rest..]) {
        *lane += term(*a, *b);
    }
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
    }
    lanes[0]
}

multiversion! {
    fn normalise / normalise_body [E: Element] [E] (
        norm: &LayerNorm, pixels: usize, x: &[E], parameters: [&[f32]; 2], y: &mut [E], scratch: &mut [f32],
    )
}

#[inline(always)]
fn normalise_body<E: Element>(
    norm: &LayerNorm,
    pixels: usize,
    x: &[E],
    [weight, bias]: [&[f32]; 2],
    y: &mut [E],
    scratch: &mut [f32],
) {
    let channels = norm.channels();
    let (values, _) = scratch.split_at_mut(channels);
    let (weight, bias) = (&weight[..channels], &bias[..channels]);
    for pixel in 0..pixels {
        norm.pixels.gather(pixels, pixel, x, values);
        let [mean, scale] = norm.moments(values);
        for ((value, weight), bias) in values.iter_mut().zip(weight).zip(bias) {
            *value = weight * ((*value - mean) * scale) + bias;
        }
        norm.pixels.scatter(pixels, pixel, y, |c| values[c]);
    }
}

multiversion! {
    fn gradient / gradient_body [E: Element] [E] (
        norm: &LayerNorm, pixels: usize, maps: [&[E]; 2], weight: &[f32], dx: &mut [E], scratch: &mut [f32],
    )
}

#[inline(always)]
fn gradient_body<E: Element>(
    norm: &LayerNorm,
    pixels: usize,
    [x, dy]: [&[E]; 2],
    weight: &[f32],
    dx: &mut [E],
    scratch: &mut [f32],
) {
    let channels = norm.channels();
    let (values, gradients) = scratch.split_at_mut(channels);
    let weight = &weight[..channels];
    for pixel in 0..pixels {
        norm.pixels.gather(pixels, pixel, x, values);
        norm.pixels.gather(pixels, pixel, dy, gradients);
        let [mean, scale] = norm.moments(values);
        for ((value, gradient), weight) in values.iter_mut().zip(gradients.iter_mut()).zip(weight) {
            (*value, *gradient) = ((*value - mean) * scale, *gradient * weight);
        }
        let count = channels as f32;
        let plain = sum(gradients, gradients, |g, _| g) / count;
        let along = sum(gradients, values, |g, n| g * n) / count;
        for (value, gradient) in values.iter_mut().zip(&*gradients) {
            *value = (gradient - plain - *value * along) * scale;
        }
        norm.pixels.scatter(pixels, pixel, dx, |c| values[c]);
    }
}

multiversion! {
    fn add_pixels / add_pixels_body [E: Element] [E] (
        norm: &LayerNorm, pixels: usize, maps: [&[E]; 2], pixel: &mut [f32], sums: Sums<'_>,
    )
}

#[inline(always)]
fn add_pixels_body<E: Element>(
    norm: &LayerNorm,
    pixels: usize,
    [x, dy]: [&[E]; 2],
    pixel: &mut [f32],
    (sums, totals): Sums<'_>,
) {
    let (values, gradients) = pixel.split_at_mut(norm.channels());
    for first in (0..pixels).step_by(MAX_ADDENDS) {
        sums.fill(0.0);
        let (products, plain) = sums.split_at_mut(norm.channels());
        for pixel in first..pixels.min(first + MAX_ADDENDS) {
            norm.pixels.gather(pixels, pixel, x, values);
            norm.pixels.gather(pixels, pixel, dy, gradients);
            let [mean, scale] = norm.moments(values);
            let into = products.iter_mut().zip(plain.iter_mut());
            for (((product, plain), value), gradient) in into.zip(&*values).zip(&*gradients) {
                *product += gradient * ((value - mean) * scale);
                *plain += gradient;
            }
        }
        totals.iter_mut().zip(&*sums).for_each(|(total, sum)| *total += f64::from(*sum));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::threads::ThreadTeam;

    const CHANNELS: usize = 37;

    /// Forward, backward and both gradients of two images, channels last or blocked, at a level.
    fn all(level: IsaLevel, [groups, width]: [usize; 2], team: ThreadTeam) -> [Vec<f32>; 4] {
        let geometry = MapGeometry {
            planes: 2 * groups,
            height: 3,
            row_pixels: 50,
            pixel_channels: width,
            groups,
            channels: CHANNELS,
        };
        let norm = LayerNorm::new(1e-5, geometry, &CpuContext { team, level });
        let count = geometry.planes * geometry.plane_elements();
        let number = |seed: usize| move |i: usize| ((i * 37 + seed) % 101) as f32 / 50.0 - 1.0;
        let map = |seed| (0..count).map(number(seed)).collect::<Vec<f32>>();
        let (x, dy) = (map(3), map(55));
        let channel_values = |seed| (0..CHANNELS).map(number(seed)).collect::<Vec<f32>>();
        let (weight, bias) = (channel_values(7), channel_values(11));
        // Scratch starts as NaN: nothing may depend on its contents.
        let mut scratch = vec![f32::NAN; norm.scratch_bytes() / size_of::<f32>()];
        let (mut y, mut dx) = (vec![f32::NAN; count], vec![f32::NAN; count]);
        norm.forward(&x, [&weight, &bias], &mut y, &mut scratch);
        scratch.fill(f32::NAN);
        norm.backward(&x, &dy, &weight, &mut dx, &mut scratch);
        let mut scratch = vec![f64::NAN; norm.gradients_scratch_bytes().div_ceil(size_of::<f64>())];
        let [mut dweight, mut dbias] = [vec![f32::NAN; CHANNELS], vec![f32::NAN; CHANNELS]];
        norm.gradients(&x, &dy, [&mut dweight, &mut dbias], bytemuck::cast_slice_mut(&mut scratch));
        [y, dx, dweight, dbias]
    }

    #[test]
    fn every_level_gives_the_same_bits() {
        for layout in [[1, CHANNELS], [3, 16]] {
            let baseline = all(IsaLevel::detect([false, false]), layout, ThreadTeam::single());
            assert!(baseline.iter().flatten().all(|value| value.is_finite()));
            for level in IsaLevel::all() {
                let found = all(level, layout, ThreadTeam::single());
                assert_eq!(found, baseline, "{layout:?} {}", level.name());
                // The results of a pixel do not depend on the threads; sums differ by rounding.
                let [y, dx, dweight, _] = all(level, layout, ThreadTeam::emulating(3));
                assert_eq!([y, dx], baseline[..2]);
                let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * a.abs().max(1.0);
                assert!(dweight.iter().zip(&baseline[2]).all(close), "{layout:?}");
            }
        }
    }

    /// Before weight and bias.
    #[test]
    fn pixels_have_mean_zero_and_variance_one() {
        let [y, ..] = all(IsaLevel::detect([true, true]), [1, CHANNELS], ThreadTeam::single());
        let number = |seed: usize| move |i: usize| ((i * 37 + seed) % 101) as f32 / 50.0 - 1.0;
        for pixel in y.chunks_exact(CHANNELS) {
            let plain: Vec<f32> = pixel
                .iter()
                .enumerate()
                .map(|(c, y)| (y - number(11)(c)) / number(7)(c))
                .filter(|value| value.is_finite())
                .collect();
            let mean = plain.iter().sum::<f32>() / plain.len() as f32;
            let variance = plain.iter().map(|value| value * value).sum::<f32>() / plain.len() as f32;
            assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.1, "{mean} {variance}");
        }
    }
}
