//! Decoding of JPEG and PNG files. The format is detected from the content, not from the name.
//!
//! Pixels are interleaved, grey or RGB: CMYK is converted, palettes are resolved, 16 bits are reduced to 8,
//! transparency is dropped. The EXIF orientation is returned.
//!
//! A truncated or damaged file is an error, never a partial image. The libraries allocate memory per image
//! (tables, rows of coefficients); file and pixels use the caller's buffers.

mod exif;
mod jpeg;
mod labels;
mod png;

pub use self::jpeg::JpegLibrary;
pub(crate) use self::labels::{LabelImage, LabelPixels, decode_labels};

use crate::transform::frame::{DctScaled, Orientation, Region};

/// The maximum size of an image file.
pub(crate) const MAX_IMAGE_FILE_BYTES: u64 = 1 << 28;
/// The numbers of bytes at the beginning and the end of a file that are checked to detect truncation.
const PROBE_HEAD_BYTES: usize = 16 << 10;
const PROBE_TAIL_BYTES: usize = 4 << 10;
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
enum Format {
    Jpeg,
    Png,
}

impl Format {
    fn detect(file: &[u8]) -> Result<Self, String> {
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

/// Reads at an offset, filling the buffer.
pub(crate) type ReadAt<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> Result<(), String>;

/// Decodes image files for one thread.
#[derive(Clone, Debug)]
pub struct ImageDecoder {
    library: JpegLibrary,
    jpeg: jpeg::Decoder,
    decoded_jpeg: bool,
}

impl Default for ImageDecoder {
    fn default() -> Self {
        Self::new(JpegLibrary::for_process())
    }
}

impl ImageDecoder {
    /// Creates a decoder that uses `library` for JPEG.
    #[must_use]
    pub fn new(library: &JpegLibrary) -> Self {
        Self { library: library.clone(), jpeg: jpeg::Decoder::new(library), decoded_jpeg: false }
    }

    /// The JPEG library in use; `None` before the first JPEG file.
    #[must_use]
    pub fn jpeg_library(&self) -> Option<&JpegLibrary> {
        self.decoded_jpeg.then_some(&self.library)
    }

    /// Decodes an image file into `pixels`, which is resized.
    pub(crate) fn decode(&mut self, file: &[u8], pixels: &mut Vec<u8>) -> Result<Decoded, String> {
        match Format::detect(file)? {
            Format::Jpeg => self.jpeg().decode(file, pixels),
            Format::Png => png::decode(file, pixels),
        }
    }

    /// Decodes at least the region that `region` returns for the image, at its DCT scale if the library
    /// supports it. `pixels` receives the rows from the first to at least the last of the region; outside of
    /// the region they are undefined. Damage below the region may go unnoticed. The file may be modified
    /// temporarily.
    pub(crate) fn decode_region(
        &mut self,
        file: &mut [u8],
        pixels: &mut Vec<u8>,
        region: &dyn Fn(&Decoded) -> Region,
    ) -> Result<Decoded, String> {
        match Format::detect(file)? {
            Format::Jpeg => self.jpeg().decode_region(file, pixels, region),
            Format::Png => png::decode(file, pixels),
        }
    }

    fn jpeg(&mut self) -> &mut jpeg::Decoder {
        self.decoded_jpeg = true;
        &mut self.jpeg
    }

    /// Checks the beginning and end of an image file of `bytes` bytes; decodes it only if these are not
    /// sufficient. Returns the height and width of the stored image.
    pub(crate) fn probe(
        &mut self,
        read_at: ReadAt<'_>,
        bytes: u64,
        encoded: &mut Vec<u8>,
        decoded: &mut Vec<u8>,
    ) -> Result<[usize; 2], String> {
        let (head, tail) = (PROBE_HEAD_BYTES.min(bytes as usize), PROBE_TAIL_BYTES.min(bytes as usize));
        encoded.resize(head + tail, 0);
        let (head, tail) = encoded.split_at_mut(head);
        read_at(0, head)?;
        read_at(bytes - tail.len() as u64, tail)?;
        if let Some(size) = self.probe_ends(head, tail, bytes as usize)? {
            return Ok(size);
        }
        encoded.resize(bytes as usize, 0);
        read_at(0, encoded)?;
        let [_, height, width] = self.decode(encoded, decoded)?.shape;
        Ok([height, width])
    }

    /// Height and width of the stored image, if `head` has a valid header and `tail` the end marker. `None`
    /// if the file must be decoded instead.
    fn probe_ends(&mut self, head: &[u8], tail: &[u8], bytes: usize) -> Result<Option<[usize; 2]>, String> {
        let (size, ends) = match Format::detect(head)? {
            Format::Jpeg => (self.jpeg.header(head), jpeg::has_end_marker(head, tail, bytes)),
            Format::Png => (png::header(head), png::has_end_marker(tail)),
        };
        Ok(size.ok().filter(|_| ends))
    }
}

/// The number of bytes of the pixels, unless there are too many.
fn pixel_bytes(height: usize, width: usize, channels: usize) -> Result<usize, String> {
    let pixels = height.checked_mul(width).filter(|&pixels| pixels <= MAX_IMAGE_PIXELS);
    match pixels {
        Some(0) => Err(format!("the image is {height}×{width}")),
        Some(pixels) => Ok(pixels * channels),
        None => Err(format!("the image is {height}×{width}: more than {MAX_IMAGE_PIXELS} pixels")),
    }
}

#[cfg(test)]
mod tests;
