//! PNG, by the `png` crate.

use std::borrow::Cow;
use std::io::Cursor;

use png::{BitDepth, ColorType, DecodeOptions, Decoder, Limits, Reader, Transformations};

use super::{Decoded, LARGEST_IMAGE, LONGEST_SIDE, exif, pixel_bytes};

/// A file that is being decoded: itself, or what of it the image needs.
pub(super) type Source<'a> = Cursor<Cow<'a, [u8]>>;

/// Reads all chunks before the pixels. As libpng does, chunks that cannot be and that the image does not need
/// are passed over, and image data that other chunks stand between end at the first of these.
pub(super) fn open(file: &[u8], changes: Transformations) -> Result<Reader<Source<'_>>, String> {
    let file = needed_chunks(file).map_or(Cow::Borrowed(file), Cow::Owned);
    let reader = read_info(file, changes);
    let reader = reader.map_err(|error| format!("not a PNG that can be decoded: {error}"))?;
    // Palette entries have three bytes (PNG, third edition, 11.2.2); the library assumes that the last one is
    // complete.
    match &reader.info().palette {
        Some(palette) if !palette.len().is_multiple_of(3) => Err(format!(
            "not a PNG that can be decoded: a palette of {} bytes, and a colour has 3",
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
    // Wrong pixels have a wrong sum.
    options.set_ignore_adler32(false);
    let mut decoder = Decoder::new_with_options(Cursor::new(file), options);
    decoder.set_limits(Limits { bytes: LARGEST_IMAGE * 8 });
    decoder.set_transformations(changes);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.read_info()
}

/// The chunks of a file, each with its bytes: what they are called, and where in the file they lie.
fn chunks(file: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    let mut rest = file.get(8..).unwrap_or_default();
    std::iter::from_fn(move || {
        let [length, kind] = *rest.first_chunk::<8>()?.as_chunks::<4>().0.first_chunk::<2>()?;
        // The length, the name and the sum take four bytes each.
        let whole = (u32::from_be_bytes(length) as usize).checked_add(12)?;
        let (chunk, behind) = rest.split_at_checked(whole)?;
        rest = behind;
        Some((kind, chunk))
    })
}

/// An empty palette, with its sum.
const EMPTY_PALETTE: &[u8] = b"\0\0\0\0PLTE\x4b\xa8\x89\x55";

/// The file without an empty palette that the pixels do not refer to, and without image data behind other
/// chunks than image data; `None` where it has neither.
fn needed_chunks(file: &[u8]) -> Option<Vec<u8>> {
    const INDEXED: u8 = 3;
    // The colour type is the tenth byte of the header, behind the signature, its length and its name.
    let indexed = file.get(8 + 8 + 9) == Some(&INDEXED);
    let run_of = |data: bool| move |kind: &[u8; 4]| (*kind == *b"IDAT") == data;
    let mut kinds = chunks(file).map(|(kind, _)| kind).skip_while(run_of(false)).skip_while(run_of(true));
    let split = kinds.any(|kind| kind == *b"IDAT");
    let empty = |kind, chunk: &[u8]| kind == *b"PLTE" && chunk == EMPTY_PALETTE && !indexed;
    if !split && !chunks(file).any(|(kind, chunk)| empty(kind, chunk)) {
        return None;
    }
    let mut needed = file.get(..8)?.to_vec();
    let (mut data, mut behind) = (false, false);
    for (kind, chunk) in chunks(file) {
        let is_data = kind == *b"IDAT";
        behind |= data && !is_data;
        data |= is_data;
        if !(empty(kind, chunk) || is_data && behind) {
            needed.extend_from_slice(chunk);
        }
    }
    Some(needed)
}

fn begin(file: &[u8]) -> Result<Reader<Source<'_>>, String> {
    // Palettes and fewer than 8 bits to 8, 16 bits to 8.
    open(file, Transformations::EXPAND | Transformations::STRIP_16)
}

/// Reads the header: height and width.
pub(super) fn header(file: &[u8]) -> Result<[usize; 2], String> {
    let reader = begin(file)?;
    Ok([reader.info().height as usize, reader.info().width as usize])
}

/// Reads what follows the last row: the rest of the image's data, and the chunks after it up to the last, all
/// of which must be there. What is wrong with these chunks does not change the image: libpng warns of it. A
/// chunk that a decoder has to know, and that nobody does, is an error (PNG, third edition, 13.2).
pub(super) fn finish(reader: &mut Reader<Source<'_>>, file: &[u8]) -> Result<(), String> {
    let failed = |problem: &str| Err(format!("the PNG cannot be decoded: {problem}"));
    let known = |kind: &[u8; 4]| [b"IHDR", b"PLTE", b"IDAT", b"IEND"].contains(&kind);
    let kinds = || chunks(file).map(|(kind, _)| kind).take_while(|kind| kind != b"IEND");
    if let Some(kind) = kinds().find(|kind| kind[0].is_ascii_uppercase() && !known(kind)) {
        return failed(&format!("it needs the chunk {}, which nothing knows", kind.escape_ascii()));
    }
    match reader.finish().map_err(|error| error.to_string()) {
        // Of the pixels, which are compressed.
        Err(problem) if problem.contains("deflate") || !has_last_chunk(file) => failed(&problem),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Whether a file has all of its chunks: the last is called IEND.
fn has_last_chunk(file: &[u8]) -> bool {
    chunks(file).any(|(kind, _)| kind == *b"IEND")
}

/// Whether `tail` has the last chunk, which is always the same.
pub(super) fn ends(tail: &[u8]) -> bool {
    tail.windows(8).rev().any(|chunk| chunk == b"IEND\xae\x42\x60\x82")
}

pub(super) fn decode(file: &[u8], pixels: &mut Vec<u8>) -> Result<Decoded, String> {
    let mut reader = begin(file)?;
    let failed = |error| format!("the PNG cannot be decoded: {error}");
    let (height, width) = (reader.info().height as usize, reader.info().width as usize);
    if height.max(width) > LONGEST_SIDE {
        return Err(format!("the image is {height}×{width}: longer than {LONGEST_SIDE} pixels"));
    }
    let (colour, depth) = reader.output_color_type();
    if depth != BitDepth::Eight {
        return Err(format!("the PNG has {depth:?} bits a channel"));
    }
    let (stored, channels) = match colour {
        ColorType::Grayscale => (1, 1),
        ColorType::GrayscaleAlpha => (2, 1),
        ColorType::Rgb => (3, 3),
        ColorType::Rgba => (4, 3),
        ColorType::Indexed => return Err("the PNG has no palette".to_owned()),
    };
    let bytes = pixel_bytes(height, width, stored)?;
    pixels.resize(bytes, 0);
    reader.next_frame(pixels).map_err(failed)?;
    finish(&mut reader, file)?;
    if stored > channels {
        // Without transparency, from the front: what is read is never behind what is written.
        for pixel in 0..height * width {
            pixels.copy_within(pixel * stored..pixel * stored + channels, pixel * channels);
        }
        pixels.truncate(height * width * channels);
    }
    let orientation = reader.info().exif_metadata.as_deref().map(exif::orientation).unwrap_or_default();
    Ok(Decoded { shape: [channels, height, width], reduced: None, orientation })
}
