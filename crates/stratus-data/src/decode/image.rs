//! The format, limits and shape of an image file.

use crate::geometry::{DctScaled, Orientation};

/// The maximum size of an image file.
pub(crate) const MAX_IMAGE_FILE_BYTES: u64 = 1 << 28;
/// The maximum number of pixels of an image.
pub(crate) const MAX_IMAGE_PIXELS: usize = 1 << 27;
/// The maximum side of an image.
pub(crate) const MAX_SIDE_PIXELS: usize = 65_535;
/// The bytes that decoding may take however short the file is: 64 megapixels in colour.
const MAX_BYTES_OF_ANY_FILE: usize = 192 << 20;
/// The bytes that decoding may take for each byte of a longer file. A photograph of 108 megapixels in 24 MB,
/// as a phone writes it, takes 14 as baseline JPEG; as progressive JPEG 27 with subsampled colours, and 41
/// without. Compressed for the web, photographs have a quarter of that length. The shortest possible baseline
/// JPEG takes 256 or more.
const MAX_BYTES_PER_FILE_BYTE: usize = 128;

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
    WebP,
}

impl Format {
    pub(super) fn detect(file: &[u8]) -> Result<Self, String> {
        match file {
            [] => Err("the file is empty".to_owned()),
            [0xff, 0xd8, 0xff, ..] => Ok(Self::Jpeg),
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Ok(Self::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Ok(Self::WebP),
            _ => Err(match unsupported_format(file) {
                Some(name) => format!("{name}, which is not supported: convert it to JPEG or PNG"),
                None => "not a JPEG, PNG or WebP file".to_owned(),
            }),
        }
    }
}

/// Returns whether a file, of which `head` is the beginning, is an image by its content, of a format that is
/// decoded or another one.
pub(crate) fn looks_like_image(head: &[u8]) -> bool {
    Format::detect(head).is_ok() || unsupported_format(head).is_some()
}

/// The number of bytes at the beginning of a file that identify its format.
pub(crate) const FORMAT_BYTES: usize = 64;

/// The name of a known image format that is not decoded, with its article.
fn unsupported_format(file: &[u8]) -> Option<&'static str> {
    // ISO/IEC 14496-12: the length of a box of this type, then its major brand, a version, and compatible
    // brands.
    if let [a, b, c, d, b'f', b't', b'y', b'p', box_content @ ..] = file {
        let length = (u32::from_be_bytes([*a, *b, *c, *d]) as usize).saturating_sub(8);
        let brands = &box_content[..length.min(box_content.len())];
        let has =
            |names: &[&[u8; 4]]| brands.chunks_exact(4).any(|brand| names.iter().any(|name| brand == *name));
        return if has(&[b"avif", b"avis"]) {
            Some("an AVIF image")
        } else if has(&[b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx"]) {
            Some("a HEIC image")
        } else if has(&[b"mif1", b"msf1"]) {
            Some("a HEIF image")
        } else {
            None
        };
    }
    match file {
        [b'G', b'I', b'F', b'8', ..] => Some("a GIF image"),
        [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => Some("a TIFF image"),
        // The two reserved fields of the header are zero.
        [b'B', b'M', _, _, _, _, 0, 0, 0, 0, ..] => Some("a BMP image"),
        [0xff, 0x0a, ..] | [0, 0, 0, 12, b'J', b'X', b'L', b' ', ..] => Some("a JPEG XL image"),
        [0, 0, 0, 12, b'j', b'P', b' ', b' ', ..] => Some("a JPEG 2000 image"),
        _ => None,
    }
}

/// The file extension of the format of a file.
pub(crate) fn extension(file: &[u8]) -> Result<&'static str, String> {
    Ok(match Format::detect(file)? {
        Format::Jpeg => "jpg",
        Format::Png => "png",
        Format::WebP => "webp",
    })
}

/// The number of bytes of the pixels, unless these and `kept_bytes`, which the decoder keeps until the end,
/// are too many for a file of `file_bytes` bytes.
pub(super) fn pixel_bytes(
    [height, width]: [usize; 2],
    channels: usize,
    kept_bytes: usize,
    file_bytes: usize,
) -> Result<usize, String> {
    let pixels = height.checked_mul(width).filter(|&pixels| pixels <= MAX_IMAGE_PIXELS);
    match pixels {
        Some(0) => Err(format!("the image is {height}×{width}")),
        Some(pixels) => {
            check_memory([height, width], pixels * channels + kept_bytes, file_bytes)?;
            Ok(pixels * channels)
        }
        None => Err(format!("the image is {height}×{width}: more than {MAX_IMAGE_PIXELS} pixels")),
    }
}

/// Checks the bytes that decoding takes. Sizes of a header are free, so a short file could claim any memory:
/// above [`MAX_BYTES_OF_ANY_FILE`], the file must be in proportion. The machine's memory does not count,
/// because a data set should be as valid on every machine.
fn check_memory([height, width]: [usize; 2], bytes: usize, file_bytes: usize) -> Result<(), String> {
    if bytes <= MAX_BYTES_OF_ANY_FILE.max(file_bytes.saturating_mul(MAX_BYTES_PER_FILE_BYTE)) {
        return Ok(());
    }
    Err(format!(
        "the image is {height}×{width}: decoding takes {} MiB, but at most {} MiB are allowed, or \
         {MAX_BYTES_PER_FILE_BYTE} times the file's {file_bytes} bytes",
        bytes.div_ceil(1 << 20),
        MAX_BYTES_OF_ANY_FILE >> 20
    ))
}

/// Keeps the first `kept` of the `stored` bytes of each pixel, which drops transparency. In place, from the
/// front, so that reads stay ahead of writes.
pub(super) fn keep_first_bytes(pixels: &mut Vec<u8>, stored: usize, kept: usize) {
    if stored <= kept {
        return;
    }
    let count = pixels.len() / stored;
    for pixel in 0..count {
        pixels.copy_within(pixel * stored..pixel * stored + kept, pixel * kept);
    }
    pixels.truncate(count * kept);
}

/// Checks that a file can contain its image, which takes at least `min_bytes` bytes.
pub(super) fn check_length(
    [height, width]: [usize; 2],
    min_bytes: usize,
    file_bytes: usize,
) -> Result<(), String> {
    if min_bytes <= file_bytes {
        return Ok(());
    }
    Err(format!(
        "the file ends before the image does: {height}×{width} pixels take at least {min_bytes} bytes, but \
         the file has {file_bytes}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes per pixel of pixels and coefficients: 6 for progressive JPEG with subsampled colours, 9 without.
    #[test]
    fn compressed_photographs_and_masks_are_in_proportion() {
        for (megapixels, bytes_per_pixel, file_bytes) in [
            // 0.6 bits per pixel.
            (24, 9, 1_800_000),
            // A quarter of the phone's file.
            (108, 6, 6_000_000),
            // The colours of a mask's classes as PNG, with a ratio of 120.
            (100, 3, 2_500_000),
            // Classes in one byte, with any ratio; in two.
            (134, 1, 130_000),
            (100, 2, 200_000),
        ] {
            let checked = check_memory([0, 0], megapixels * 1_000_000 * bytes_per_pixel, file_bytes);
            assert_eq!(checked, Ok(()), "{megapixels} megapixels in {file_bytes} bytes");
        }
        assert!(check_memory([0, 0], 300 << 20, 2 << 20).is_err());
    }
}
