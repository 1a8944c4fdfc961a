//! Cropping and resizing: from a stored image of any size to an upright sample of the requested shape and
//! channels.
//!
//! The crop is a [`Window`], drawn once per sample (see [`Augment`]). Images are resized with an antialiased
//! bilinear filter, like in Pillow. Rotation and zoom are combined with the window into one affine map
//! (`affine`).

use std::ops::Range;

pub use stratus_jpeg::DctScale;
use stratus_random::{Purpose, Stream};
use stratus_resize::{CropBox, Resizer};

use crate::datasets::Sample;
use crate::error::DataError;
use crate::transform::affine::Rotation;
use crate::transform::augment::{Augment, ResizedCrop};
use crate::transform::pixels::PixelOrder;

/// The maximum number of attempts to draw a random crop, before the centre is used: for elongated images in
/// which few crops fit.
const MAX_CROP_ATTEMPTS: usize = 10;

/// The rotation and mirroring that make a stored image upright.
///
/// Pixel (y, x) of the upright image is pixel (y, x) of the stored one, or with `transpose` (x, y).
/// `flip_rows` and `flip_columns` count rows and columns of the stored image from the last.
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
    /// The orientation of a value 1 to 8 of EXIF's tag 0x0112; upright for any other value.
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

    /// Converts the stored size to the upright one, and back.
    pub(crate) fn apply_to_size<T>(self, [height, width]: [T; 2]) -> [T; 2] {
        if self.transpose { [width, height] } else { [height, width] }
    }
}

/// Maps pixels of an upright image to their index in the stored one: `first + y * down + x * right`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PixelIndex {
    first: usize,
    down: isize,
    right: isize,
}

impl PixelIndex {
    /// Creates the index for a stored image of `size`.
    pub(crate) fn new(orientation: Orientation, [height, width]: [usize; 2]) -> Self {
        let Orientation { flip_rows, flip_columns, .. } = orientation;
        let first_row = if flip_rows { height - 1 } else { 0 };
        let first_column = if flip_columns { width - 1 } else { 0 };
        let row = width as isize * if flip_rows { -1 } else { 1 };
        let column = if flip_columns { -1 } else { 1 };
        let [down, right] = orientation.apply_to_size([row, column]);
        Self { first: first_row * width + first_column, down, right }
    }

    /// The index of a pixel of the upright image.
    #[inline(always)]
    pub(crate) fn at(self, row: usize, column: usize) -> usize {
        self.first.wrapping_add_signed(row as isize * self.down + column as isize * self.right)
    }
}

/// A window of an upright image, in pixels, possibly fractional.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// The number of rows above it.
    pub top: f64,
    /// The number of columns left of it.
    pub left: f64,
    /// The height.
    pub height: f64,
    /// The width.
    pub width: f64,
}

impl Window {
    /// The window with the same centre, magnified by `zoom`.
    pub(crate) fn zoomed(self, zoom: f64) -> Self {
        let (height, width) = (self.height / zoom, self.width / zoom);
        let (top, left) = (self.top + (self.height - height) / 2.0, self.left + (self.width - width) / 2.0);
        Self { top, left, height, width }
    }

    /// The window of the upright image in coordinates of the stored one of `size`.
    pub(crate) fn stored(self, orientation: Orientation, size: [usize; 2]) -> Self {
        let Orientation { flip_rows, flip_columns, .. } = orientation;
        let [top, left] = orientation.apply_to_size([self.top, self.left]);
        let [height, width] = orientation.apply_to_size([self.height, self.width]);
        let [stored_height, stored_width] = size.map(|length| length as f64);
        let top = if flip_rows { stored_height - top - height } else { top }.max(0.0);
        let left = if flip_columns { stored_width - left - width } else { left }.max(0.0);
        // Rounding must not reach beyond the image.
        Self { top, left, height: height.min(stored_height - top), width: width.min(stored_width - left) }
    }
}

impl Window {
    /// The window in units of `by` × `by` pixels.
    fn scaled_down(self, by: usize) -> Self {
        let scaled = |length: f64| length / by as f64;
        let Self { top, left, height, width } = self;
        Self { top: scaled(top), left: scaled(left), height: scaled(height), width: scaled(width) }
    }
}

