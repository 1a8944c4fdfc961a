//! Images made smaller for shards: resized and encoded as JPEG files, whatever they were.

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use serde::{Deserialize, Serialize};

use crate::datasets::Sample;
use crate::transform::frame::{Framed, Framer, View, Window};
use crate::transform::pixels::PixelOrder;

/// How images are made smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Smaller {
    /// The shorter side of an image, in pixels, at least 1. Images that are not larger stay as they are.
    pub side: usize,
    /// The quality of JPEG files, from 1 to 100, as libjpeg counts it; colours have half of the resolution.
    pub quality: u8,
}

/// What the index says of images that were made smaller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resized {
    /// How.
    #[serde(flatten)]
    pub how: Smaller,
    /// How many images.
    pub images: u64,
    /// Bytes of the files of all images before,
    pub bytes_before: u64,
    /// and after.
    pub bytes: u64,
}

/// Makes images smaller, and keeps its memory between them.
#[derive(Default)]
pub(super) struct Shrinker {
    framer: Framer,
    pixels: Vec<u8>,
}

impl Shrinker {
    /// Writes a sample as an upright JPEG file, unless it is small enough; returns whether it did.
    pub(super) fn shrink(
        &mut self,
        sample: &Sample<'_>,
        how: Smaller,
        file: &mut Vec<u8>,
    ) -> Result<bool, String> {
        let size @ [height, width] = sample.upright_size();
        let shorter = height.min(width);
        if shorter <= how.side {
            return Ok(false);
        }
        // Rounded to the nearest.
        let wanted @ [rows, columns] =
            size.map(|length| ((2 * length * how.side + shorter) / (2 * shorter)).max(1));
        let [channels, ..] = sample.shape;
        let window = Window { top: 0.0, left: 0.0, height: height as f64, width: width as f64 };
        let view = View { window, turn: None };
        let framed = self.framer.cut(sample, view, [channels, rows, columns]);
        let Framed { pixels, order, .. } = framed.map_err(|error| error.to_string())?;
        let pixels = if order == PixelOrder::Planes && channels > 1 {
            let plane = rows * columns;
            self.pixels.clear();
            for pixel in 0..plane {
                self.pixels.extend((0..channels).map(|channel| pixels[channel * plane + pixel]));
            }
            &self.pixels
        } else {
            pixels
        };
        encode(pixels, channels, wanted, how.quality, file)?;
        Ok(true)
    }
}

fn encode(
    pixels: &[u8],
    channels: usize,
    [height, width]: [usize; 2],
    quality: u8,
    file: &mut Vec<u8>,
) -> Result<(), String> {
    let colours = match channels {
        1 => ColorType::Luma,
        3 => ColorType::Rgb,
        _ => return Err(format!("an image of {channels} channels is none that JPEG files hold; 1 or 3 are")),
    };
    let (Ok(w), Ok(h)) = (u16::try_from(width), u16::try_from(height)) else {
        return Err(format!("an image of {height}×{width} is larger than JPEG files can be"));
    };
    file.clear();
    let mut encoder = Encoder::new(file, quality);
    encoder.set_sampling_factor(SamplingFactor::R_4_2_0);
    encoder.set_optimized_huffman_tables(true);
    encoder.encode(pixels, w, h, colours).map_err(|error| format!("it cannot be written as a JPEG: {error}"))
}
