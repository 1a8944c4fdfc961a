//! Decoding by libjpeg-turbo. Only the region is decoded to pixels; data above, left and right of it are only
//! entropy-decoded; data below are not read.

use stratus_jpeg::{DctScale, Header, Library, Limits, Window};

pub(super) use stratus_jpeg::Decoder;

use crate::decode::image::{Decoded, MAX_IMAGE_PIXELS, MAX_SIDE_PIXELS};
use crate::geometry::{DctScaled, Orientation, Region};

pub(super) fn decoder(library: &Library) -> Decoder {
    Decoder::new(library.clone(), Limits { max_side: MAX_SIDE_PIXELS, max_pixels: MAX_IMAGE_PIXELS })
}

/// Reads the header: height and width.
pub(super) fn header(decoder: &mut Decoder, file: &[u8]) -> Result<[usize; 2], String> {
    let Header { height, width, .. } =
        decoder.header(file).map_err(|error| format!("not a supported JPEG: {error}"))?;
    Ok([height, width])
}

/// Decodes the region that `region` returns, to its position among the first rows of the image.
pub(super) fn decode(
    decoder: &mut Decoder,
    file: &[u8],
    orientation: Orientation,
    pixels: &mut Vec<u8>,
    region: &dyn Fn(&Decoded) -> Region,
) -> Result<Decoded, String> {
    let describe = |&Header { height, width, pixel_format }: &Header| Decoded {
        shape: [pixel_format.channels(), height, width],
        dct_scaled: None,
        orientation,
    };
    let window = |header: &Header| {
        let Region { rows, columns, scale } = region(&describe(header));
        (Window { top: rows.start, bottom: rows.end, left: columns.start, right: columns.end }, scale)
    };
    let (header, scale) = decoder
        .decode_scaled(file, pixels, &window)
        .map_err(|error| format!("cannot decode the JPEG: {error}"))?;
    let decoded = describe(&header);
    if scale == DctScale::Full {
        return Ok(decoded);
    }
    let size = [header.height, header.width];
    let [height, width] = scale.scaled_size(size);
    Ok(Decoded {
        shape: [decoded.shape[0], height, width],
        dct_scaled: Some(DctScaled { original_size: size, scale }),
        ..decoded
    })
}
