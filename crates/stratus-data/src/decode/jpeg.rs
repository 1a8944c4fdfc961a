//! JPEG by zune-jpeg, a decoder without C that uses vector instructions.
//!
//! Where only the first rows of an image are wanted, the decoder is told that the image has no more: most files hold their rows from top to
//! bottom, so that what is below needs no decoding.

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

/// Reads the header: height and width.
pub(super) fn header(file: &[u8]) -> Result<[usize; 2], String> {
    let (width, height) = begin(file)?.dimensions().ok_or("the JPEG has no size")?;
    Ok([height, width])
}

/// The segments before the entropy-coded data, up to the first scan's, SOS: marker, and what follows the length (ITU-T T.81, annex B).
fn segments(file: &[u8]) -> impl Iterator<Item = (u8, usize, &[u8])> {
    let mut at = 2;
    std::iter::from_fn(move || {
        loop {
            let begin = at;
            match *file.get(at..at + 4)? {
                // Any number of bytes 0xff may stand before a marker.
                [0xff, 0xff, ..] => at += 1,
                [0xff, marker, high, low] => {
                    let length = usize::from(u16::from_be_bytes([high, low]));
                    // Behind the first scan's header are no segments.
                    at = if marker == SOS { file.len() } else { begin + 2 + length };
                    return Some((
                        marker,
                        begin,
                        file.get(begin + 4..begin + 2 + length).unwrap_or_default(),
                    ));
                }
                _ => return None,
            }
        }
    })
}

/// Start of scan.
const SOS: u8 = 0xda;
/// Start of frame: baseline, and extended sequential, both by Huffman codes.
const SEQUENTIAL: [u8; 2] = [0xc0, 0xc1];

/// Where the first scan begins.
fn first_scan(file: &[u8]) -> Option<usize> {
    segments(file).find(|(marker, ..)| *marker == SOS).map(|(_, begin, _)| begin)
}

/// A frame whose rows are coded from top to bottom: where its height stands in the file, the height, and the rows of a row of minimum coded
/// units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TopDown {
    height_at: usize,
    height: usize,
    unit: usize,
}

/// The frame of a file whose one scan has all components one beside the other; none of a progressive file.
fn top_down(file: &[u8]) -> Option<TopDown> {
    let mut frame = None;
    for (marker, begin, content) in segments(file) {
        match (marker, content) {
            // Bits a sample, height, width, number of components; of each component its name, both sampling factors, and a table.
            (marker, [_, high, low, _, _, count, components @ ..]) if SEQUENTIAL.contains(&marker) => {
                let factors = components.chunks_exact(3).map(|component| usize::from(component[1] & 15));
                let unit = 8 * factors.max().unwrap_or(1);
                let height = usize::from(u16::from_be_bytes([*high, *low]));
                frame = Some((TopDown { height_at: begin + 5, height, unit }, *count));
            }
            (SOS, [in_scan, ..]) => {
                return frame.filter(|(_, count)| count == in_scan).map(|(frame, _)| frame);
            }
            _ => {}
        }
    }
    None
}

/// Whether the mark of the end, EOI, stands in the `tail` of a file of `bytes` and behind the beginning of its first scan, which must be in
/// its `head`. A thumbnail in front of it has such a mark too.
pub(super) fn ends(head: &[u8], tail: &[u8], bytes: usize) -> bool {
    let Some(scan) = first_scan(head) else { return false };
    let behind = tail.get((scan + tail.len()).saturating_sub(bytes)..).unwrap_or_default();
    behind.windows(2).rev().any(|pair| pair == [0xff, 0xd9])
}

/// What stands in the headers of a file that is whole.
fn describe(file: &[u8]) -> Result<(Decoder<'_>, Decoded), String> {
    let decoder = begin(file)?;
    // The decoder itself does not see that the last rows are missing.
    if !ends(file, file, file.len()) {
        return Err("the file ends before the image does".to_owned());
    }
    let channels = if decoder.input_colorspace() == Some(ColorSpace::Luma) { 1 } else { 3 };
    let (width, height) = decoder.dimensions().ok_or("the JPEG has no size")?;
    let orientation = decoder.exif().map(|exif| exif::orientation(exif)).unwrap_or_default();
    Ok((decoder, Decoded { shape: [channels, height, width], orientation }))
}

pub(super) fn decode(file: &[u8], pixels: &mut Vec<u8>) -> Result<Decoded, String> {
    let (decoder, decoded) = describe(file)?;
    decode_all(decoder, decoded.shape[0], pixels)?;
    Ok(decoded)
}

/// Decodes at least the rows that `wanted` asks for, from the first; where those are not all, `file` is changed for a while.
pub(super) fn decode_rows(
    file: &mut [u8],
    pixels: &mut Vec<u8>,
    wanted: &dyn Fn(&Decoded) -> usize,
) -> Result<Decoded, String> {
    let (decoder, decoded) = describe(file)?;
    let [channels, height, _] = decoded.shape;
    let rows = wanted(&decoded);
    let shorter = top_down(file).and_then(|frame| {
        // Colours may be stored with fewer rows than the image; what is interpolated between them looks at the next unit's.
        let rows = (rows.max(1).div_ceil(frame.unit) + 1) * frame.unit;
        u16::try_from(rows).ok().filter(|_| frame.height == height && rows < height).map(|rows| (frame, rows))
    });
    let Some((frame, rows)) = shorter else {
        decode_all(decoder, channels, pixels)?;
        return Ok(decoded);
    };
    let place = frame.height_at..frame.height_at + 2;
    file[place.clone()].copy_from_slice(&rows.to_be_bytes());
    let outcome = begin(file).and_then(|decoder| decode_all(decoder, channels, pixels));
    file[place].copy_from_slice(&(height as u16).to_be_bytes());
    outcome.map(|()| decoded)
}

fn decode_all(mut decoder: Decoder<'_>, channels: usize, pixels: &mut Vec<u8>) -> Result<(), String> {
    if channels == 1 {
        let options = decoder.options().jpeg_set_out_colorspace(ColorSpace::Luma);
        decoder.set_options(options);
    }
    let (width, height) = decoder.dimensions().ok_or("the JPEG has no size")?;
    pixels.resize(pixel_bytes(height, width, channels)?, 0);
    decoder.decode_into(pixels).map_err(|error| format!("the JPEG cannot be decoded: {error:?}"))
}
