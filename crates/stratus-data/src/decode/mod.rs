//! Decoding of JPEG, PNG and WebP files. The format is detected from the content, not from the name.
//!
//! Pixels are interleaved, grey or RGB: CMYK is converted, palettes are resolved, 16 bits are reduced to 8,
//! transparency is dropped. The EXIF orientation is returned.
//!
//! A truncated or damaged file is an error, never a partial image. The libraries allocate memory per image
//! (tables, rows of coefficients, all coefficients of a progressive JPEG); file and pixels use the caller's
//! buffers. Before any of that, the size in the header is compared with the file's length: the file must be
//! able to contain the image, and decoding takes at most 192 MiB or 128 times the file.

mod exif;
mod image;
mod jpeg;
mod labels;
mod png;
mod webp;

pub(crate) use self::image::{
    Decoded, FORMAT_BYTES, MAX_IMAGE_FILE_BYTES, MAX_IMAGE_PIXELS, MAX_SIDE_PIXELS, extension,
    looks_like_image,
};
pub use self::jpeg::JpegLibrary;
pub(crate) use self::labels::{LabelImage, LabelPixels, decode_labels};

use self::image::Format;
use crate::geometry::Region;

/// The numbers of bytes at the beginning and the end of a file that are checked to detect truncation.
const PROBE_HEAD_BYTES: usize = 16 << 10;
const PROBE_TAIL_BYTES: usize = 4 << 10;

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
            Format::WebP => webp::decode(file, pixels),
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
            Format::WebP => webp::decode(file, pixels),
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
            Format::Jpeg => (self.jpeg.header(head, bytes), jpeg::has_end_marker(head, tail, bytes)),
            Format::Png => (png::header(head, bytes), png::has_end_marker(tail)),
            // The header has the length of the file.
            Format::WebP => (webp::header(head, bytes), true),
        };
        Ok(size.ok().filter(|_| ends))
    }
}

#[cfg(test)]
mod tests;
