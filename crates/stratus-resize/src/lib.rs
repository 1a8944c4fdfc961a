//! Antialiased resizing of images of bytes, by `fast_image_resize`.
//!
//! A crate of its own because the library's loops are generic: they are compiled into whoever calls them, again for its tests, and make half of
//! what a crate of data sets and their transforms would have to compile each time.

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
    /// Resizes a part of the image in `source`, `[height, width]` pixels of `channels` bytes in row-major order, into `out`, an image of `[rows,
    /// columns]` such pixels: by a triangle over neighbouring pixels as wide as what becomes one pixel (bilinear, antialiased).
    ///
    /// # Errors
    /// Where pixels have neither 1 nor 3 channels, a buffer is too short for its image, a side is longer than 2³² pixels, or the part does not lie
    /// within the image.
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

    /// Generic over the pixel: the library's own choice between all its kinds would compile them all, for two that are used.
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

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Part = Part { left: 0.0, top: 0.0, width: 4.0, height: 2.0 };

    #[test]
    fn half_the_size_is_the_mean_of_neighbours_and_colours_stay_apart() {
        let grey = [10, 30, 50, 70, 20, 40, 60, 80];
        let mut out = [0; 2];
        Resizer::default().resize(1, &grey, [2, 4], WHOLE, &mut out, [1, 2]).unwrap();
        // Columns' means are 15, 35, 55, 75; of a triangle of two pixels to each side the weights are 3, 3 and 1, and 0: 205/7 and 425/7.
        assert_eq!(out, [29, 61]);
        let colours = grey.map(|value| [value, 255 - value, 7]).concat();
        let mut out = [0; 6];
        Resizer::default().resize(3, &colours, [2, 4], WHOLE, &mut out, [1, 2]).unwrap();
        assert_eq!(out, [29, 226, 7, 61, 194, 7]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut resizer = Resizer::default();
        let mut out = [0; 2];
        let refused = |result: Result<(), String>| result.unwrap_err();
        assert_eq!(
            refused(resizer.resize(2, &[0; 16], [2, 4], WHOLE, &mut out, [1, 1])),
            "its 2 channels lie side by side, and only 1 or 3 can"
        );
        assert!(!refused(resizer.resize(1, &[0; 7], [2, 4], WHOLE, &mut out, [1, 2])).is_empty());
        assert!(!refused(resizer.resize(1, &[0; 8], [2, 4], WHOLE, &mut out, [2, 2])).is_empty());
        let beyond = Part { left: 2.0, ..WHOLE };
        assert!(!refused(resizer.resize(1, &[0; 8], [2, 4], beyond, &mut out, [1, 2])).is_empty());
    }
}
