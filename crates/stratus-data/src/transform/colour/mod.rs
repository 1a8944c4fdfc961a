//! Brightness, contrast, saturation and hue, changed at random: torchvision's `ColorJitter` on 8-bit pixels.
//!
//! Definitions are torchvision's; results are truncated to whole levels. Every product and sum is rounded
//! separately in `f32`, and hues are integers, so the bits are the same on every machine. The four changes
//! are applied in a random order per image.

use serde::{Deserialize, Serialize};
use stratus_random::{Purpose, Stream};

use crate::transform::pixels::PixelOrder;

/// The maximum difference of a factor from 1.
const MAX_FACTOR_CHANGE: f64 = 16.0;
/// Fraction bits of a hue: the circle has 2^16 units.
const HUE_BITS: u32 = 16;
const HUE_ONE: i64 = 1 << HUE_BITS;

/// Random colour changes in every epoch; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ColourJitter {
    /// Brightness: multiply pixels by a factor, uniform in [max(0, 1 - x), 1 + x].
    pub brightness: f64,
    /// Contrast: scale the difference to the mean grey of the image by such a factor.
    pub contrast: f64,
    /// Saturation: scale the difference to the grey of the pixel by such a factor. Only for RGB images.
    pub saturation: f64,
    /// Hue: rotate by a fraction of the circle uniform in [-x, x], at most one half. Only for RGB images.
    pub hue: f64,
}

impl ColourJitter {
    /// Returns whether colours stay as they are.
    #[must_use]
    pub fn is_off(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether every value is in its range.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let Self { brightness, contrast, saturation, hue } = *self;
        [brightness, contrast, saturation].iter().all(|change| (0.0..=MAX_FACTOR_CHANGE).contains(change))
            && (0.0..=0.5).contains(&hue)
    }

    /// Draws the operations for `sample` in `epoch`, in order; `None` if all are off.
    pub(crate) fn changes(&self, seed: u64, epoch: u32, sample: u32) -> Option<[ColourOp; 4]> {
        if self.is_off() {
            return None;
        }
        let mut stream = Stream::new(seed, Purpose::Colour, u64::from(sample), epoch);
        let mut between = |low: f64, high: f64| low + (high - low) * f64::from(stream.uniform());
        let mut factor = |change: f64| between((1.0 - change).max(0.0), 1.0 + change);
        let (brightness, contrast) = (factor(self.brightness), factor(self.contrast));
        let saturation = factor(self.saturation);
        let hue = between(-self.hue, self.hue);
        let mut changes = [
            ColourOp::Brightness(brightness),
            ColourOp::Contrast(contrast),
            ColourOp::Saturation(saturation),
            ColourOp::Hue(hue),
        ];
        stream.shuffle(&mut changes);
        Some(changes)
    }
}

/// An operation, with its factor or fraction of the circle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ColourOp {
    Brightness(f64),
    Contrast(f64),
    Saturation(f64),
    Hue(f64),
}

/// The 8-bit pixels of an image.
pub(crate) struct PixelsMut<'a> {
    pub pixels: &'a mut [u8],
    pub order: PixelOrder,
    /// Channels, height, width.
    pub shape: [usize; 3],
    /// If some pixels lie outside the image: the range of columns inside, for each row.
    pub valid_columns: Option<&'a [[usize; 2]]>,
}

