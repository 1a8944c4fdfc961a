//! From a stored image of any size to a sample of the wanted shape: which part of it, resized, upright, in the wanted channels.
//!
//! The part is a [`Window`], drawn once per sample (see [`Augment`]). Images are resized by the bilinear filter over all
//! pixels that it covers (antialiased), as Pillow does.

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use stratus_random::{Purpose, Stream};

use crate::augment::{Augment, ResizedCrop};
use crate::datasets::Sample;
use crate::error::DataError;
use crate::pixels::PixelOrder;

/// How often a random part is drawn before the middle is taken, for images so long that hardly any part fits.
const TRIES: usize = 10;

/// How a stored image is to be turned so that it is upright.
///
/// Row y and column x of the upright image are row y and column x of the stored one, or with `transpose` row x and column y; counted
/// from the last where `flip_rows` or `flip_columns`, which speak of the stored image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Orientation {
    /// Rows and columns are exchanged.
    pub transpose: bool,
    /// The stored image's rows are counted from its last.
    pub flip_rows: bool,
    /// The stored image's columns are counted from its last.
    pub flip_columns: bool,
}

impl Orientation {
    /// The orientation that EXIF's tag 0x0112 gives as 1 to 8; upright for any other number.
    #[must_use]
    pub fn from_exif(value: u16) -> Self {
        let (transpose, flip_rows, flip_columns) = match value {
            2 => (false, false, true),
            3 => (false, true, true),
            4 => (false, true, false),
            5 => (true, false, false),
            6 => (true, true, false),
            7 => (true, true, true),
            8 => (true, false, true),
            _ => (false, false, false),
        };
        Self { transpose, flip_rows, flip_columns }
    }

    /// The upright image's size of a stored one's, or the other way round.
    pub(crate) fn turned<T>(self, [height, width]: [T; 2]) -> [T; 2] {
        if self.transpose { [width, height] } else { [height, width] }
    }
}

/// A part of an upright image, in pixels; it may begin and end between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Rows above it.
    pub top: f64,
    /// Columns left of it.
    pub left: f64,
    /// Rows.
    pub height: f64,
    /// Columns.
    pub width: f64,
}

/// Chooses windows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Framing {
    /// Height and width of a sample.
    pub wanted: [usize; 2],
    /// The shorter side that an image is resized to before its middle is taken.
    pub resize: Option<usize>,
    /// The part taken at random.
    pub random: Option<ResizedCrop>,
    pub seed: u64,
}

impl Framing {
    pub(crate) fn new(wanted: [usize; 2], resize: Option<usize>, augment: &Augment, seed: u64) -> Self {
        Self { wanted, resize, random: augment.resized_crop, seed }
    }

    /// The part of an upright image of `size` (H, W) that becomes `sample` in `epoch`.
    pub(crate) fn window(&self, size: [usize; 2], epoch: u32, sample: u32) -> Window {
        if let Some(crop) = self.random
            && let Some(window) = self.random_part(crop, size, epoch, sample)
        {
            return window;
        }
        let [height, width] = size.map(|length| length as f64);
        let [wanted_height, wanted_width] = self.wanted.map(|length| length as f64);
        // Pixels of the stored image for one of the sample.
        let scale = match self.resize {
            Some(side) => height.min(width) / side as f64,
            None => (height / wanted_height).min(width / wanted_width),
        };
        let (part_height, part_width) = (wanted_height * scale, wanted_width * scale);
        let (part_height, part_width) = (part_height.min(height), part_width.min(width));
        Window {
            top: (height - part_height) / 2.0,
            left: (width - part_width) / 2.0,
            height: part_height,
            width: part_width,
        }
    }

    /// A part of whole pixels; none where no drawn one fits into the image.
    fn random_part(&self, crop: ResizedCrop, size: [usize; 2], epoch: u32, sample: u32) -> Option<Window> {
        let mut stream = Stream::new(self.seed, Purpose::Crop, u64::from(sample), epoch);
        let [height, width] = size;
        let between = |[low, high]: [f64; 2], at: f32| low + (high - low) * f64::from(at);
        for _ in 0..TRIES {
            let area = height as f64 * width as f64 * between(crop.scale, stream.uniform());
            let ratio = between(crop.ratio.map(f64::ln), stream.uniform()).exp();
            let part_width = (area * ratio).sqrt().round() as usize;
            let part_height = (area / ratio).sqrt().round() as usize;
            let fits = (1..=width).contains(&part_width) && (1..=height).contains(&part_height);
            if fits {
                let top = stream.below((height - part_height) as u32 + 1);
                let left = stream.below((width - part_width) as u32 + 1);
                return Some(Window {
                    top: f64::from(top),
                    left: f64::from(left),
                    height: part_height as f64,
                    width: part_width as f64,
                });
            }
        }
        None
    }
}

/// Cuts windows out of images; keeps its memory between images. The library that resizes allocates two small tables of coefficients for
/// each.
#[derive(Debug, Default)]
pub(crate) struct Framer {
    resizer: Resizer,
    /// The window at the wanted size, as it is stored.
    resized: Vec<u8>,
    /// The same upright, where it was not.
    turned: Vec<u8>,
    /// The same with the wanted channels, where they were others.
    recoloured: Vec<u8>,
}

