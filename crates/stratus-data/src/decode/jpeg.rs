//! JPEG by zune-jpeg, a decoder without C that uses vector instructions.

use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::{Decoded, LONGEST_SIDE, exif, pixel_bytes};

type Decoder<'a> = JpegDecoder<ZCursor<&'a [u8]>>;

fn begin(file: &[u8]) -> Result<Decoder<'_>, String> {
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(LONGEST_SIDE)
        .set_max_height(LONGEST_SIDE)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    decoder.decode_headers().map_err(|error| format!("not a JPEG that can be decoded: {error:?}"))?;
    Ok(decoder)
}

/// Reads the header.
pub(super) fn header(file: &[u8]) -> Result<(), String> {
    begin(file).map(|_| ())
}

/// Where the first scan begins: the marker SOS, behind segments that tell their length (ITU-T T.81, annex B).
fn first_scan(file: &[u8]) -> Option<usize> {
    let mut at = 2;
    loop {
        match *file.get(at..at + 4)? {
            [0xff, 0xda, ..] => return Some(at),
            // Any number of bytes 0xff may stand before a marker.
            [0xff, 0xff, ..] => at += 1,
            [0xff, _, high, low] => at += 2 + usize::from(u16::from_be_bytes([high, low])),
            _ => return None,
        }
    }
}

/// Whether the mark of the end, EOI, stands in the `tail` of a file of `bytes` and behind the beginning of its first scan, which must be in
/// its `head`. A thumbnail in front of it has such a mark too.
pub(super) fn ends(head: &[u8], tail: &[u8], bytes: usize) -> bool {
    let Some(scan) = first_scan(head) else { return false };
    let behind = tail.get((scan + tail.len()).saturating_sub(bytes)..).unwrap_or_default();
    behind.windows(2).rev().any(|pair| pair == [0xff, 0xd9])
}

pub(super) fn decode(file: &[u8], pixels: &mut Vec<u8>) -> Result<Decoded, String> {
    let mut decoder = begin(file)?;
    // The decoder itself does not see that the last rows are missing.
    if !ends(file, file, file.len()) {
        return Err("the file ends before the image does".to_owned());
    }
    let grey = decoder.input_colorspace() == Some(ColorSpace::Luma);
    if grey {
        let options = decoder.options().jpeg_set_out_colorspace(ColorSpace::Luma);
        decoder.set_options(options);
    }
    let (width, height) = decoder.dimensions().ok_or("the JPEG has no size")?;
    let channels = if grey { 1 } else { 3 };
    let bytes = pixel_bytes(height, width, channels)?;
    pixels.resize(bytes, 0);
    decoder.decode_into(pixels).map_err(|error| format!("the JPEG cannot be decoded: {error:?}"))?;
    let orientation = decoder.exif().map(|exif| exif::orientation(exif)).unwrap_or_default();
    Ok(Decoded { shape: [channels, height, width], orientation })
}
