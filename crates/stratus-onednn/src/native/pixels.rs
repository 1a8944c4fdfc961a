//! Normalises pixels from bytes: `y = scale · byte + offset` per channel.

use super::elementwise::CpuContext;
use super::simd::{Element, multiversion};
use stratus_engine::ops::MAX_IMAGE_CHANNELS;

/// The normalisation of each channel, and the layout of the images.
#[derive(Clone, Copy, Debug)]
pub struct ScaleShift {
    /// `[scale, offset]` of each channel.
    pub by_channel: [[f32; 2]; MAX_IMAGE_CHANNELS],
    /// The number of channels, at least 1.
    pub channels: usize,
    /// The number of consecutive pixels of one channel, at least 1: H·W for planar images, 1 for `[N, H, W,
    /// C]`.
    pub run: usize,
}

impl CpuContext {
    /// See [`stratus_engine::ops::NormalisePixels`]; `images` and `y` have the same layout, without padding.
    pub fn normalise_pixels<E: Element>(&self, scales: ScaleShift, images: &[u8], y: &mut [E]) {
        self.for_ranges(y, &|range, y| {
            let first = range.start;
            normalise(self.level, scales, first, &images[range], y);
        });
    }
}

multiversion! {
    fn normalise / normalise_body [E: Element] [E] (
        scales: ScaleShift,
        first: usize,
        images: &[u8],
        y: &mut [E],
    )
}

/// `first`: the position of `images[0]` in the batch.
#[inline(always)]
fn normalise_body<E: Element>(scales: ScaleShift, first: usize, images: &[u8], y: &mut [E]) {
    let ScaleShift { by_channel, channels, run } = scales;
    let (mut channel, mut left) = (first / run % channels, run - first % run);
    let (mut images, mut y) = (images, y);
    while !y.is_empty() {
        let count = left.min(y.len());
        let [scale, offset] = by_channel[channel % MAX_IMAGE_CHANNELS];
        let (pixels, others) = images.split_at(count);
        let (numbers, rest) = y.split_at_mut(count);
        for (number, &pixel) in numbers.iter_mut().zip(pixels) {
            // Two roundings, as defined, not a fused multiply-add.
            *number = E::store(f32::from(pixel) * scale + offset);
        }
        (images, y, left) = (others, rest, run);
        channel = if channel + 1 == channels { 0 } else { channel + 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::simd::{Bf16, IsaLevel};
    use stratus_engine::ops::NormalisePixels;

    #[test]
    fn pixels_are_scaled_by_their_channel_for_every_thread_range() {
        let kernel =
            NormalisePixels { scale_shift: [[0.0171, -2.118], [0.0123, -1.9], [0.02, 0.3], [0.004, -0.1]] };
        let images: Vec<u8> = (0..2000).map(|i| (i * 151 % 256) as u8).collect();
        for level in IsaLevel::all() {
            for (channels, run) in [(1, 1), (3, 1), (4, 1), (1, 50), (2, 35), (3, 7)] {
                let scales = ScaleShift { by_channel: kernel.scale_shift, channels, run };
                for first in [0, 1, 6, 33, 104] {
                    let images = &images[first..];
                    let (mut y, mut half) = (vec![f32::NAN; images.len()], vec![Bf16(0xffff); images.len()]);
                    normalise(level, scales, first, images, &mut y);
                    normalise(level, scales, first, images, &mut half);
                    for (at, &pixel) in images.iter().enumerate() {
                        let expected = kernel.normalise((first + at) / run % channels, pixel);
                        assert_eq!(y[at].to_bits(), expected.to_bits(), "{channels} {run} {first} {at}");
                        assert_eq!(half[at], Bf16::store(expected));
                    }
                }
            }
        }
    }
}
