//! Antialiased resizing of 8-bit images, by `fast_image_resize`.

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer as GenericResizer};

use crate::dataset::Sample;
use crate::error::DataError;
use crate::geometry::Window;
use crate::transform::pixels::PixelOrder;

/// A resizer, which reuses its buffers between images.
#[derive(Debug, Default)]
pub(crate) struct Resizer(GenericResizer);

impl Resizer {
    /// Resizes a window of a stored image to `size` (H, W) with a triangle filter (bilinear, antialiased), in
    /// the same channels and order. The pixels that the window needs must be present.
    ///
    /// # Errors
    ///
    /// [`DataError::Resize`] if there are neither 1 nor 3 interleaved channels, pixels are missing, a side
    /// exceeds 2³² pixels, or the window is not inside the image.
    pub(crate) fn resize(
        &mut self,
        sample: &Sample<'_>,
        window: Window,
        out: &mut Vec<u8>,
        size: [usize; 2],
    ) -> Result<(), DataError> {
        let [channels, _, width] = sample.shape;
        let [rows, columns] = size;
        let planes = if sample.order == PixelOrder::Planes { channels } else { 1 };
        let interleaved = channels / planes;
        out.resize(channels * rows * columns, 0);
        let sources = sample.pixels.chunks_exact(sample.pixels.len() / planes);
        for (source, out) in sources.zip(out.chunks_exact_mut(channels * rows * columns / planes)) {
            let source_size = [source.len() / (interleaved * width).max(1), width];
            let resized = match interleaved {
                1 => self.resize_typed::<U8>(source, source_size, window, out, size),
                3 => self.resize_typed::<U8x3>(source, source_size, window, out, size),
                _ => Err(format!("{interleaved} channels are not supported, only 1 or 3")),
            };
            resized.map_err(|problem| DataError::Resize { problem })?;
        }
        Ok(())
    }

    /// Resizes pixels of a static type. With the dynamic image type of `fast_image_resize`, all pixel types
    /// would be compiled instead of the two used.
    fn resize_typed<P: PixelTrait>(
        &mut self,
        source: &[u8],
        [height, width]: [usize; 2],
        window: Window,
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
            .crop(window.left, window.top, window.width, window.height);
        self.0.resize_typed(&source, &mut out, &options).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Orientation;

    const WHOLE: Window = Window { top: 0.0, left: 0.0, height: 2.0, width: 4.0 };
    const GREY: [u8; 8] = [10, 30, 50, 70, 20, 40, 60, 80];

    /// A sample of 2×4 pixels.
    fn sample(pixels: &[u8], channels: usize, order: PixelOrder) -> Sample<'_> {
        let (shape, orientation) = ([channels, 2, 4], Orientation::default());
        Sample { pixels, shape, dct_scaled: None, order, orientation, label: 0, mask: None }
    }

    fn resized(sample: &Sample<'_>, window: Window, size: [usize; 2]) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        match Resizer::default().resize(sample, window, &mut out, size) {
            Ok(()) => Ok(out),
            Err(DataError::Resize { problem }) => Err(problem),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn halving_averages_neighbours_of_each_channel() {
        // The column means are 15, 35, 55, 75. A triangle of two pixels to each side has the weights 3, 3, 1
        // and 0, which gives 205/7 and 425/7.
        let grey = sample(&GREY, 1, PixelOrder::Interleaved);
        assert_eq!(resized(&grey, WHOLE, [1, 2]), Ok(vec![29, 61]));
        let interleaved = GREY.map(|value| [value, 255 - value, 7]).concat();
        let colours = sample(&interleaved, 3, PixelOrder::Interleaved);
        assert_eq!(resized(&colours, WHOLE, [1, 2]), Ok(vec![29, 226, 7, 61, 194, 7]));
        let planes = [GREY, GREY.map(|value| 255 - value), [7; 8]].concat();
        let colours = sample(&planes, 3, PixelOrder::Planes);
        assert_eq!(resized(&colours, WHOLE, [1, 2]), Ok(vec![29, 61, 226, 194, 7, 7]));
    }

    #[test]
    fn rejects_other_channels_missing_pixels_and_windows_beyond_the_image() {
        let order = PixelOrder::Interleaved;
        assert_eq!(
            resized(&sample(&[0; 16], 2, order), WHOLE, [1, 1]).unwrap_err(),
            "2 channels are not supported, only 1 or 3"
        );
        assert!(!resized(&sample(&[0; 7], 1, order), WHOLE, [1, 2]).unwrap_err().is_empty());
        let beyond = Window { left: 2.0, ..WHOLE };
        assert!(!resized(&sample(&GREY, 1, order), beyond, [1, 2]).unwrap_err().is_empty());
    }
}
