//! Normalisation of images stored as bytes.

use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_same_shape, image_shape};
use crate::build::Differentiator;
use crate::{DType, EngineError, Step, Value};
use serde::{Deserialize, Serialize};

/// The maximum number of image channels.
pub const MAX_IMAGE_CHANNELS: usize = 4;

/// `images u8 [N, C, H, W] -> y [N, C, H, W]`: `y = pixel * scale + shift`, product and sum rounded to `f32`,
/// then to the type of `y`.
///
/// A loader that normalises images itself produces the same bits: see
/// [`crate::passes::images::with_byte_images`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NormalisePixels {
    /// Scale and shift of each channel; entries beyond the images' channels are ignored.
    #[serde(rename = "lines")]
    pub scale_shift: [[f32; 2]; MAX_IMAGE_CHANNELS],
}

impl NormalisePixels {
    /// The normalised pixel of a channel, before rounding to a narrower type.
    #[must_use]
    pub fn normalise(&self, channel: usize, pixel: u8) -> f32 {
        let [scale, shift] = self.scale_shift[channel % MAX_IMAGE_CHANNELS];
        f32::from(pixel) * scale + shift
    }
}

impl KernelSpec for NormalisePixels {
    fn name(&self) -> &'static str {
        "normalise_pixels"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        let (images, y) = (operands[0], operands[1]);
        expect_same_shape(images, y)?;
        let [_, channels, ..] = image_shape(images)?;
        if !(1..=MAX_IMAGE_CHANNELS).contains(&channels) {
            return Err(format!(
                "`{}`: expected 1 to {MAX_IMAGE_CHANNELS} channels, got {channels}",
                images.name
            ));
        }
        if images.dtype != DType::U8 || matches!(y.dtype, DType::U8 | DType::I8 | DType::I32) {
            return Err(format!(
                "`{}` is {}, `{}` is {}: expected u8 and a floating-point type",
                images.name, images.dtype, y.name, y.dtype
            ));
        }
        match self.scale_shift[..channels].iter().flatten().find(|number| !number.is_finite()) {
            Some(number) => Err(format!("scales and shifts must be finite, got {number}")),
            None => Ok(()),
        }
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        2 * operands[0].elements() as u64
    }

    fn differentiate(&self, _step: &Step, _backward: &mut Differentiator) -> Result<(), EngineError> {
        // Pixels are data: they have no gradient.
        Ok(())
    }
}
