//! From the bytes of stored pixels to the numbers that a network reads.

use super::{KernelSpec, Tiling, expect_counts, expect_same_shape, image_shape};
use crate::differentiate::Differentiator;
use crate::{DType, EngineError, Step, Value};
use serde::{Deserialize, Serialize};

/// The most channels of images that are normalised here.
pub const MOST_CHANNELS: usize = 4;

/// `images u8 [N, C, H, W] -> y [N, C, H, W]`: of each pixel `pixel * scale + offset`, the product and the sum rounded to `f32`, then rounded to
/// the type of `y`.
///
/// These are the bits that a loader writes which normalises images itself: see [`crate::images::images_as_bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NormalisePixels {
    /// Scale and offset of each channel; those of channels that the images do not have count for nothing.
    pub lines: [[f32; 2]; MOST_CHANNELS],
}

impl NormalisePixels {
    /// What becomes of a pixel of a channel, before it is rounded to a narrower type.
    #[must_use]
    pub fn of(&self, channel: usize, pixel: u8) -> f32 {
        let [scale, offset] = self.lines[channel % MOST_CHANNELS];
        f32::from(pixel) * scale + offset
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
        match self.lines[..channels].iter().flatten().find(|number| !number.is_finite()) {
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
