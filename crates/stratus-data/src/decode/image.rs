//! The format, limits and shape of an image file.

use crate::geometry::{DctScaled, Orientation};

/// The maximum size of an image file.
pub(crate) const MAX_IMAGE_FILE_BYTES: u64 = 1 << 28;
/// The maximum number of pixels of an image.
pub(crate) const MAX_IMAGE_PIXELS: usize = 1 << 27;
/// The maximum side of an image.
pub(crate) const MAX_SIDE_PIXELS: usize = 65_535;

/// The shape and orientation of a decoded image; its pixels are in the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decoded {
    /// Channels, 1 or 3; height; width.
    pub shape: [usize; 3],
    /// The stored image, if the pixels are a scaled version.
    pub dct_scaled: Option<DctScaled>,
    pub orientation: Orientation,
}

impl Decoded {
    /// Height and width of the stored image.
    pub(crate) fn stored_size(&self) -> [usize; 2] {
        let [_, height, width] = self.shape;
        self.dct_scaled.map_or([height, width], |reduced| reduced.original_size)
    }
}

/// An image file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Jpeg,
    Png,
}

impl Format {
    pub(super) fn detect(file: &[u8]) -> Result<Self, String> {
        match file {
            [] => Err("the file is empty".to_owned()),
            [0xff, 0xd8, 0xff, ..] => Ok(Self::Jpeg),
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Ok(Self::Png),
            _ => Err("neither a JPEG nor a PNG file".to_owned()),
        }
    }
}

/// The file extension of the format of a file.
pub(crate) fn extension(file: &[u8]) -> Result<&'static str, String> {
    Ok(match Format::detect(file)? {
        Format::Jpeg => "jpg",
        Format::Png => "png",
    })
}

/// The number of bytes of the pixels, unless there are too many.
pub(super) fn pixel_bytes(height: usize, width: usize, channels: usize) -> Result<usize, String> {
    let pixels = height.checked_mul(width).filter(|&pixels| pixels <= MAX_IMAGE_PIXELS);
    match pixels {
        Some(0) => Err(format!("the image is {height}×{width}")),
        Some(pixels) => Ok(pixels * channels),
        None => Err(format!("the image is {height}×{width}: more than {MAX_IMAGE_PIXELS} pixels")),
    }
}
