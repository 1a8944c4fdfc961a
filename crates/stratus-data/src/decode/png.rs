//! PNG decoding, by the `png` crate.

use std::borrow::Cow;
use std::io::Cursor;

use png::{BitDepth, ColorType, DecodeOptions, Decoder, Limits, Reader, Transformations};

use super::exif;
use super::image::{Decoded, MAX_IMAGE_PIXELS, MAX_SIDE_PIXELS, check_length, keep_first_bytes, pixel_bytes};

/// The maximum ratio of deflate: a match of 258 bytes takes at least two bits.
const MAX_DEFLATE_RATIO: usize = 1032;

/// The bytes that are decoded: the file itself, or its needed chunks.
pub(super) type Source<'a> = Cursor<Cow<'a, [u8]>>;

/// Reads all chunks before the pixels. Like in libpng, invalid chunks that the image does not need are
/// ignored, and image data end at the first other chunk.
pub(super) fn open(file: &[u8], changes: Transformations) -> Result<Reader<Source<'_>>, String> {
    let file = strip_ignorable_chunks(file).map_or(Cow::Borrowed(file), Cow::Owned);
    let reader = read_info(file, changes);
    let reader = reader.map_err(|error| format!("not a supported PNG: {error}"))?;
    // Palette entries have three bytes (PNG, third edition, 11.2.2), but the `png` crate assumes that the
    // last one is complete.
    match &reader.info().palette {
        Some(palette) if !palette.len().is_multiple_of(3) => Err(format!(
            "not a supported PNG: a palette of {} bytes, which is not a multiple of 3",
            palette.len()
        )),
        _ => Ok(reader),
    }
}

fn read_info(
    file: Cow<'_, [u8]>,
    changes: Transformations,
) -> Result<Reader<Source<'_>>, png::DecodingError> {
    let mut options = DecodeOptions::default();
    // The checksum detects wrong pixels.
    options.set_ignore_adler32(false);
    let mut decoder = Decoder::new_with_options(Cursor::new(file), options);
    decoder.set_limits(Limits { bytes: MAX_IMAGE_PIXELS * 8 });
    decoder.set_transformations(changes);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.read_info()
}

/// The chunks of a file: their name, and their bytes including the header and the checksum.
fn chunks(file: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    let mut rest = file.get(8..).unwrap_or_default();
    std::iter::from_fn(move || {
        let [length, kind] = *rest.first_chunk::<8>()?.as_chunks::<4>().0.first_chunk::<2>()?;
        // The length, the name and the checksum take four bytes each.
        let chunk_len = (u32::from_be_bytes(length) as usize).checked_add(12)?;
        let (chunk, remaining) = rest.split_at_checked(chunk_len)?;
        rest = remaining;
        Some((kind, chunk))
    })
}

/// An empty palette chunk, with its checksum.
const EMPTY_PALETTE: &[u8] = b"\0\0\0\0PLTE\x4b\xa8\x89\x55";

/// A copy of the file without an unused empty palette, and without image data after other chunks; `None` if
/// it has neither.
fn strip_ignorable_chunks(file: &[u8]) -> Option<Vec<u8>> {
    const INDEXED: u8 = 3;
    // The colour type is the tenth byte of the header, after the signature, its length and its name.
    let indexed = file.get(8 + 8 + 9) == Some(&INDEXED);
    let is_data = |kind: &[u8; 4]| kind == b"IDAT";
    let kinds = chunks(file).map(|(kind, _)| kind);
    let mut after_data = kinds.skip_while(|kind| !is_data(kind)).skip_while(is_data);
    let is_split = after_data.any(|kind| kind == *b"IDAT");
    let empty = |kind, chunk: &[u8]| kind == *b"PLTE" && chunk == EMPTY_PALETTE && !indexed;
    if !is_split && !chunks(file).any(|(kind, chunk)| empty(kind, chunk)) {
        return None;
    }
    let mut needed = file.get(..8)?.to_vec();
    let (mut data, mut after_data) = (false, false);
    for (kind, chunk) in chunks(file) {
        let is_data = kind == *b"IDAT";
        after_data |= data && !is_data;
        data |= is_data;
        if !(empty(kind, chunk) || is_data && after_data) {
            needed.extend_from_slice(chunk);
        }
    }
    Some(needed)
}

