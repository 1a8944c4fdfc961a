//! From the bytes of an image file to pixels: JPEG and PNG, told apart by how they begin and not by their names.
//!
//! Pixels come interleaved, in one channel or in red, green and blue: CMYK is converted, palettes are looked up, 16 bits are cut to 8,
//! transparency is dropped. What EXIF says of the orientation is passed on.
//!
//! Whole images are decoded in strict mode, in which a file that ends too early is an error and not half an image. Both libraries allocate
//! memory of their own for each image (tables, and rows of coefficients); file and pixels lie in memory that is used again.

mod exif;
mod jpeg;
mod labels;
mod png;

pub(crate) use self::labels::{LabelPixels, decode_classes, decode_labels};

use crate::frame::Orientation;

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

/// Decodes an image file; `pixels` is made as long as needed.
pub(crate) fn decode(file: &[u8], pixels: &mut Vec<u8>) -> Result<Decoded, String> {
    match Format::of(file)? {
        Format::Jpeg => jpeg::decode(file, pixels),
        Format::Png => png::decode(file, pixels),
    }
}

/// Decodes the first rows of an image file: as many as `wanted` says of the image that is described to it, or more; the shape is that of the
/// whole image. Damage further down may go unseen. The file is the same afterwards.
pub(crate) fn decode_rows(
    file: &mut [u8],
    pixels: &mut Vec<u8>,
    wanted: &dyn Fn(&Decoded) -> usize,
) -> Result<Decoded, String> {
    match Format::of(file)? {
        Format::Jpeg => jpeg::decode_rows(file, pixels, wanted),
        Format::Png => png::decode(file, pixels),
    }
}

/// Reads a file's bytes from an offset on, as many as there is room for.
pub(crate) type ReadAt<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> Result<(), String>;

/// Whether an image file of `bytes` looks whole by its beginning and its end, decoding it where they cannot tell; gives the stored image's
/// height and width.
pub(crate) fn probe(
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
    if let Some(verdict) = looks_whole(head, tail, bytes as usize) {
        return verdict.and_then(|()| stored_size(head));
    }
    encoded.resize(bytes as usize, 0);
    read_at(0, encoded)?;
    let [_, height, width] = decode(encoded, decoded)?.shape;
    Ok([height, width])
}

/// Whether a file of `bytes` looks whole by its beginning, `head`, and its end, `tail`: a header that can be decoded, and the mark of the
/// end. `None` where they cannot tell, and the whole must be decoded.
fn looks_whole(head: &[u8], tail: &[u8], bytes: usize) -> Option<Result<(), String>> {
    let whole = match Format::of(head) {
        Err(problem) => return Some(Err(problem)),
        Ok(Format::Jpeg) => jpeg::header(head).is_ok() && jpeg::ends(head, tail, bytes),
        Ok(Format::Png) => png::header(head).is_ok() && png::ends(tail),
    };
    whole.then_some(Ok(()))
}

/// Height and width of the stored image, by the beginning of its file.
fn stored_size(head: &[u8]) -> Result<[usize; 2], String> {
    match Format::of(head)? {
        Format::Jpeg => jpeg::header(head),
        Format::Png => png::header(head),
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