impl Framer {
    /// The pixels of the `window` of a sample, of `shape` (C, H, W).
    pub(crate) fn cut<'a>(
        &'a mut self,
        sample: &Sample<'a>,
        window: Window,
        shape: [usize; 3],
    ) -> Result<(&'a [u8], PixelOrder), DataError> {
        let [channels, height, width] = sample.shape;
        let [wanted_channels, wanted_height, wanted_width] = shape;
        let [rows, columns] = sample.orientation.turned([wanted_height, wanted_width]);
        let (mut pixels, mut order) = (sample.pixels, sample.order);
        let whole = window.top == 0.0
            && window.left == 0.0
            && sample.orientation.turned([height, width]).map(|length| length as f64)
                == [window.height, window.width];
        if !(whole && [height, width] == [rows, columns]) {
            let crop = stored_window(window, sample.orientation, [height, width]);
            self.resized.resize(channels * rows * columns, 0);
            let planes = if order == PixelOrder::Planes { channels } else { 1 };
            let kind = match channels / planes {
                1 => PixelType::U8,
                3 => PixelType::U8x3,
                _ => return Err(DataError::Channels { found: channels, wanted: wanted_channels }),
            };
            let sources = pixels.chunks_exact(pixels.len() / planes);
            for (source, out) in
                sources.zip(self.resized.chunks_exact_mut(channels * rows * columns / planes))
            {
                resize(&mut self.resizer, source, [height, width], crop, out, [rows, columns], kind)?;
            }
            pixels = &self.resized;
        }
        if sample.orientation != Orientation::default() {
            turn(pixels, order, channels, [rows, columns], sample.orientation, &mut self.turned);
            pixels = &self.turned;
        }
        if channels != wanted_channels {
            let plane = wanted_height * wanted_width;
            recolour(pixels, order, [channels, wanted_channels], plane, &mut self.recoloured)?;
            (pixels, order) = (&self.recoloured, PixelOrder::Planes);
        }
        Ok((pixels, order))
    }
}

/// Where a window of the upright image lies in the stored one of `size`.
fn stored_window(window: Window, orientation: Orientation, size: [usize; 2]) -> Window {
    let Orientation { flip_rows, flip_columns, .. } = orientation;
    let [top, left] = orientation.turned([window.top, window.left]);
    let [height, width] = orientation.turned([window.height, window.width]);
    let [stored_height, stored_width] = size.map(|length| length as f64);
    let top = if flip_rows { stored_height - top - height } else { top }.max(0.0);
    let left = if flip_columns { stored_width - left - width } else { left }.max(0.0);
    // What rounding adds must not reach beyond the image.
    Window { top, left, height: height.min(stored_height - top), width: width.min(stored_width - left) }
}

fn resize(
    resizer: &mut Resizer,
    source: &[u8],
    [height, width]: [usize; 2],
    crop: Window,
    out: &mut [u8],
    [rows, columns]: [usize; 2],
    kind: PixelType,
) -> Result<(), DataError> {
    let failed = |problem: String| DataError::Resize { problem };
    let side = |length: usize| u32::try_from(length).map_err(|error| failed(error.to_string()));
    let source =
        ImageRef::new(side(width)?, side(height)?, source, kind).map_err(|e| failed(e.to_string()))?;
    let mut out =
        Image::from_slice_u8(side(columns)?, side(rows)?, out, kind).map_err(|e| failed(e.to_string()))?;
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
        .use_alpha(false)
        .crop(crop.left, crop.top, crop.width, crop.height);
    resizer.resize(&source, &mut out, &options).map_err(|error| failed(error.to_string()))
}

/// Makes a stored image of `size` upright.
fn turn(
    pixels: &[u8],
    order: PixelOrder,
    channels: usize,
    size: [usize; 2],
    orientation: Orientation,
    out: &mut Vec<u8>,
) {
    let [height, width] = size;
    let [rows, columns] = orientation.turned(size);
    out.clear();
    let at = |y: usize, x: usize| {
        let [y, x] = orientation.turned([y, x]);
        let y = if orientation.flip_rows { height - 1 - y } else { y };
        let x = if orientation.flip_columns { width - 1 - x } else { x };
        y * width + x
    };
    let places = (0..rows).flat_map(|y| (0..columns).map(move |x| (y, x)));
    match order {
        PixelOrder::Planes => {
            for plane in pixels.chunks_exact(height * width) {
                out.extend(places.clone().map(|(y, x)| plane[at(y, x)]));
            }
        }
        PixelOrder::Interleaved => {
            places.for_each(|(y, x)| out.extend_from_slice(&pixels[at(y, x) * channels..][..channels]));
        }
    }
}

/// Grey for each of several channels, or the luma of red, green and blue (ITU-R BT.601) for one.
fn recolour(
    pixels: &[u8],
    order: PixelOrder,
    [channels, wanted]: [usize; 2],
    plane: usize,
    out: &mut Vec<u8>,
) -> Result<(), DataError> {
    out.clear();
    match (channels, wanted) {
        (1, _) => (0..wanted).for_each(|_| out.extend_from_slice(pixels)),
        (3, 1) => {
            let luma = |red: u8, green: u8, blue: u8| {
                ((299 * u32::from(red) + 587 * u32::from(green) + 114 * u32::from(blue) + 500) / 1000) as u8
            };
            match order {
                PixelOrder::Interleaved => {
                    out.extend(pixels.chunks_exact(3).map(|rgb| luma(rgb[0], rgb[1], rgb[2])));
                }
                PixelOrder::Planes => out.extend(
                    (0..plane).map(|at| luma(pixels[at], pixels[plane + at], pixels[2 * plane + at])),
                ),
            }
        }
        _ => return Err(DataError::Channels { found: channels, wanted }),
    }
    Ok(())
}

/// A shape as it reads in messages: 3×224×224.
pub(crate) fn shape_text(shape: [usize; 3]) -> String {
    let [channels, height, width] = shape;
    format!("{channels}×{height}×{width}")
}

#[cfg(test)]
mod tests;
