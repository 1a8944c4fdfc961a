//! By libjpeg-turbo. The region is decoded to pixels; data above and beside it are only entropy-decoded; data
//! below are not read.

use stratus_jpeg::{Header, Library, Limits, Reduction, Window};

pub(super) use stratus_jpeg::Decoder;

use crate::decode::{Decoded, LARGEST_IMAGE, LONGEST_SIDE};
use crate::transform::frame::{Orientation, Reduced, Region};

pub(super) fn decoder(library: &Library) -> Decoder {
    Decoder::new(library.clone(), Limits { side: LONGEST_SIDE, pixels: LARGEST_IMAGE })
}

/// Reads the header: height and width.
pub(super) fn header(decoder: &mut Decoder, file: &[u8]) -> Result<[usize; 2], String> {
    let Header { height, width, .. } =
        decoder.header(file).map_err(|error| format!("not a JPEG that can be decoded: {error}"))?;
    Ok([height, width])
}

/// Decodes the region that `wanted` returns, to its position among the first rows of the image.
pub(super) fn decode(
    decoder: &mut Decoder,
    file: &[u8],
    orientation: Orientation,
    pixels: &mut Vec<u8>,
    wanted: &dyn Fn(&Decoded) -> Region,
) -> Result<Decoded, String> {
    let describe = |&Header { height, width, colours }: &Header| Decoded {
        shape: [colours.channels(), height, width],
        reduced: None,
        orientation,
    };
    let window = |header: &Header| {
        let Region { rows, columns, reduction } = wanted(&describe(header));
        (Window { top: rows.start, bottom: rows.end, left: columns.start, right: columns.end }, reduction)
    };
    let (header, reduction) = decoder
        .decode_reduced(file, pixels, &window)
        .map_err(|error| format!("the JPEG cannot be decoded: {error}"))?;
    let decoded = describe(&header);
    if reduction == Reduction::Whole {
        return Ok(decoded);
    }
    let size = [header.height, header.width];
    let [height, width] = reduction.of(size);
    Ok(Decoded {
        shape: [decoded.shape[0], height, width],
        reduced: Some(Reduced { size, reduction }),
        ..decoded
    })
}