/// A region of a stored image, in whole pixels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The rows.
    pub rows: Range<usize>,
    /// The columns.
    pub columns: Range<usize>,
    /// The DCT scale at which the image may be decoded.
    pub scale: DctScale,
}

/// The stored image of a sample that was decoded at a DCT scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DctScaled {
    /// The height and width of the stored image.
    pub original_size: [usize; 2],
    /// The DCT scale.
    pub scale: DctScale,
}

impl Region {
    /// The whole image of `shape` (C, H, W) at full scale.
    #[must_use]
    pub fn whole([_, height, width]: [usize; 3]) -> Self {
        Self { rows: 0..height, columns: 0..width, scale: DctScale::Full }
    }
}

/// The view of an image that becomes a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CropView {
    /// The window; within the image unless rotated.
    pub window: Window,
    /// The rotation about the centre of the window, if images are rotated or zoomed.
    pub rotation: Option<Rotation>,
}

/// Draws the crop of each sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CropSampler {
    /// Height and width of a sample.
    pub output_size: [usize; 2],
    /// The shorter side that an image is resized to before its centre is cropped.
    pub resize: Option<usize>,
    /// The random crop.
    pub random: Option<ResizedCrop>,
    /// True if the crop is at a random position instead of the centre.
    pub random_position: bool,
    /// The maximum rotation in degrees, in both directions.
    pub rotation: f64,
    /// The minimum and maximum zoom factor.
    pub zoom: Option<[f64; 2]>,
    /// True if images may be decoded at a DCT scale when windows are larger than samples.
    pub allow_dct_scaling: bool,
    pub seed: u64,
}

impl CropSampler {
    pub(crate) fn new(output_size: [usize; 2], resize: Option<usize>, augment: &Augment, seed: u64) -> Self {
        Self {
            output_size,
            resize,
            random: augment.resized_crop,
            random_position: augment.random_crop,
            rotation: augment.rotation,
            zoom: augment.zoom,
            allow_dct_scaling: false,
            seed,
        }
    }

    /// The view of an upright image of `size` (H, W) for `sample` in `epoch`.
    pub(crate) fn view(&self, size: [usize; 2], epoch: u32, sample: u32) -> CropView {
        if self.rotation == 0.0 && self.zoom.is_none() {
            return CropView { window: self.window(size, 1.0, epoch, sample), rotation: None };
        }
        let mut stream = Stream::new(self.seed, Purpose::Affine, u64::from(sample), epoch);
        let mut between = |[low, high]: [f64; 2]| low + (high - low) * f64::from(stream.uniform());
        let rotation = Rotation::new(between([-self.rotation, self.rotation]));
        let zoom = between(self.zoom.unwrap_or([1.0; 2]));
        CropView { window: self.window(size, zoom, epoch, sample), rotation: Some(rotation) }
    }

    /// The region to read of a stored image of `shape` (C, H, W) for `sample` in `epoch`.
    pub(crate) fn region(
        &self,
        shape: [usize; 3],
        orientation: Orientation,
        epoch: u32,
        sample: u32,
    ) -> Region {
        let [_, height, width] = shape;
        let CropView { window, rotation } =
            self.view(orientation.apply_to_size([height, width]), epoch, sample);
        if rotation.is_some() {
            return Region::whole(shape);
        }
        let part = window.stored(orientation, [height, width]);
        let [rows, columns] = orientation.apply_to_size(self.output_size);
        let fits = |scale: &DctScale| {
            let by = scale.denominator();
            part.height >= (rows * by) as f64 && part.width >= (columns * by) as f64
        };
        let scales = if self.allow_dct_scaling { &DctScale::ALL[..] } else { &[] };
        let scale = scales.iter().copied().find(fits).unwrap_or_default();
        let along = |first: f64, length: f64, output: usize, all: usize| {
            // The reach of the filter beyond the window, and one pixel for rounding.
            let reach = (length / output as f64).max(1.0) + scale.denominator() as f64;
            // The cast clamps negative numbers to 0.
            let end = all.min((first + length + reach).ceil() as usize);
            ((first - reach).floor() as usize).min(end)..end
        };
        Region {
            rows: along(part.top, part.height, rows, height),
            columns: along(part.left, part.width, columns, width),
            scale,
        }
    }