fn begin(file: &[u8]) -> Result<Reader<Source<'_>>, String> {
    // Expand palettes and fewer than 8 bits, and strip 16 bits to 8.
    open(file, Transformations::EXPAND | Transformations::STRIP_16)
}

/// Reads the header of a file of `file_bytes` bytes, of which `head` is the beginning: height and width.
pub(super) fn header(head: &[u8], file_bytes: usize) -> Result<[usize; 2], String> {
    let reader = begin(head)?;
    let (colour, _) = reader.output_color_type();
    let size = size(&reader, file_bytes)?;
    pixel_bytes(size, colour.samples(), 0, file_bytes)?;
    Ok(size)
}

/// The height and width of an image that a file of `file_bytes` bytes can contain.
pub(super) fn size(reader: &Reader<Source<'_>>, file_bytes: usize) -> Result<[usize; 2], String> {
    let info = reader.info();
    let [height, width] = [info.height as usize, info.width as usize];
    if height.max(width) > MAX_SIDE_PIXELS {
        return Err(format!(
            "the image is {height}×{width}, but the maximum side is {MAX_SIDE_PIXELS} pixels"
        ));
    }
    let stored_bytes = height * width * info.bits_per_pixel() / 8;
    check_length([height, width], stored_bytes / MAX_DEFLATE_RATIO, file_bytes)?;
    Ok([height, width])
}

/// The number of bytes of pixels with `bytes` bytes each, unless these are too many for the file. The cause
/// of a truncated file is its end.
pub(super) fn buffer_bytes(size: [usize; 2], bytes: usize, file: &[u8]) -> Result<usize, String> {
    pixel_bytes(size, bytes, 0, file.len()).map_err(|problem| {
        if has_last_chunk(file) { problem } else { "the file ends before the image does".to_owned() }
    })
}

/// Reads the rest of the image data and the chunks after it, which must all be present. Errors in trailing
/// chunks are ignored (libpng only warns). An unknown critical chunk is an error (PNG, third edition, 13.2).
pub(super) fn finish(reader: &mut Reader<Source<'_>>, file: &[u8]) -> Result<(), String> {
    let failed = |problem: &str| Err(format!("cannot decode the PNG: {problem}"));
    let known = |kind: &[u8; 4]| [b"IHDR", b"PLTE", b"IDAT", b"IEND"].contains(&kind);
    let kinds = || chunks(file).map(|(kind, _)| kind).take_while(|kind| kind != b"IEND");
    if let Some(kind) = kinds().find(|kind| kind[0].is_ascii_uppercase() && !known(kind)) {
        return failed(&format!("unsupported critical chunk {}", kind.escape_ascii()));
    }
    match reader.finish().map_err(|error| error.to_string()) {
        // Only errors in the compressed pixels, or a missing last chunk, are fatal.
        Err(problem) if problem.contains("deflate") || !has_last_chunk(file) => failed(&problem),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Returns whether a file has its last chunk, IEND.
fn has_last_chunk(file: &[u8]) -> bool {
    chunks(file).any(|(kind, _)| kind == *b"IEND")
}

/// Returns whether `tail` contains the last chunk, which is always the same.
pub(super) fn has_end_marker(tail: &[u8]) -> bool {
    tail.windows(8).rev().any(|chunk| chunk == b"IEND\xae\x42\x60\x82")
}

pub(super) fn decode(file: &[u8], pixels: &mut Vec<u8>) -> Result<Decoded, String> {
    let mut reader = begin(file)?;
    let failed = |error| format!("cannot decode the PNG: {error}");
    let [height, width] = size(&reader, file.len())?;
    let (colour, depth) = reader.output_color_type();
    if depth != BitDepth::Eight {
        return Err(format!("the PNG has {depth:?} bits per channel"));
    }
    let (stored, channels) = match colour {
        ColorType::Grayscale => (1, 1),
        ColorType::GrayscaleAlpha => (2, 1),
        ColorType::Rgb => (3, 3),
        ColorType::Rgba => (4, 3),
        ColorType::Indexed => return Err("the PNG has no palette".to_owned()),
    };
    pixels.resize(buffer_bytes([height, width], stored, file)?, 0);
    reader.next_frame(pixels).map_err(failed)?;
    finish(&mut reader, file)?;
    keep_first_bytes(pixels, stored, channels);
    let orientation = reader.info().exif_metadata.as_deref().map(exif::orientation).unwrap_or_default();
    Ok(Decoded { shape: [channels, height, width], dct_scaled: None, orientation })
}
