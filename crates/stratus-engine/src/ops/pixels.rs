//! Normalises images from the bytes of stored pixels.

use super::{KernelSpec, Tiling, expect_counts, expect_same_shape, image_shape};
use crate::build::Differentiator;
use crate::{DType, EngineError, Step, Value};
use serde::{Deserialize, Serialize};

/// The most channels of images that are normalised here.
pub const MOST_CHANNELS: usize = 4;

/// `images u8 [N, C, H, W] -> y [N, C, H, W]`: `y = pixel * scale + shift`, product and sum rounded to `f32`,
/// then to the type of `y`.
///
/// A loader that normalises images itself writes the same bits: see
/// [`crate::passes::images::images_as_bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NormalisePixels {
    /// Scale and shift of each channel; those beyond the images' channels are ignored. Plans call them
    /// `lines`.
    #[serde(rename = "lines")]
    pub scale_shift: [[f32; 2]; MOST_CHANNELS],
}

impl NormalisePixels {
    /// What becomes of a pixel of a channel, before it is rounded to a narrower type.
    #[must_use]
    pub fn of(&self, channel: usize, pixel: u8) -> f32 {
        let [scale, shift] = self.scale_shift[channel % MOST_CHANNELS];
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
        if !(1..=MOST_CHANNELS).contains(&channels) {
            return Err(format!("`{}` has {channels} channels, it takes 1 to {MOST_CHANNELS}", images.name));
        }
        if images.dtype != DType::U8 || matches!(y.dtype, DType::U8 | DType::I32) {
            return Err(format!(
                "`{}` is {}, `{}` is {}; it makes floating-point numbers of u8",
                images.name, images.dtype, y.name, y.dtype
            ));
        }
        match self.scale_shift[..channels].iter().flatten().find(|number| !number.is_finite()) {
            Some(number) => Err(format!("its scales and offsets hold {number}; they are finite")),
            None => Ok(()),
        }
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        2 * operands[0].elements() as u64
    }

    fn differentiate(&self, _step: &Step, _to: &mut Differentiator) -> Result<(), EngineError> {
        // Pixels are stored: no gradient flows into them.
        Ok(())
    }
}
