//! PNG files in shards: images that were not files before, and masks, whose grey values are the classes.

use ::png::{BitDepth, ColorType, Encoder};

/// Encodes grey or interleaved RGB pixels as a PNG.
pub(super) fn encode(
    pixels: &[u8],
    channels: usize,
    [height, width]: [usize; 2],
    to: &mut Vec<u8>,
) -> Result<(), String> {
    let colour = match channels {
        1 => ColorType::Grayscale,
        3 => ColorType::Rgb,
        _ => return Err(format!("cannot write {channels} channels as PNG, only 1 or 3")),
    };
    let (Ok(w), Ok(h)) = (u32::try_from(width), u32::try_from(height)) else {
        return Err(format!("{height}×{width} exceeds the size limit of PNG"));
    };
    to.clear();
    let failed = |error| format!("cannot write the image as PNG: {error}");
    let mut encoder = Encoder::new(to, w, h);
    encoder.set_color(colour);
    encoder.set_depth(BitDepth::Eight);
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(pixels).map_err(failed)?;
    writer.finish().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{LabelPixels, decode_labels};

    #[test]
    fn masks_round_trip_and_other_channel_counts_are_rejected() {
        let classes: Vec<u8> = (0..35).chain([255]).collect();
        let (mut file, mut back) = (Vec::new(), Vec::new());
        encode(&classes, 1, [4, 9], &mut file).unwrap();
        let image = decode_labels(&file, &mut back).unwrap();
        assert_eq!((image.pixels, [image.height, image.width]), (LabelPixels::Grey { bits: 8 }, [4, 9]));
        assert_eq!(back, classes);
        encode(&classes, 3, [4, 3], &mut file).unwrap();
        assert_eq!(decode_labels(&file, &mut back).unwrap().pixels, LabelPixels::Colours);
        assert!(encode(&classes, 2, [3, 6], &mut file).unwrap_err().contains("2 channels"));
    }
}
