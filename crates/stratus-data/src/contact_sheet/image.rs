//! RGB images in memory, drawn on and encoded as PNG; masks as PNG.

use super::font::{FULL_COVERAGE, Font};
use super::palette::ClassPalette;
use crate::buffer::IGNORED_LABEL;
use crate::png_mark;

/// An RGB image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RgbImage {
    /// Pixels, row-major: height × width × 3.
    pub pixels: Vec<u8>,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl RgbImage {
    /// An image of one colour.
    pub(super) fn filled(colour: [u8; 3], height: usize, width: usize) -> Self {
        Self { pixels: colour.repeat(height * width), height, width }
    }

    /// The pixel at (row, column), if it is inside the image.
    fn pixel_mut(&mut self, [y, x]: [usize; 2]) -> Option<&mut [u8; 3]> {
        if x >= self.width {
            return None;
        }
        self.pixels.as_chunks_mut().0.get_mut(y * self.width + x)
    }

    /// Sets the pixel at (row, column) if it is inside the image.
    pub(super) fn set(&mut self, position: [usize; 2], colour: [u8; 3]) {
        if let Some(pixel) = self.pixel_mut(position) {
            *pixel = colour;
        }
    }

    /// Writes a line of text starting at (row, column).
    pub(super) fn write(&mut self, line: &str, [top, left]: [usize; 2], font: &Font, colour: [u8; 3]) {
        for ([row, column], coverage) in font.pixels(line) {
            if let Some(pixel) = self.pixel_mut([top + row, left + column]) {
                *pixel = blended(*pixel, colour, u32::from(coverage) * 256 / u32::from(FULL_COVERAGE));
            }
        }
    }

    /// Encodes the image as a PNG file, with the mark of [`png_mark`].
    ///
    /// # Errors
    ///
    /// If encoding fails, for example because a side is too long for PNG.
    pub fn to_png(&self) -> Result<Vec<u8>, png::EncodingError> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, side(self.width)?, side(self.height)?);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.pixels)?;
        writer.finish()?;
        Ok(png_mark::add_mark(&file))
    }
}

/// Blends two colours; the weight of the second is `weight` / 256, at most 256.
#[must_use]
pub fn blended(first: [u8; 3], second: [u8; 3], weight: u32) -> [u8; 3] {
    let weight = weight.min(256);
    let mix = |channel: usize| {
        ((u32::from(first[channel]) * (256 - weight) + u32::from(second[channel]) * weight) / 256) as u8
    };
    [mix(0), mix(1), mix(2)]
}

/// Encodes a mask as a PNG file with the classes as values, and a palette of their colours; without one, the
/// file is grey. Ignored pixels are 255, black in a palette. It has the mark of [`png_mark`].
///
/// # Errors
///
/// If a class is above 254, or encoding fails.
pub fn mask_to_png(
    mask: &[i32],
    [height, width]: [usize; 2],
    palette: Option<&ClassPalette>,
) -> Result<Vec<u8>, png::EncodingError> {
    let value = |&class: &i32| match class {
        IGNORED_LABEL => Ok(u8::MAX),
        class => u8::try_from(class).map_err(|_| png::EncodingError::LimitsExceeded),
    };
    let values = mask.iter().map(value).collect::<Result<Vec<u8>, _>>()?;
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, side(width)?, side(height)?);
    encoder.set_depth(png::BitDepth::Eight);
    match palette {
        None => encoder.set_color(png::ColorType::Grayscale),
        Some(palette) => {
            encoder.set_color(png::ColorType::Indexed);
            let colours = (0..usize::from(u8::MAX)).map(|class| palette.colour(class)).chain([[0; 3]]);
            encoder.set_palette(colours.flatten().collect::<Vec<u8>>());
        }
    }
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&values)?;
    writer.finish()?;
    Ok(png_mark::add_mark(&file))
}

/// The length of a side, if PNG can store it.
fn side(length: usize) -> Result<u32, png::EncodingError> {
    u32::try_from(length).map_err(|_| png::EncodingError::LimitsExceeded)
}
