//! WebP decoding, by the `image-webp` crate: lossy and lossless images, and the first frame of animations.
//!
//! The container is that of RIFF: chunks with a name and a length (RFC 9649, section 2). Its length is stored
//! at the beginning, so a truncated file is detected before it is decoded.
//!
//! Memory is in proportion to the file as for other formats, except the code tables of lossless images: a
//! hostile file can make them about 600 times its length.

use std::borrow::Cow;
use std::io::Cursor;

use image_webp::WebPDecoder;

use super::exif;
use super::image::{Decoded, MAX_SIDE_PIXELS, check_length, keep_first_bytes, pixel_bytes};

/// Bytes before the first chunk: `RIFF`, the length of the rest, `WEBP`.
const HEAD_BYTES: usize = 12;
/// The bytes of a chunk before its content: name and length.
const CHUNK_HEAD_BYTES: usize = 8;
/// The offset of the flags of an extended image: they are the first byte of its first chunk.
const FLAGS_AT: usize = HEAD_BYTES + CHUNK_HEAD_BYTES;
const ANIMATION_FLAG: u8 = 1 << 1;
const XMP_FLAG: u8 = 1 << 2;
const EXIF_FLAG: u8 = 1 << 3;
const ALPHA_FLAG: u8 = 1 << 4;
/// The bytes of an animation's frame before its chunks.
const FRAME_HEAD_BYTES: usize = 16;
/// Channels of a decoded image: transparency is dropped, and WebP has no grey images.
const CHANNELS: usize = 3;
/// The side of the blocks that lossy images are coded in. Each takes at least a bit.
const BLOCK_SIDE_PIXELS: usize = 16;

/// The compression of the pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    Lossy,
    Lossless,
    /// A sequence of frames of either kind.
    Animation,
}

impl Compression {
    /// The bytes per pixel that decoding takes beside the pixels themselves: the planes of brightness and
    /// colour; for lossless images all four channels, and blocks with their transformations; for animations a
    /// frame with its planes and its transparency, and the canvas.
    fn kept_bytes_per_pixel(self) -> usize {
        match self {
            Self::Lossy => 2,
            Self::Lossless => 6,
            Self::Animation => 16,
        }
    }
}

/// The properties in the first chunk of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    height: usize,
    width: usize,
    compression: Compression,
    /// The bytes of the whole file.
    file_bytes: usize,
}

impl Header {
    /// Reads the header from the beginning of a file.
    fn read(head: &[u8]) -> Result<Self, String> {
        let invalid = || "the WebP has no valid header".to_owned();
        let length = little_endian(head, 4, 4).ok_or_else(invalid)?;
        let file_bytes = length.saturating_add(8);
        let content = head.get(FLAGS_AT..).unwrap_or_default();
        let header = |height, width, compression| Self { height, width, compression, file_bytes };
        let header = match head.get(HEAD_BYTES..HEAD_BYTES + 4) {
            Some(b"VP8 ") => {
                lossy_size(content).map(|[height, width]| header(height, width, Compression::Lossy))
            }
            // A signature, then 14 bits of each side minus one.
            Some(b"VP8L") => little_endian(content, 1, 4)
                .map(|sides| header((sides >> 14 & 0x3fff) + 1, (sides & 0x3fff) + 1, Compression::Lossless)),
            // Flags and three reserved bytes, then three bytes of each side minus one.
            Some(b"VP8X") => {
                let sides = little_endian(content, 7, 3).zip(little_endian(content, 4, 3));
                sides.zip(content.first()).map(|((height, width), flags)| {
                    let compression = match chunks(head).find(|(kind, _)| is_image_data(*kind)) {
                        _ if flags & ANIMATION_FLAG != 0 => Compression::Animation,
                        Some((kind, _)) if kind == *b"VP8 " => Compression::Lossy,
                        // The image may follow metadata that are longer than the beginning of the file.
                        _ => Compression::Lossless,
                    };
                    header(height + 1, width + 1, compression)
                })
            }
            _ => None,
        };
        header.ok_or_else(invalid)
    }

    /// Checks that a file of `file_bytes` bytes is complete, and that its image is in proportion to it.
    /// Returns the bytes of the pixels.
    fn check(&self, file_bytes: usize) -> Result<usize, String> {
        if file_bytes < self.file_bytes {
            return Err("the file ends before the image does".to_owned());
        }
        let Self { height, width, compression, .. } = *self;
        if height.max(width) > MAX_SIDE_PIXELS {
            return Err(format!(
                "the image is {height}×{width}, but the maximum side is {MAX_SIDE_PIXELS} pixels"
            ));
        }
        if compression == Compression::Lossy {
            let blocks = height.div_ceil(BLOCK_SIDE_PIXELS) * width.div_ceil(BLOCK_SIDE_PIXELS);
            check_length([height, width], blocks / 8, file_bytes)?;
        }
        let kept = height.saturating_mul(width).saturating_mul(compression.kept_bytes_per_pixel());
        pixel_bytes([height, width], CHANNELS, kept, file_bytes)
    }

