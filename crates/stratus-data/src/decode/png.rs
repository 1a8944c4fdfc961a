//! PNG, by the `png` crate.

use std::io::Cursor;

use png::{BitDepth, ColorType, DecodeOptions, Decoder, Limits, Reader, Transformations};

use super::{Decoded, LARGEST_IMAGE, LONGEST_SIDE, exif, pixel_bytes};

/// Reads all chunks before the pixels.
pub(super) fn open(file: &[u8], changes: Transformations) -> Result<Reader<Cursor<&[u8]>>, String> {
    let options = DecodeOptions::default();
    let mut decoder = Decoder::new_with_options(Cursor::new(file), options);
    decoder.set_limits(Limits { bytes: LARGEST_IMAGE * 8 });
    decoder.set_transformations(changes);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let reader = decoder.read_info().map_err(|error| format!("not a PNG that can be decoded: {error}"))?;
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

fn begin(file: &[u8]) -> Result<Reader<Cursor<&[u8]>>, String> {
    // Palettes and fewer than 8 bits to 8, 16 bits to 8.
    open(file, Transformations::EXPAND | Transformations::STRIP_16)
}

/// Reads the header: height and width.
pub(super) fn header(file: &[u8]) -> Result<[usize; 2], String> {
    let reader = begin(file)?;
    Ok([reader.info().height as usize, reader.info().width as usize])
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
    // The chunks after the image, up to the last, must be complete too.
    reader.finish().map_err(failed)?;
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
