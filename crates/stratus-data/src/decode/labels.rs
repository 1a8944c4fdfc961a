//! Label images: PNG files whose pixels are class numbers. Values are returned as stored: palettes are not
//! resolved, and few bits are not scaled to eight.

use png::{BitDepth, ColorType, Transformations};

use super::{Format, LONGEST_SIDE, pixel_bytes, png::open};

/// The kind and size of a label image; its pixels are in the caller's buffer, row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LabelImage {
    pub pixels: LabelPixels,
    pub height: usize,
    pub width: usize,
}

/// By the file's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LabelPixels {
    /// One number per pixel: a grey value, or an index into the palette.
    Values,
    /// Three bytes per pixel: RGB.
    Colours,
}

/// Decodes a label image into `out`, which is resized.
pub(crate) fn decode_labels(file: &[u8], out: &mut Vec<u8>) -> Result<LabelImage, String> {
    if Format::of(file)? == Format::Jpeg {
        return Err("a JPEG file, whose pixels are not exact; label images are PNG files".to_owned());
    }
    let mut reader = open(file, Transformations::IDENTITY)?;
    let failed = |error| format!("the PNG cannot be decoded: {error}");
    let (height, width) = (reader.info().height as usize, reader.info().width as usize);
    if height.max(width) > LONGEST_SIDE {
        return Err(format!("the image is {height}×{width}: longer than {LONGEST_SIDE} pixels"));
    }
    let (colour, depth) = reader.output_color_type();
    let (stored, channels, pixels) = match colour {
        ColorType::Grayscale | ColorType::Indexed => (1, 1, LabelPixels::Values),
        ColorType::GrayscaleAlpha => (2, 1, LabelPixels::Values),
        ColorType::Rgb => (3, 3, LabelPixels::Colours),
        ColorType::Rgba => (4, 3, LabelPixels::Colours),
    };
    let bits = match depth {
        BitDepth::One => 1,
        BitDepth::Two => 2,
        BitDepth::Four => 4,
        BitDepth::Eight => 8,
        BitDepth::Sixteen => {
            return Err("a PNG with 16 bits a channel; label images have 8 or fewer".to_owned());
        }
    };
    out.resize(pixel_bytes(height, width, stored)?, 0);
    reader.next_frame(out).map_err(failed)?;
    reader.finish().map_err(failed)?;
    if bits < 8 {
        unpack(out, height, width, bits);
    }
    if stored > channels {
        // Drops transparency in place, from the front: reads never fall behind writes.
        for pixel in 0..height * width {
            out.copy_within(pixel * stored..pixel * stored + channels, pixel * channels);
        }
        out.truncate(height * width * channels);
    }
    Ok(LabelImage { pixels, height, width })
}

/// Decodes a label image of class numbers; returns its height and width.
pub(crate) fn decode_classes(file: &[u8], out: &mut Vec<u8>) -> Result<[usize; 2], String> {
    let LabelImage { pixels, height, width } = decode_labels(file, out)?;
    match pixels {
        LabelPixels::Values => Ok([height, width]),
        LabelPixels::Colours => {
            Err("its pixels are colours; classes are grey values or places in a palette".to_owned())
        }
    }
}

/// Expands pixels of 1, 2 or 4 bits to bytes, highest bits first, rows padded to whole bytes. In place, from
/// the back: reads never fall behind writes.
fn unpack(pixels: &mut [u8], height: usize, width: usize, bits: usize) {
    let row_bytes = (width * bits).div_ceil(8);
    for y in (0..height).rev() {
        for x in (0..width).rev() {
            let packed = pixels[y * row_bytes + x * bits / 8];
            pixels[y * width + x] = packed >> (8 - bits - x * bits % 8) & ((1 << bits) - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use png::Encoder;

    fn png(colour: ColorType, depth: BitDepth, [height, width]: [u32; 2], data: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut encoder = Encoder::new(&mut file, width, height);
        encoder.set_color(colour);
        encoder.set_depth(depth);
        if colour == ColorType::Indexed {
            encoder.set_palette((0..=255u8).flat_map(|index| [255 - index, 9, index]).collect::<Vec<_>>());
        }
        encoder.write_header().unwrap().write_image_data(data).unwrap();
        file
    }

    fn decoded(file: &[u8]) -> (LabelImage, Vec<u8>) {
        let mut out = vec![7; 3];
        let image = decode_labels(file, &mut out).unwrap();
        (image, out)
    }

    #[test]
    fn values_are_what_is_stored_whatever_the_depth_or_palette() {
        for (depth, bits) in
            [(BitDepth::One, 1), (BitDepth::Two, 2), (BitDepth::Four, 4), (BitDepth::Eight, 8)]
        {
            for width in [1usize, 3, 7, 8, 9, 17] {
                let value = |y: usize, x: usize| ((y * 31 + x * 7 + x * x) % (1 << bits)) as u8;
                let row_bytes = (width * bits).div_ceil(8);
                let mut packed = vec![0; row_bytes * 5];
                for y in 0..5 {
                    for x in 0..width {
                        packed[y * row_bytes + x * bits / 8] |= value(y, x) << (8 - bits - x * bits % 8);
                    }
                }
                let expected: Vec<u8> = (0..5).flat_map(|y| (0..width).map(move |x| value(y, x))).collect();
                for colour in [ColorType::Grayscale, ColorType::Indexed] {
                    let (image, pixels) = decoded(&png(colour, depth, [5, width as u32], &packed));
                    assert_eq!(image, LabelImage { pixels: LabelPixels::Values, height: 5, width });
                    assert_eq!(pixels, expected, "{colour:?} {depth:?} {width}");
                }
            }
        }
    }

    #[test]
    fn transparency_is_dropped() {
        let (image, pixels) =
            decoded(&png(ColorType::Rgba, BitDepth::Eight, [1, 2], &[1, 2, 3, 255, 4, 5, 6, 0]));
        assert_eq!((image.pixels, pixels), (LabelPixels::Colours, vec![1, 2, 3, 4, 5, 6]));
        let (image, pixels) =
            decoded(&png(ColorType::GrayscaleAlpha, BitDepth::Eight, [2, 1], &[1, 255, 2, 0]));
        assert_eq!((image.pixels, pixels), (LabelPixels::Values, vec![1, 2]));
    }

    #[test]
    fn what_cannot_be_exact_is_refused() {
        let refused = |file: &[u8]| decode_labels(file, &mut Vec::new()).unwrap_err();
        assert_eq!(
            refused(&png(ColorType::Grayscale, BitDepth::Sixteen, [1, 1], &[0, 1])),
            "a PNG with 16 bits a channel; label images have 8 or fewer"
        );
        assert_eq!(
            refused(&[0xff, 0xd8, 0xff, 0xe0]),
            "a JPEG file, whose pixels are not exact; label images are PNG files"
        );
        let whole = png(ColorType::Grayscale, BitDepth::Eight, [9, 9], &[3; 81]);
        for end in 0..whole.len() {
            assert!(decode_labels(&whole[..end], &mut Vec::new()).is_err(), "{end}");
        }
    }
}
