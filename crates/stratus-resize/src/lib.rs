//! Antialiased resizing of 8-bit images, by `fast_image_resize`.
//!
//! A separate crate to save compile time: the library is generic, so its loops are compiled into every crate
//! that calls it, and again for unit tests. They would make up half of the compile time of `stratus-data`.
//! For the same reason this crate has no unit tests.

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer as Library};

/// A window of an image in pixels, possibly fractional.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// The first column.
    pub left: f64,
    /// The first row.
    pub top: f64,
    /// Columns.
    pub width: f64,
    /// Rows.
    pub height: f64,
}

/// A resizer, which keeps its memory between images.
#[derive(Debug, Default)]
pub struct Resizer(Library);

impl Resizer {
    /// Resizes a window of `source`, a row-major image of `[height, width]` pixels of `channels` bytes, into
    /// `out`, of `[rows, columns]` pixels, with a triangle filter (bilinear, antialiased).
    ///
    /// # Errors
    /// Where pixels have neither 1 nor 3 channels, a buffer is too short for its image, a side is longer than
    /// 2³² pixels, or the part does not lie within the image.
    pub fn resize(
        &mut self,
        channels: usize,
        source: &[u8],
        size: [usize; 2],
        part: Part,
        out: &mut [u8],
        wanted: [usize; 2],
    ) -> Result<(), String> {
        match channels {
            1 => self.typed::<U8>(source, size, part, out, wanted),
            3 => self.typed::<U8x3>(source, size, part, out, wanted),
            _ => Err(format!("its {channels} channels lie side by side, and only 1 or 3 can")),
        }
    }

    /// Generic over the pixel type: with the library's dynamic choice, all types would be compiled instead of
    /// the two used.
    fn typed<P: PixelTrait>(
        &mut self,
        source: &[u8],
        [height, width]: [usize; 2],
        part: Part,
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
            .crop(part.left, part.top, part.width, part.height);
        self.0.resize_typed(&source, &mut out, &options).map_err(|error| error.to_string())
    }
}
