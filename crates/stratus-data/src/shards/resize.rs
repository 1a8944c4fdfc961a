//! Resizing of images for shards. Resized images are encoded as JPEG.

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use serde::{Deserialize, Serialize};

use crate::dataset::Sample;
use crate::geometry::Window;
use crate::transform::frame::{CropResizer, CropView, CroppedPixels};
use crate::transform::pixels::PixelOrder;

/// The resizing of images for shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackResize {
    /// The shorter side of resized images in pixels, at least 1. Images that are not larger stay unchanged.
    pub side: usize,
    /// The quality of JPEG files, 1 to 100 on libjpeg's scale; chroma is subsampled 2×2.
    pub quality: u8,
}

/// The statistics of resized images in the index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackResizeReport {
    /// The resizing.
    #[serde(flatten)]
    pub settings: PackResize,
    /// The number of resized images.
    pub images: u64,
    /// Bytes of all image files before resizing.
    pub bytes_before: u64,
    /// Bytes of all image files after resizing.
    pub bytes: u64,
}

/// Resizes images, reusing its memory.
#[derive(Default)]
pub(super) struct ImageShrinker {
    crop_resizer: CropResizer,
    pixels: Vec<u8>,
}

impl ImageShrinker {
    /// Writes a sample as an upright JPEG file if it is too large; returns whether it did.
    pub(super) fn shrink(
        &mut self,
        sample: &Sample<'_>,
        settings: PackResize,
        file: &mut Vec<u8>,
    ) -> Result<bool, String> {
        let size @ [height, width] = sample.upright_size();
        let shorter = height.min(width);
        if shorter <= settings.side {
            return Ok(false);
        }
        // Rounded to nearest.
        let output_size @ [rows, columns] =
            size.map(|length| ((2 * length * settings.side + shorter) / (2 * shorter)).max(1));
        let [channels, ..] = sample.shape;
        let window = Window { top: 0.0, left: 0.0, height: height as f64, width: width as f64 };
        let view = CropView { window, rotation: None };
        let cropped = self.crop_resizer.crop_and_resize(sample, view, [channels, rows, columns]);
        let CroppedPixels { pixels, order, .. } = cropped.map_err(|error| error.to_string())?;
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
        encode(pixels, channels, output_size, settings.quality, file)?;
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
        _ => return Err(format!("cannot write {channels} channels as JPEG, only 1 or 3")),
    };
    let (Ok(w), Ok(h)) = (u16::try_from(width), u16::try_from(height)) else {
        return Err(format!("{height}×{width} exceeds the size limit of JPEG"));
    };
    file.clear();
    let mut encoder = Encoder::new(file, quality);
    encoder.set_sampling_factor(SamplingFactor::R_4_2_0);
    encoder.set_optimized_huffman_tables(true);
    encoder.encode(pixels, w, h, colours).map_err(|error| format!("cannot write the image as JPEG: {error}"))
}
