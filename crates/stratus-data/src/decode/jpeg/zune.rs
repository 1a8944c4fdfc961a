//! Decoding by zune-jpeg, a vectorised decoder in Rust.
//!
//! It runs in strict mode, in which a truncated file is an error. If only the first rows are needed, the
//! height in the header is reduced: baseline files store rows from top to bottom, so the rest is not decoded.

use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::segments::{Frame, SOS, segments};
use crate::decode::image::{Decoded, MAX_SIDE_PIXELS};
use crate::geometry::{Orientation, Region};

type Decoder<'a> = JpegDecoder<ZCursor<&'a [u8]>>;

fn begin(file: &[u8]) -> Result<Decoder<'_>, String> {
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(MAX_SIDE_PIXELS)
        .set_max_height(MAX_SIDE_PIXELS)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    decoder.decode_headers().map_err(|error| format!("not a supported JPEG: {error:?}"))?;
    Ok(decoder)
}

/// Reads the header: height and width.
pub(super) fn header(file: &[u8]) -> Result<[usize; 2], String> {
    let (width, height) = begin(file)?.dimensions().ok_or("the JPEG has no size")?;
    Ok([height, width])
}

/// SOF markers: baseline and extended sequential, both Huffman-coded.
const SEQUENTIAL: [u8; 2] = [0xc0, 0xc1];

/// A sequential frame, with rows coded from top to bottom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BaselineFrame {
    /// The offset of the height in the file.
    height_at: usize,
    height: usize,
    mcu_rows: usize,
}

/// The frame of a file with one interleaved scan; `None` for progressive files.
fn baseline_frame(file: &[u8]) -> Option<BaselineFrame> {
    let mut frame = None;
    for (marker, begin, content) in segments(file) {
        match (marker, content) {
            // Precision, height, width, number of components; for each component its id, sampling factors and
            // quantisation table.
            (marker, [_, high, low, _, _, count, components @ ..]) if SEQUENTIAL.contains(&marker) => {
                let factors = components.chunks_exact(3).map(|component| usize::from(component[1] & 15));
                let mcu_rows = 8 * factors.max().unwrap_or(1);
                let height = usize::from(u16::from_be_bytes([*high, *low]));
                frame = Some((BaselineFrame { height_at: begin + 5, height, mcu_rows }, *count));
            }
            (SOS, [in_scan, ..]) => {
                return frame.filter(|(_, count)| count == in_scan).map(|(frame, _)| frame);
            }
            _ => {}
        }
    }
    None
}

/// Reads the headers.
fn describe(file: &[u8], orientation: Orientation) -> Result<(Decoder<'_>, Decoded), String> {
    let decoder = begin(file)?;
    let channels = if decoder.input_colorspace() == Some(ColorSpace::Luma) { 1 } else { 3 };
    let (width, height) = decoder.dimensions().ok_or("the JPEG has no size")?;
    // The memory was checked for this frame.
    if Frame::read(file).is_none_or(|frame| frame.size != [height, width]) {
        return Err("the JPEG has several frames".to_owned());
    }
    Ok((decoder, Decoded { shape: [channels, height, width], dct_scaled: None, orientation }))
}

pub(super) fn decode(file: &[u8], orientation: Orientation, pixels: &mut Vec<u8>) -> Result<Decoded, String> {
    let (decoder, decoded) = describe(file, orientation)?;
    decode_all(decoder, decoded.shape[0], pixels)?;
    Ok(decoded)
}

/// Decodes the rows down to the end of the region that `region` returns. If these are not all, `file` is
/// modified temporarily.
pub(super) fn decode_rows(
    file: &mut [u8],
    orientation: Orientation,
    pixels: &mut Vec<u8>,
    region: &dyn Fn(&Decoded) -> Region,
) -> Result<Decoded, String> {
    let (decoder, decoded) = describe(file, orientation)?;
    let [channels, height, _] = decoded.shape;
    let rows = region(&decoded).rows.end;
    let shorter = baseline_frame(file).and_then(|frame| {
        // Chroma may be subsampled vertically: its interpolation reads the next MCU row.
        let rows = (rows.max(1).div_ceil(frame.mcu_rows) + 1) * frame.mcu_rows;
        u16::try_from(rows).ok().filter(|_| frame.height == height && rows < height).map(|rows| (frame, rows))
    });
    let Some((frame, rows)) = shorter else {
        decode_all(decoder, channels, pixels)?;
        return Ok(decoded);
    };
    let height_bytes = frame.height_at..frame.height_at + 2;
    file[height_bytes.clone()].copy_from_slice(&rows.to_be_bytes());
    let outcome = begin(file).and_then(|decoder| decode_all(decoder, channels, pixels));
    file[height_bytes].copy_from_slice(&(height as u16).to_be_bytes());
    outcome.map(|()| decoded)
}

fn decode_all(mut decoder: Decoder<'_>, channels: usize, pixels: &mut Vec<u8>) -> Result<(), String> {
    if channels == 1 {
        let options = decoder.options().jpeg_set_out_colorspace(ColorSpace::Luma);
        decoder.set_options(options);
    }
    let (width, height) = decoder.dimensions().ok_or("the JPEG has no size")?;
    pixels.resize(height * width * channels, 0);
    decoder.decode_into(pixels).map_err(|error| format!("cannot decode the JPEG: {error:?}"))
}
