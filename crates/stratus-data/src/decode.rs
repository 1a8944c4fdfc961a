//! Decoding JPEG and PNG files. The format is detected from the content, not from the name.
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

use crate::transform::frame::{Orientation, Reduced, Region};

/// The most bytes of an image file.
pub(crate) const LARGEST_FILE: u64 = 1 << 28;
/// Bytes at the beginning and the end of a file that tell whether it is complete.
const HEAD: usize = 16 << 10;
const TAIL: usize = 4 << 10;
/// The most pixels of an image.
pub(crate) const LARGEST_IMAGE: usize = 1 << 27;
/// The longest side of an image.
pub(crate) const LONGEST_SIDE: usize = 65_535;

/// The shape and orientation of a decoded image; its pixels are in the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decoded {
    /// Channels, 1 or 3; height; width.
    pub shape: [usize; 3],
    /// The stored image, where the pixels are a reduction of it.
    pub reduced: Option<Reduced>,
    pub orientation: Orientation,
}

impl Decoded {
    /// Height and width of the stored image.
    pub(crate) fn stored_size(&self) -> [usize; 2] {
        let [_, height, width] = self.shape;
        self.reduced.map_or([height, width], |reduced| reduced.size)
    }
}

/// A kind of image file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Jpeg,
    Png,
}

impl Format {
    fn of(file: &[u8]) -> Result<Self, String> {
        match file {
            [] => Err("the file is empty".to_owned()),
            [0xff, 0xd8, 0xff, ..] => Ok(Self::Jpeg),
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Ok(Self::Png),
            _ => Err("neither a JPEG nor a PNG file".to_owned()),
        }
    }
}

/// The extension of such a file.
pub(crate) fn extension(file: &[u8]) -> Result<&'static str, String> {
    Ok(match Format::of(file)? {
        Format::Jpeg => "jpg",
        Format::Png => "png",
    })
}

/// Reads from an offset until the buffer is full or the file ends.
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
        Self::new(JpegLibrary::of_process())
    }
}

impl ImageDecoder {
    /// A decoder that uses this library for JPEG.
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
        match Format::of(file)? {
            Format::Jpeg => self.jpeg().decode(file, pixels),
            Format::Png => png::decode(file, pixels),
        }
    }

    /// Decodes at least the region that `wanted` returns for the described image, reduced as that says where
    /// the library can. `pixels` receives the rows
    /// from the first to at least the last of the region; outside of the region they are undefined. Damage
    /// below the region may go unnoticed. The file may be modified temporarily.
    pub(crate) fn decode_region(
        &mut self,
        file: &mut [u8],
        pixels: &mut Vec<u8>,
        wanted: &dyn Fn(&Decoded) -> Region,
    ) -> Result<Decoded, String> {
        match Format::of(file)? {
            Format::Jpeg => self.jpeg().decode_region(file, pixels, wanted),
            Format::Png => png::decode(file, pixels),
        }
    }

    fn jpeg(&mut self) -> &mut jpeg::Decoder {
        self.decoded_jpeg = true;
        &mut self.jpeg
    }

    /// Checks an image file of `bytes` bytes by its beginning and its end, decoding it only where these do
    /// not suffice. Returns the height and width of the stored image.
    pub(crate) fn probe(
        &mut self,
        read_at: ReadAt<'_>,
        bytes: u64,
        encoded: &mut Vec<u8>,
        decoded: &mut Vec<u8>,
    ) -> Result<[usize; 2], String> {
        let (head, tail) = (HEAD.min(bytes as usize), TAIL.min(bytes as usize));
        encoded.resize(head + tail, 0);
        let (head, tail) = encoded.split_at_mut(head);
        read_at(0, head)?;
        read_at(bytes - tail.len() as u64, tail)?;
        if let Some(size) = self.looks_whole(head, tail, bytes as usize)? {
            return Ok(size);
        }
        encoded.resize(bytes as usize, 0);
        read_at(0, encoded)?;
        let [_, height, width] = self.decode(encoded, decoded)?.shape;
        Ok([height, width])
    }

    /// Height and width of the stored image, if `head` has a valid header and `tail` the end marker. `None`
    /// where they do not suffice and the file must be decoded.
    fn looks_whole(&mut self, head: &[u8], tail: &[u8], bytes: usize) -> Result<Option<[usize; 2]>, String> {
        let (size, ends) = match Format::of(head)? {
            Format::Jpeg => (self.jpeg.header(head), jpeg::ends(head, tail, bytes)),
            Format::Png => (png::header(head), png::ends(tail)),
        };
        Ok(size.ok().filter(|_| ends))
    }
}

/// The number of pixels, unless there are too many.
fn pixel_bytes(height: usize, width: usize, channels: usize) -> Result<usize, String> {
    let pixels = height.checked_mul(width).filter(|&pixels| pixels <= LARGEST_IMAGE);
    match pixels {
        Some(0) => Err(format!("the image is {height}×{width}")),
        Some(pixels) => Ok(pixels * channels),
        None => Err(format!("the image is {height}×{width}: more than {LARGEST_IMAGE} pixels")),
    }
}

#[cfg(test)]
mod tests;
