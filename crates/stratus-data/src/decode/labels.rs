//! Label images: PNG or lossless WebP files whose pixels are class indices or colours. Samples are returned
//! as stored, with the type of the file: palettes are not resolved, and samples of fewer than 8 bits are not
//! scaled. Their meaning depends on the data set (`datasets/label_encoding.rs`).

use png::{BitDepth, ColorType, Transformations};

use super::image::{Format, keep_first_bytes};
use super::png::{buffer_bytes, finish, open, size};
use super::webp;

/// The kind and size of a label image; its pixels are in the caller's buffer, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LabelImage {
    pub pixels: LabelPixels,
    pub height: usize,
    pub width: usize,
}

/// The pixels by the type of the file. Transparency is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LabelPixels {
    /// One grey sample per pixel, of 1, 2, 4 or 8 bits.
    Grey { bits: u8 },
    /// One palette index per pixel, and the colours of the palette.
    Palette(Vec<[u8; 3]>),
    /// Three bytes per pixel: RGB.
    Colours,
}

/// Decodes a label image into `out`, which is resized. Samples of 16 bits become 8 if nothing is lost:
/// indices below 256, or 8 bits that were scaled to 16.
pub(crate) fn decode_labels(file: &[u8], out: &mut Vec<u8>) -> Result<LabelImage, String> {
    match Format::detect(file)? {
        Format::Png => {}
        Format::Jpeg => return Err("label images must be PNG or lossless WebP; JPEG is lossy".to_owned()),
        Format::WebP if webp::is_lossless(file) => {
            let [_, height, width] = webp::decode(file, out)?.shape;
            return Ok(LabelImage { pixels: LabelPixels::Colours, height, width });
        }
        Format::WebP => return Err("label images must be PNG or lossless WebP without animation".to_owned()),
    }
    let mut reader = open(file, Transformations::IDENTITY)?;
    let failed = |error| format!("cannot decode the PNG: {error}");
    let [height, width] = size(&reader, file.len())?;
    let (colour, depth) = reader.output_color_type();
    let (stored, channels) = match colour {
        ColorType::Grayscale | ColorType::Indexed => (1, 1),
        ColorType::GrayscaleAlpha => (2, 1),
        ColorType::Rgb => (3, 3),
        ColorType::Rgba => (4, 3),
    };
    let bits: u8 = match depth {
        BitDepth::One => 1,
        BitDepth::Two => 2,
        BitDepth::Four => 4,
        BitDepth::Eight => 8,
        BitDepth::Sixteen => 16,
    };
    let pixels = match (colour, &reader.info().palette) {
        (ColorType::Indexed, None) => return Err("the PNG has no palette".to_owned()),
        (ColorType::Indexed, Some(palette)) => LabelPixels::Palette(palette.as_chunks().0.to_vec()),
        (ColorType::Grayscale | ColorType::GrayscaleAlpha, _) => LabelPixels::Grey { bits: bits.min(8) },
        (ColorType::Rgb | ColorType::Rgba, _) => LabelPixels::Colours,
    };
    let bytes = usize::from(bits.div_ceil(8));
    let stored = stored * bytes;
    out.resize(buffer_bytes([height, width], stored, file)?, 0);
    reader.next_frame(out).map_err(failed)?;
    finish(&mut reader, file)?;
    if bits < 8 {
        unpack(out, height, width, usize::from(bits));
    }
    keep_first_bytes(out, stored, channels * bytes);
    if bits == 16 {
        narrow_to_8_bits(out, pixels != LabelPixels::Colours)?;
    }
    Ok(LabelImage { pixels, height, width })
}

/// Narrows 16-bit samples to 8 bits in place: to the high bytes if each equals the low byte, which is how 8
/// bits are scaled to 16 (PNG, third edition, 12.4); to the low bytes of `indices` below 256.
fn narrow_to_8_bits(samples: &mut Vec<u8>, indices: bool) -> Result<(), String> {
    let (pairs, _) = samples.as_chunks::<2>();
    let scaled = pairs.iter().all(|[high, low]| high == low);
    if !(scaled || indices && pairs.iter().all(|[high, _]| *high == 0)) {
        return Err("PNG with 16 bits per channel, expected 8 or fewer".to_owned());
    }
    for at in 0..samples.len() / 2 {
        samples[at] = samples[2 * at + 1];
    }
    samples.truncate(samples.len() / 2);
    Ok(())
}