    /// The window of an upright image of `size` (H, W) for `sample` in `epoch`, magnified by `zoom`.
    fn window(&self, size: [usize; 2], zoom: f64, epoch: u32, sample: u32) -> Window {
        if let Some(crop) = self.random
            && let Some(window) = self.random_window(crop, size, epoch, sample)
        {
            return if zoom == 1.0 { window } else { window.zoomed(zoom) };
        }
        let size @ [height, width] = size.map(|length| length as f64);
        let output @ [output_height, output_width] = self.output_size.map(|length| length as f64);
        // Pixels of the stored image per pixel of the sample.
        let scale = match self.resize {
            Some(side) => height.min(width) / side as f64,
            None => (height / output_height).min(width / output_width),
        };
        let part = [0, 1].map(|axis| (output[axis] * scale).min(size[axis]) / zoom);
        let mut first = [0, 1].map(|axis| (size[axis] - part[axis]) / 2.0);
        if self.random_position {
            let mut stream = Stream::new(self.seed, Purpose::Crop, u64::from(sample), epoch);
            for axis in [0, 1] {
                // Whole pixels of the resized image, except for rounding.
                let step = part[axis] / output[axis];
                let room = size[axis] - part[axis];
                let positions = (room / step + 1e-6).floor();
                let drawn = stream.below((positions.max(0.0) as u32).saturating_add(1));
                if positions >= 1.0 {
                    first[axis] = (f64::from(drawn) * step).min(room);
                }
            }
        }
        Window { top: first[0], left: first[1], height: part[0], width: part[1] }
    }

    /// Draws a random window of whole pixels; `None` if no attempt fits into the image.
    fn random_window(&self, crop: ResizedCrop, size: [usize; 2], epoch: u32, sample: u32) -> Option<Window> {
        let mut stream = Stream::new(self.seed, Purpose::Crop, u64::from(sample), epoch);
        let [height, width] = size;
        let between = |[low, high]: [f64; 2], at: f32| low + (high - low) * f64::from(at);
        for _ in 0..MAX_CROP_ATTEMPTS {
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

/// Crops and resizes images, reusing its memory. The [`Resizer`] allocates two small tables of
/// coefficients per image.
#[derive(Debug, Default)]
pub(crate) struct CropResizer {
    pub(crate) resizer: Resizer,
    /// The crop that is shrunk before rotation, as stored.
    pub(crate) shrunk: Vec<u8>,
    /// The window at the output size, in the stored orientation; upright if rotated.
    pub(crate) resized: Vec<u8>,
    /// For each row of a rotated window, the range of columns inside the image.
    pub(crate) valid_columns: Vec<[usize; 2]>,
    /// The upright window at the output size, if the image is stored in another orientation.
    upright: Vec<u8>,
    /// The upright window with converted channels, if they differ.
    converted: Vec<u8>,
}

/// The pixels of a sample, of the requested shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CroppedPixels<'a> {
    pub pixels: &'a [u8],
    pub order: PixelOrder,
    /// If some pixels lie outside the image: the range of columns inside, for each row.
    pub valid_columns: Option<&'a [[usize; 2]]>,
}

impl CropResizer {
    /// Crops and resizes the `view` of a sample to `shape` (C, H, W).
    pub(crate) fn crop_and_resize<'a>(
        &'a mut self,
        sample: &Sample<'a>,
        view: CropView,
        shape: [usize; 3],
    ) -> Result<CroppedPixels<'a>, DataError> {
        let [channels, height, width] = sample.shape;
        let [output_channels, output_height, output_width] = shape;
        let [rows, columns] = sample.orientation.apply_to_size([output_height, output_width]);
        let (mut pixels, mut order) = (sample.pixels, sample.order);
        let CropView { window, rotation } = view;
        let mut valid_columns = None;
        if let Some(rotation) = rotation {
            self.warp(sample, window, rotation, [output_height, output_width])?;
            pixels = &self.resized;
            valid_columns = Some(self.valid_columns.as_slice());
        } else {
            let (stored, denominator) = (sample.stored_size(), sample.dct_scale().denominator());
            let is_whole = window.top == 0.0
                && window.left == 0.0
                && sample.upright_size().map(|length| length as f64) == [window.height, window.width]
                && stored == [height * denominator, width * denominator];
            if !(is_whole && [height, width] == [rows, columns]) {
                let crop = window.stored(sample.orientation, stored).scaled_down(denominator);
                resize_planes(&mut self.resizer, sample, crop, &mut self.resized, [rows, columns])?;
                pixels = &self.resized;
            }
            if sample.orientation != Orientation::default() {
                make_upright(pixels, order, channels, [rows, columns], sample.orientation, &mut self.upright);
                pixels = &self.upright;
            }
        }
        if channels != output_channels {
            let plane = output_height * output_width;
            convert_channels(pixels, order, [channels, output_channels], plane, &mut self.converted)?;
            (pixels, order) = (&self.converted, PixelOrder::Planes);
        }
        Ok(CroppedPixels { pixels, order, valid_columns })
    }
}