    /// Checks that the image is complete, and that a lossy frame has the size that the file declares: the
    /// decoder takes memory for the size in the frame.
    fn check_frame(&self, file: &[u8]) -> Result<(), String> {
        let missing = || "the WebP has no complete image".to_owned();
        let mut size = [self.height, self.width];
        let frame = if self.compression == Compression::Animation {
            // Position, then three bytes of each side minus one, duration and flags; then transparency, if
            // the frame has some, and the image.
            let (_, content) = chunks(file).find(|(kind, _)| kind == b"ANMF").ok_or_else(missing)?;
            let side = |at| little_endian(content, at, 3).map(|side| side + 1);
            size = side(9).zip(side(6)).map(|(height, width)| [height, width]).ok_or_else(missing)?;
            let mut parts = chunks_in(content.get(FRAME_HEAD_BYTES..).unwrap_or_default());
            match parts.next().ok_or_else(missing)? {
                (kind, _) if kind == *b"ALPH" => parts.next().map(|(_, frame)| (*b"VP8 ", frame)),
                frame => Some(frame),
            }
        } else {
            chunks(file).find(|(kind, _)| is_image_data(*kind))
        };
        match frame.ok_or_else(missing)? {
            (kind, frame) if kind == *b"VP8 " && lossy_size(frame) != Some(size) => {
                Err(format!("the WebP has an image of another size than {}×{}", size[0], size[1]))
            }
            _ => Ok(()),
        }
    }
}

/// The height and width of a lossy frame: after a tag of three bytes and a start code, 14 bits of each side.
fn lossy_size(frame: &[u8]) -> Option<[usize; 2]> {
    let side = |at| little_endian(frame, at, 2).map(|side| side & 0x3fff);
    Some([side(8)?, side(6)?])
}

/// The number of `width` bytes at an offset.
fn little_endian(bytes: &[u8], at: usize, width: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + width)?;
    Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte)))
}

/// The chunks of a file: name and content. A truncated chunk ends them.
fn chunks(file: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    chunks_in(file.get(HEAD_BYTES..).unwrap_or_default())
}

/// The chunks in the content of a file or of a frame.
fn chunks_in(mut rest: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let kind = *rest.first_chunk::<4>()?;
        let bytes = little_endian(rest, 4, 4)?;
        let end = CHUNK_HEAD_BYTES.checked_add(bytes)?;
        let content = rest.get(CHUNK_HEAD_BYTES..end)?;
        // Contents of odd length are padded; the padding of the last one may be missing.
        rest = rest.get(end.next_multiple_of(2)..).unwrap_or_default();
        Some((kind, content))
    })
}

fn is_image_data(kind: [u8; 4]) -> bool {
    matches!(&kind, b"VP8 " | b"VP8L")
}

/// Reads the header of a file of `file_bytes` bytes, of which `head` is the beginning: height and width. The
/// file must be complete.
pub(super) fn header(head: &[u8], file_bytes: usize) -> Result<[usize; 2], String> {
    let header = Header::read(head)?;
    header.check(file_bytes)?;
    Ok([header.height, header.width])
}

/// Returns whether the pixels of a file are exact.
pub(super) fn is_lossless(file: &[u8]) -> bool {
    let first = chunks(file).find(|(kind, _)| is_image_data(*kind) || kind == b"ANMF");
    first.is_some_and(|(kind, _)| kind == *b"VP8L")
}

/// The file without bytes after its end, and without flags of parts that the pixels do not need:
/// transparency, which is dropped, and metadata, which may be missing.
fn needed_parts(file: &[u8], file_bytes: usize) -> Cow<'_, [u8]> {
    let file = &file[..file_bytes.min(file.len())];
    let is_extended = file.get(HEAD_BYTES..HEAD_BYTES + 4) == Some(b"VP8X");
    match file.get(FLAGS_AT) {
        Some(flags) if is_extended && flags & (ALPHA_FLAG | EXIF_FLAG | XMP_FLAG) != 0 => {
            let mut needed = file.to_vec();
            needed[FLAGS_AT] &= !(ALPHA_FLAG | EXIF_FLAG | XMP_FLAG);
            Cow::Owned(needed)
        }
        _ => Cow::Borrowed(file),
    }
}

pub(super) fn decode(file: &[u8], pixels: &mut Vec<u8>) -> Result<Decoded, String> {
    let header = Header::read(file)?;
    let bytes = header.check(file.len())?;
    let Header { height, width, .. } = header;
    let failed = |error| format!("cannot decode the WebP: {error}");
    let needed = needed_parts(file, header.file_bytes);
    header.check_frame(&needed)?;
    let mut decoder = WebPDecoder::new(Cursor::new(needed.as_ref())).map_err(failed)?;
    if decoder.dimensions() != (width as u32, height as u32) {
        return Err(format!("the WebP has an image of another size than {height}×{width}"));
    }
    let stored = if decoder.has_alpha() { CHANNELS + 1 } else { CHANNELS };
    pixels.resize(bytes / CHANNELS * stored, 0);
    decoder.read_image(pixels).map_err(failed)?;
    keep_first_bytes(pixels, stored, CHANNELS);
    let exif = chunks(&needed).find(|(kind, _)| kind == b"EXIF");
    let orientation = exif.map(|(_, content)| exif::orientation(content)).unwrap_or_default();
    Ok(Decoded { shape: [CHANNELS, height, width], dct_scaled: None, orientation })
}
