//! PNG files that shards hold: images that were not files before, and masks, whose grey values or places in the palette are the classes.

use std::io::Cursor;

use ::png::{BitDepth, ColorType, Decoder, Encoder, Limits, Transformations};

/// The most pixels of a mask.
const LARGEST: usize = 1 << 27;

/// Reads a mask into `classes`, a number for every pixel; returns its height and width.
pub(crate) fn decode_mask(file: &[u8], classes: &mut Vec<u8>) -> Result<[usize; 2], String> {
    let failed = |error| format!("the mask cannot be decoded: {error}");
    let mut decoder = Decoder::new(Cursor::new(file));
    decoder.set_limits(Limits { bytes: LARGEST });
    // A palette's colours are for people: the classes are the places in it.
    decoder.set_transformations(Transformations::IDENTITY);
    let mut reader = decoder.read_info().map_err(failed)?;
    let (height, width) = (reader.info().height as usize, reader.info().width as usize);
    let (colour, depth) = reader.output_color_type();
    if !matches!(colour, ColorType::Grayscale | ColorType::Indexed) || depth != BitDepth::Eight {
        return Err(format!("the mask is {colour:?} of {depth:?} bits; classes are grey or a palette, of 8"));
    }
    let pixels = height.checked_mul(width).filter(|&pixels| (1..=LARGEST).contains(&pixels));
    let pixels =
        pixels.ok_or_else(|| format!("the mask is {height}×{width}: none, or more than {LARGEST} pixels"))?;
    classes.resize(pixels, 0);
    reader.next_frame(classes).map_err(failed)?;
    reader.finish().map_err(failed)?;
    Ok([height, width])
}

/// Writes pixels as a PNG: grey values, or red, green and blue side by side.
pub(super) fn encode(
    pixels: &[u8],
    channels: usize,
    [height, width]: [usize; 2],
    to: &mut Vec<u8>,
) -> Result<(), String> {
    let colour = match channels {
        1 => ColorType::Grayscale,
        3 => ColorType::Rgb,
        _ => return Err(format!("an image of {channels} channels is none that PNG files hold; 1 or 3 are")),
    };
    let (Ok(w), Ok(h)) = (u32::try_from(width), u32::try_from(height)) else {
        return Err(format!("an image of {height}×{width} is larger than PNG files can be"));
    };
    to.clear();
    let failed = |error| format!("the image cannot be written as a PNG: {error}");
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

    #[test]
    fn classes_come_back_and_other_files_are_refused() {
        let classes: Vec<u8> = (0..35).chain([255]).collect();
        let (mut file, mut back) = (Vec::new(), Vec::new());
        encode(&classes, 1, [4, 9], &mut file).unwrap();
        assert_eq!(decode_mask(&file, &mut back), Ok([4, 9]));
        assert_eq!(back, classes);
        assert!(decode_mask(&file[..file.len() - 20], &mut back).unwrap_err().contains("cannot be decoded"));
        encode(&classes, 3, [4, 3], &mut file).unwrap();
        assert!(decode_mask(&file, &mut back).unwrap_err().contains("Rgb of Eight bits"));
        assert!(encode(&classes, 2, [3, 6], &mut file).unwrap_err().contains("2 channels"));
    }

    #[test]
    fn a_palette_s_places_are_the_classes() {
        let mut file = Vec::new();
        let mut encoder = Encoder::new(&mut file, 2, 2);
        encoder.set_color(ColorType::Indexed);
        encoder.set_depth(BitDepth::Eight);
        encoder.set_palette(vec![9, 9, 9, 200, 0, 0, 0, 200, 0]);
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(&[2, 0, 1, 2]).unwrap();
        writer.finish().unwrap();
        let mut classes = Vec::new();
        assert_eq!(decode_mask(&file, &mut classes), Ok([2, 2]));
        assert_eq!(classes, [2, 0, 1, 2]);
    }
}