/// Expands pixels of 1, 2 or 4 bits to bytes, highest bits first, rows padded to whole bytes. In place, from
/// the back, so that reads stay ahead of writes.
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

    fn palette() -> Vec<[u8; 3]> {
        (0..=255u8).map(|index| [255 - index, 9, index]).collect()
    }

    fn png(colour: ColorType, depth: BitDepth, [height, width]: [u32; 2], data: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut encoder = Encoder::new(&mut file, width, height);
        encoder.set_color(colour);
        encoder.set_depth(depth);
        if colour == ColorType::Indexed {
            encoder.set_palette(palette().concat());
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
    fn returns_stored_values_at_every_depth_and_palette() {
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
                let palette = LabelPixels::Palette(palette());
                let grey = LabelPixels::Grey { bits: bits as u8 };
                for (colour, kind) in [(ColorType::Grayscale, grey), (ColorType::Indexed, palette)] {
                    let (image, pixels) = decoded(&png(colour, depth, [5, width as u32], &packed));
                    assert_eq!(image, LabelImage { pixels: kind, height: 5, width });
                    assert_eq!(pixels, expected, "{colour:?} {depth:?} {width}");
                }
            }
        }
    }

    #[test]
    fn drops_transparency() {
        let (image, pixels) =
            decoded(&png(ColorType::Rgba, BitDepth::Eight, [1, 2], &[1, 2, 3, 255, 4, 5, 6, 0]));
        assert_eq!((image.pixels, pixels), (LabelPixels::Colours, vec![1, 2, 3, 4, 5, 6]));
        let (image, pixels) =
            decoded(&png(ColorType::GrayscaleAlpha, BitDepth::Eight, [2, 1], &[1, 255, 2, 0]));
        assert_eq!((image.pixels, pixels), (LabelPixels::Grey { bits: 8 }, vec![1, 2]));
    }

    #[test]
    fn narrows_16_bits_only_without_loss() {
        let deep = |colour, data: &[u8]| {
            let pixel = colour_channels(colour) * 2;
            let mut out = Vec::new();
            let file = png(colour, BitDepth::Sixteen, [1, (data.len() / pixel) as u32], data);
            decode_labels(&file, &mut out).map(|image| (image.pixels, out))
        };
        let grey = LabelPixels::Grey { bits: 8 };
        assert_eq!(deep(ColorType::Grayscale, &[0, 7, 0, 255]), Ok((grey.clone(), vec![7, 255])));
        assert_eq!(deep(ColorType::Grayscale, &[7, 7, 0, 0]), Ok((grey.clone(), vec![7, 0])));
        assert_eq!(deep(ColorType::GrayscaleAlpha, &[0, 7, 9, 8]), Ok((grey, vec![7])));
        let colours = Ok((LabelPixels::Colours, vec![1, 2, 3]));
        assert_eq!(deep(ColorType::Rgb, &[1, 1, 2, 2, 3, 3]), colours);
        assert_eq!(deep(ColorType::Rgba, &[1, 1, 2, 2, 3, 3, 4, 5]), colours);
        for (colour, data) in [
            (ColorType::Grayscale, &[0, 7, 7, 7][..]),
            (ColorType::Grayscale, &[1, 0]),
            (ColorType::Rgb, &[0, 1, 0, 2, 0, 3]),
        ] {
            assert!(deep(colour, data).is_err(), "{data:?}");
        }
    }

    fn colour_channels(colour: ColorType) -> usize {
        match colour {
            ColorType::Grayscale | ColorType::Indexed => 1,
            ColorType::GrayscaleAlpha => 2,
            ColorType::Rgb => 3,
            ColorType::Rgba => 4,
        }
    }

    #[test]
    fn rejects_lossy_label_images() {
        let error = |file: &[u8]| decode_labels(file, &mut Vec::new()).unwrap_err();
        assert_eq!(
            error(&png(ColorType::Grayscale, BitDepth::Sixteen, [1, 1], &[1, 2])),
            "PNG with 16 bits per channel, expected 8 or fewer"
        );
        assert_eq!(
            error(&[0xff, 0xd8, 0xff, 0xe0]),
            "label images must be PNG or lossless WebP; JPEG is lossy"
        );
        let whole = png(ColorType::Grayscale, BitDepth::Eight, [9, 9], &[3; 81]);
        for end in 0..whole.len() {
            assert!(decode_labels(&whole[..end], &mut Vec::new()).is_err(), "{end}");
        }
    }
}