impl PixelsMut<'_> {
    pub(crate) fn apply(&mut self, changes: &[ColourOp]) {
        for change in changes {
            match *change {
                ColourOp::Brightness(factor) | ColourOp::Contrast(factor) | ColourOp::Saturation(factor)
                    if factor == 1.0 => {}
                ColourOp::Brightness(factor) => self.look_up(|level| blend(level, 0.0, factor)),
                ColourOp::Contrast(factor) => {
                    let mean = self.mean_grey();
                    self.look_up(|level| blend(level, mean, factor));
                }
                ColourOp::Saturation(factor) => self.each_colour(|colour| {
                    let grey = f32::from(grey(colour));
                    colour.map(|level| blend(level, grey, factor))
                }),
                ColourOp::Hue(share) => {
                    let share = (share * HUE_ONE as f64).round() as i64;
                    if share != 0 {
                        self.each_colour(|colour| rotate_hue(colour, share));
                    }
                }
            }
        }
    }

    /// Applies a function to every level of every channel.
    fn look_up(&mut self, change: impl Fn(u8) -> u8) {
        let table: [u8; 256] = std::array::from_fn(|level| change(level as u8));
        self.pixels.iter_mut().for_each(|level| *level = table[usize::from(*level)]);
    }

    /// Applies a function to every RGB pixel; images with other channels have no colour.
    fn each_colour(&mut self, change: impl Fn([u8; 3]) -> [u8; 3]) {
        let [channels, height, width] = self.shape;
        if channels != 3 {
            return;
        }
        match self.order {
            PixelOrder::Interleaved => {
                self.pixels.as_chunks_mut::<3>().0.iter_mut().for_each(|colour| *colour = change(*colour));
            }
            PixelOrder::Planes => {
                let (red, others) = self.pixels.split_at_mut(height * width);
                let (green, blue) = others.split_at_mut(height * width);
                for ((red, green), blue) in red.iter_mut().zip(green).zip(blue) {
                    [*red, *green, *blue] = change([*red, *green, *blue]);
                }
            }
        }
    }

    /// The mean grey of the pixels inside the image.
    fn mean_grey(&self) -> f32 {
        let [channels, height, width] = self.shape;
        let plane = height * width;
        let level = |at: usize, channel: usize| match self.order {
            PixelOrder::Planes => self.pixels[channel * plane + at],
            PixelOrder::Interleaved => self.pixels[at * channels + channel],
        };
        let (mut sum, mut count) = (0u64, 0u64);
        for row in 0..height {
            let [first, end] = self.valid_columns.map_or([0, width], |columns| columns[row]);
            for at in row * width + first..row * width + end {
                sum += if channels == 3 {
                    u64::from(grey([level(at, 0), level(at, 1), level(at, 2)]))
                } else {
                    (0..channels).map(|channel| u64::from(level(at, channel))).sum::<u64>() / channels as u64
                };
            }
            count += (end - first) as u64;
        }
        (sum as f64 / count.max(1) as f64) as f32
    }
}

/// torchvision's `_blend`: `factor * level + (1 - factor) * other`.
fn blend(level: u8, other: f32, factor: f64) -> u8 {
    // The cast clamps to 0 to 255.
    (factor as f32 * f32::from(level) + (1.0 - factor) as f32 * other) as u8
}

/// torchvision's `rgb_to_grayscale`, whose weights add up to 0.9999.
fn grey(colour: [u8; 3]) -> u8 {
    let [red, green, blue] = colour.map(f32::from);
    (0.2989 * red + 0.587 * green + 0.114 * blue) as u8
}

/// torchvision's `adjust_hue`: rotates the hue by a fraction of the circle, in units of 1/65536; saturation
/// and value stay.
fn rotate_hue(colour: [u8; 3], share: i64) -> [u8; 3] {
    let [red, green, blue] = colour.map(i64::from);
    let max = red.max(green).max(blue);
    let min = red.min(green).min(blue);
    let range = max - min;
    if range == 0 {
        return colour;
    }
    // The circle has six sixths: red, yellow, green, cyan, blue, magenta.
    let (sixth, difference) = if max == red {
        (0, green - blue)
    } else if max == green {
        (2, blue - red)
    } else {
        (4, red - green)
    };
    let hue = sixth * HUE_ONE + (difference << HUE_BITS) / range + 6 * share;
    let hue = hue.rem_euclid(6 * HUE_ONE);
    let (sixth, within) = (hue >> HUE_BITS, hue & (HUE_ONE - 1));
    // Scaling by 255.999 / 255 before truncation, as torchvision converts to bytes.
    let level = |level: i64| ((level * 255_999 / 255_000) >> HUE_BITS).min(255) as u8;
    let falling = level((max << HUE_BITS) - range * within);
    let rising = level((min << HUE_BITS) + range * within);
    let (max, min) = (max as u8, min as u8);
    match sixth {
        0 => [max, rising, min],
        1 => [falling, max, min],
        2 => [min, max, rising],
        3 => [min, falling, max],
        4 => [rising, min, max],
        _ => [max, min, falling],
    }
}

#[cfg(test)]
mod tests;
