//! From the bytes of an image file to pixels: JPEG and PNG, told apart by how they begin and not by their
//! names.
//!
//! Pixels come interleaved, in one channel or in red, green and blue: CMYK is converted, palettes are looked
//! up, 16 bits are cut to 8, transparency is dropped. What EXIF says of the orientation is passed on.
//!
//! A file that ends too early, or is known to be damaged, is an error and not half an image. The libraries
//! allocate memory of their own for each image (tables, and rows of coefficients); file and pixels lie in
//! memory that is used again.

mod exif;
mod jpeg;
mod labels;
mod png;

pub use self::jpeg::JpegLibrary;
pub(crate) use self::labels::{LabelPixels, decode_classes, decode_labels};

use crate::transform::frame::{Orientation, Region};

/// The most bytes of an image file.
pub(crate) const LARGEST_FILE: u64 = 1 << 28;
/// How much of a file is looked at from its beginning and its end to see whether it is whole.
const HEAD: usize = 16 << 10;
const TAIL: usize = 4 << 10;
/// The most pixels of an image.
pub(crate) const LARGEST_IMAGE: usize = 1 << 27;
/// The longest side of an image.
pub(crate) const LONGEST_SIDE: usize = 65_535;

/// What a decoded image is; its pixels lie where the caller said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decoded {
    /// Channels, 1 or 3; height; width.
    pub shape: [usize; 3],
    pub orientation: Orientation,
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

/// What the name of an image file like this ends with.
pub(crate) fn extension(file: &[u8]) -> Result<&'static str, String> {
    Ok(match Format::of(file)? {
        Format::Jpeg => "jpg",
        Format::Png => "png",
    })
}

/// Reads a file's bytes from an offset on, as many as there is room for.
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
    /// A decoder that takes JPEG files to this library.
    #[must_use]
    pub fn new(library: &JpegLibrary) -> Self {
        Self { library: library.clone(), jpeg: jpeg::Decoder::new(library), decoded_jpeg: false }
    }

    /// What decoded JPEG files; `None` where there were none yet.
    #[must_use]
    pub fn jpeg_library(&self) -> Option<&JpegLibrary> {
        self.decoded_jpeg.then_some(&self.library)
    }

    /// Decodes an image file; `pixels` is made as long as needed.
    pub(crate) fn decode(&mut self, file: &[u8], pixels: &mut Vec<u8>) -> Result<Decoded, String> {
        match Format::of(file)? {
            Format::Jpeg => self.jpeg().decode(file, pixels),
            Format::Png => png::decode(file, pixels),
        }
    }

    /// Decodes a region of an image file, or more: the one that `wanted` says of the image that is described
    /// to it. `pixels` becomes the image's rows from the first to the region's last at least; what they hold
    /// outside of the region is undefined. Damage further down may go unseen. The file is the same
    /// afterwards.
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

    /// Whether an image file of `bytes` looks whole by its beginning and its end, decoding it where they
    /// cannot tell; gives the stored image's height and width.
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

    /// Height and width of the stored image where a file of `bytes` looks whole by its beginning, `head`, and
    /// its end, `tail`: a header that can be decoded, and the mark of the end. `None` where they cannot tell,
    /// and the whole must be decoded.
    fn looks_whole(&mut self, head: &[u8], tail: &[u8], bytes: usize) -> Result<Option<[usize; 2]>, String> {
        let (size, ends) = match Format::of(head)? {
            Format::Jpeg => (self.jpeg.header(head), jpeg::ends(head, tail, bytes)),
            Format::Png => (png::header(head), png::ends(tail)),
        };
        Ok(size.ok().filter(|_| ends))
    }
}

/// The pixels of an image of this size and so many channels, where that is not too many.
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
