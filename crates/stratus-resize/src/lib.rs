//! Antialiased resizing of 8-bit images, by `fast_image_resize`.
//!
//! A separate crate saves compile time: `fast_image_resize` is generic, so its loops are compiled into every
//! crate that calls it, and again for unit tests. They would take half of the compile time of
//! `stratus-data`. For the same reason, this crate has no unit tests.

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer as GenericResizer};

/// A window of an image, in fractional pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CropBox {
    /// The left edge.
    pub left: f64,
    /// The top edge.
    pub top: f64,
    /// The width.
    pub width: f64,
    /// The height.
    pub height: f64,
}

/// A resizer, which reuses its buffers between images.
#[derive(Debug, Default)]
pub struct Resizer(GenericResizer);

impl Resizer {
    /// Resizes the window `crop` of `source`, a row-major image of `size` (height, width) with `channels`
    /// bytes per pixel, to `out`, of `out_size`, with a triangle filter (bilinear, antialiased).
    ///
    /// # Errors
    /// If there are neither 1 nor 3 channels, a buffer is too short, a side exceeds 2³² pixels, or the window
    /// is not inside the image.
    pub fn resize(
        &mut self,
        channels: usize,
        source: &[u8],
        size: [usize; 2],
        crop: CropBox,
        out: &mut [u8],
        out_size: [usize; 2],
    ) -> Result<(), String> {
        match channels {
            1 => self.resize_typed::<U8>(source, size, crop, out, out_size),
            3 => self.resize_typed::<U8x3>(source, size, crop, out, out_size),
            _ => Err(format!("{channels} channels are not supported, only 1 or 3")),
        }
    }

    /// Resizes pixels of a static type. With the dynamic image type of `fast_image_resize`, all pixel types
    /// would be compiled instead of the two used.
    fn resize_typed<P: PixelTrait>(
        &mut self,
        source: &[u8],
        [height, width]: [usize; 2],
        crop: CropBox,
        out: &mut [u8],
        [rows, columns]: [usize; 2],
    ) -> Result<(), String> {
        let side = |length: usize| u32::try_from(length).map_err(|error| error.to_string());
        let source = TypedImageRef::<P>::from_buffer(side(width)?, side(height)?, source)
            .map_err(|error| error.to_string())?;
        let mut out = TypedImage::<P>::from_buffer(side(columns)?, side(rows)?, out)
            .map_err(|error| error.to_string())?;
        let options = ResizeOptions::new()
            .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
            .use_alpha(false)
            .crop(crop.left, crop.top, crop.width, crop.height);
        self.0.resize_typed(&source, &mut out, &options).map_err(|error| error.to_string())
    }
}
