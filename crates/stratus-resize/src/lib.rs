//! Antialiased resizing of images of bytes, by `fast_image_resize`.
//!
//! A crate of its own because the library's loops are generic: they are compiled into whoever calls them,
//! again for its unit tests, and make half of what a crate of data sets and their transforms would have to
//! compile each time. For the same reason its own tests are not among its units.

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer as Library};

/// A part of an image in pixels, whose edges may lie within some.
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

/// Resizes, and keeps the memory that it takes.
#[derive(Debug, Default)]
pub struct Resizer(Library);

impl Resizer {
    /// Resizes a part of the image in `source`, `[height, width]` pixels of `channels` bytes in row-major
    /// order, into `out`, an image of `[rows, columns]` such pixels: by a triangle over neighbouring pixels
    /// as wide as what becomes one pixel (bilinear, antialiased).
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

    /// Generic over the pixel: the library's own choice between all its kinds would compile them all, for two
    /// that are used.
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
