//! The format of pixels, stored and in a batch: element type, layout, order of channels, normalisation.

use serde::{Deserialize, Serialize};

/// The type of an image's elements in a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Element {
    /// IEEE 754 single precision.
    #[default]
    F32,
    /// The upper half of an `f32`, rounded to nearest even.
    Bf16,
    /// IEEE 754 half precision, rounded to nearest even.
    F16,
    /// The pixel itself, from 0 to 255; the consumer normalises it by [`Normalisation::scale_shifts`]. Blank
    /// pixels, which have the mean, are not supported: see
    /// [`LoaderConfig::byte_images_problem`](crate::LoaderConfig::byte_images_problem).
    U8,
}

impl Element {
    /// Bytes of one element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::U8 => 1,
        }
    }
}

/// The order of a batch's elements in memory, outermost dimension first. With one channel both are the same
/// bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// Batch, channel, row, column.
    #[default]
    Nchw,
    /// Batch, row, column, channel.
    Nhwc,
}

/// The order of a stored sample's pixels. With one channel both are the same bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PixelOrder {
    /// A plane per channel: (C, H, W).
    #[default]
    Planes,
    /// The channels of a pixel side by side: (H, W, C).
    Interleaved,
}

/// Normalisation per channel: `(x / 255 - mean) / std`, computed as `x * scale + offset` in `f32`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Normalisation {
    /// One mean per channel.
    pub mean: Vec<f32>,
    /// One standard deviation per channel, above 0.
    pub std: Vec<f32>,
}

impl Normalisation {
    /// Scales pixels to 0…1, without normalisation.
    #[must_use]
    pub fn unit(channels: usize) -> Self {
        Self { mean: vec![0.0; channels], std: vec![1.0; channels] }
    }

    /// The normalisation of torchvision's networks for ImageNet, in RGB order.
    #[must_use]
    pub fn imagenet() -> Self {
        Self { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] }
    }

    /// Adapts to another number of channels: one channel is repeated, several are averaged.
    #[must_use]
    pub fn for_channels(&self, channels: usize) -> Self {
        let spread = |numbers: &[f32]| {
            if numbers.len() == channels {
                return numbers.to_vec();
            }
            let sum: f64 = numbers.iter().copied().map(f64::from).sum();
            vec![(sum / numbers.len().max(1) as f64) as f32; channels]
        };
        Self { mean: spread(&self.mean), std: spread(&self.std) }
    }

    /// Returns whether there is one finite mean and one finite, positive deviation per channel.
    #[must_use]
    pub fn is_valid(&self, channels: usize) -> bool {
        self.mean.len() == channels
            && self.std.len() == channels
            && self.mean.iter().all(|mean| mean.is_finite())
            && self.std.iter().all(|std| std.is_finite() && *std > 0.0)
    }

    /// The scale and offset of each channel, `pixel * scale + offset`, with both constants rounded once.
    #[must_use]
    pub fn scale_shifts(&self) -> Vec<ScaleShift> {
        let scale_shift = |(mean, std): (&f32, &f32)| {
            let (mean, std) = (f64::from(*mean), f64::from(*std));
            ScaleShift { scale: (1.0 / (255.0 * std)) as f32, offset: (-mean / std) as f32 }
        };
        self.mean.iter().zip(&self.std).map(scale_shift).collect()
    }
}

/// The normalisation of one channel: `pixel * scale + offset`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaleShift {
    /// The factor.
    pub scale: f32,
    /// The summand.
    pub offset: f32,
}

impl ScaleShift {
    /// Normalises a pixel. Multiplication and addition are rounded separately, without FMA: the same bits on
    /// every CPU.
    #[inline(always)]
    #[must_use]
    pub fn normalise(self, pixel: u8) -> f32 {
        f32::from(pixel) * self.scale + self.offset
    }
}
