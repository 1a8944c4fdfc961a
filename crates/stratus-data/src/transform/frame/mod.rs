//! Cropping and resizing: from a stored image of any size to an upright sample of the requested shape and
//! channels.
//!
//! The crop is a `Window`, drawn once per sample (see [`Augment`]). Images are resized with an antialiased
//! bilinear filter, like in Pillow. Rotation and zoom are combined with the window into one affine map
//! (`affine`).

use stratus_random::{Purpose, Stream};

use crate::dataset::Sample;
use crate::error::DataError;
use crate::geometry::{DctScale, Orientation, PixelIndex, Region, Window};
use crate::transform::affine::{Rotation, Rotator};
use crate::transform::augment::{Augment, ResizedCrop};
use crate::transform::pixels::PixelOrder;
use crate::transform::resize::Resizer;

/// The maximum number of attempts to draw a random crop, before the centre is used: for elongated images in
/// which few crops fit.
const MAX_CROP_ATTEMPTS: usize = 10;

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
    resizer: Resizer,
    rotator: Rotator,
    /// The window at the output size, in the stored orientation.
    resized: Vec<u8>,
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
            self.rotator.rotate(
                &mut self.resizer,
                sample,
                window,
                rotation,
                [output_height, output_width],
            )?;
            pixels = &self.rotator.pixels;
            valid_columns = Some(self.rotator.valid_columns.as_slice());
        } else {
            let (stored, denominator) = (sample.stored_size(), sample.dct_scale().denominator());
            let is_whole = window.top == 0.0
                && window.left == 0.0
                && sample.upright_size().map(|length| length as f64) == [window.height, window.width]
                && stored == [height * denominator, width * denominator];
            if !(is_whole && [height, width] == [rows, columns]) {
                let crop = window.stored(sample.orientation, stored).scaled_down(denominator);
                self.resizer.resize(sample, crop, &mut self.resized, [rows, columns])?;
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

#[cfg(test)]
mod tests;