/// Resizes a window of a stored image, in the same channels and order. The pixels that the window needs must
/// be present.
pub(crate) fn resize_planes(
    resizer: &mut Resizer,
    sample: &Sample<'_>,
    crop: Window,
    out: &mut Vec<u8>,
    [rows, columns]: [usize; 2],
) -> Result<(), DataError> {
    let [channels, _, width] = sample.shape;
    let planes = if sample.order == PixelOrder::Planes { channels } else { 1 };
    let interleaved = channels / planes;
    out.resize(channels * rows * columns, 0);
    let Window { left, top, width: part_width, height: part_height } = crop;
    let part = CropBox { left, top, width: part_width, height: part_height };
    let sources = sample.pixels.chunks_exact(sample.pixels.len() / planes);
    for (source, out) in sources.zip(out.chunks_exact_mut(channels * rows * columns / planes)) {
        let size = [source.len() / (interleaved * width).max(1), width];
        resizer
            .resize(interleaved, source, size, part, out, [rows, columns])
            .map_err(|problem| DataError::Resize { problem })?;
    }
    Ok(())
}

/// Rotates a stored image of `size` upright.
fn make_upright(
    pixels: &[u8],
    order: PixelOrder,
    channels: usize,
    size: [usize; 2],
    orientation: Orientation,
    out: &mut Vec<u8>,
) {
    let [rows, columns] = orientation.apply_to_size(size);
    let stored = PixelIndex::new(orientation, size);
    out.clear();
    let pixels_upright = (0..rows).flat_map(|y| (0..columns).map(move |x| stored.at(y, x)));
    match order {
        PixelOrder::Planes => {
            for plane in pixels.chunks_exact(rows * columns) {
                out.extend(pixels_upright.clone().map(|at| plane[at]));
            }
        }
        PixelOrder::Interleaved => {
            pixels_upright.for_each(|at| out.extend_from_slice(&pixels[at * channels..][..channels]));
        }
    }
}

/// Converts channels: grey is repeated; RGB becomes luma (ITU-R BT.601).
fn convert_channels(
    pixels: &[u8],
    order: PixelOrder,
    [channels, requested]: [usize; 2],
    plane: usize,
    out: &mut Vec<u8>,
) -> Result<(), DataError> {
    out.clear();
    match (channels, requested) {
        (1, _) => (0..requested).for_each(|_| out.extend_from_slice(pixels)),
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
        _ => return Err(DataError::Channels { found: channels, requested }),
    }
    Ok(())
}

/// A shape for messages: 3×224×224.
pub(crate) fn shape_text(shape: [usize; 3]) -> String {
    let [channels, height, width] = shape;
    format!("{channels}×{height}×{width}")
}

#[cfg(test)]
mod tests;
