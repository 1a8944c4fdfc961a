//! Cropping and resizing: from a stored image of any size to a sample of the wanted shape, upright, with the
//! wanted channels.
//!
//! The crop is a [`Window`], drawn once per sample (see [`Augment`]). Images are resized with an antialiased
//! bilinear filter, as Pillow does. Rotation and zoom are combined with the window into one affine map
//! (`affine`).

use std::ops::Range;

pub use stratus_jpeg::Reduction;
use stratus_random::{Purpose, Stream};
use stratus_resize::{Part, Resizer};

use crate::datasets::Sample;
use crate::error::DataError;
use crate::transform::affine::Turn;
use crate::transform::augment::{Augment, ResizedCrop};
use crate::transform::pixels::PixelOrder;

/// Attempts to draw a random crop before the centre is taken, for images so long that few crops fit.
const TRIES: usize = 10;

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

    /// Converts the stored size to the upright one, and back.
    pub(crate) fn turned<T>(self, [height, width]: [T; 2]) -> [T; 2] {
        if self.transpose { [width, height] } else { [height, width] }
    }
}

/// Index of the pixels of an upright image in the stored one: `first + y * down + x * right`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PixelIndex {
    first: usize,
    down: isize,
    right: isize,
}

impl PixelIndex {
    /// In a stored image of `size`.
    pub(crate) fn new(orientation: Orientation, [height, width]: [usize; 2]) -> Self {
        let Orientation { flip_rows, flip_columns, .. } = orientation;
        let first_row = if flip_rows { height - 1 } else { 0 };
        let first_column = if flip_columns { width - 1 } else { 0 };
        let row = width as isize * if flip_rows { -1 } else { 1 };
        let column = if flip_columns { -1 } else { 1 };
        let [down, right] = orientation.turned([row, column]);
        Self { first: first_row * width + first_column, down, right }
    }

    /// The index of a pixel of the upright image.
    #[inline(always)]
    pub(crate) fn of(self, row: usize, column: usize) -> usize {
        self.first.wrapping_add_signed(row as isize * self.down + column as isize * self.right)
    }
}

/// A window of an upright image, in pixels, possibly fractional.
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

impl Window {
    /// The window with the same centre that magnifies by `zoom`.
    pub(crate) fn zoomed(self, zoom: f64) -> Self {
        let (height, width) = (self.height / zoom, self.width / zoom);
        let (top, left) = (self.top + (self.height - height) / 2.0, self.left + (self.width - width) / 2.0);
        Self { top, left, height, width }
    }

    /// The window of the upright image in coordinates of the stored one of `size`.
    pub(crate) fn stored(self, orientation: Orientation, size: [usize; 2]) -> Self {
        let Orientation { flip_rows, flip_columns, .. } = orientation;
        let [top, left] = orientation.turned([self.top, self.left]);
        let [height, width] = orientation.turned([self.height, self.width]);
        let [stored_height, stored_width] = size.map(|length| length as f64);
        let top = if flip_rows { stored_height - top - height } else { top }.max(0.0);
        let left = if flip_columns { stored_width - left - width } else { left }.max(0.0);
        // Rounding must not reach beyond the image.
        Self { top, left, height: height.min(stored_height - top), width: width.min(stored_width - left) }
    }
}

impl Window {
    /// The window in pixels that are squares of `by` × `by`.
    fn reduced(self, by: usize) -> Self {
        let of = |length: f64| length / by as f64;
        let Self { top, left, height, width } = self;
        Self { top: of(top), left: of(left), height: of(height), width: of(width) }
    }
}

/// A region of a stored image, in whole pixels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its rows.
    pub rows: Range<usize>,
    /// Its columns.
    pub columns: Range<usize>,
    /// By how much the image may be reduced while it is decoded.
    pub reduction: Reduction,
}

/// A stored image of which a sample has a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduced {
    /// Its height and width.
    pub size: [usize; 2],
    /// By how much it was reduced.
    pub reduction: Reduction,
}

impl Region {
    /// All of an image of `shape` (C, H, W), not reduced.
    #[must_use]
    pub fn of([_, height, width]: [usize; 3]) -> Self {
        Self { rows: 0..height, columns: 0..width, reduction: Reduction::Whole }
    }
}

/// The view of an image that becomes a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct View {
    /// The window; within the image unless rotated.
    pub window: Window,
    /// The rotation about the centre of the window, where images are rotated or zoomed.
    pub turn: Option<Turn>,
}

/// Chooses windows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Framing {
    /// Height and width of a sample.
    pub wanted: [usize; 2],
    /// The shorter side that an image is resized to before its centre is cropped.
    pub resize: Option<usize>,
    /// The random crop.
    pub random: Option<ResizedCrop>,
    /// Whether the crop is at a random position instead of the centre.
    pub random_place: bool,
    /// The largest rotation, in degrees, either way.
    pub rotation: f64,
    /// The least and the greatest zoom factor.
    pub zoom: Option<[f64; 2]>,
    /// Whether images are reduced while they are decoded, where windows are larger than samples.
    pub reduces: bool,
    pub seed: u64,
}

impl Framing {
    pub(crate) fn new(wanted: [usize; 2], resize: Option<usize>, augment: &Augment, seed: u64) -> Self {
        Self {
            wanted,
            resize,
            random: augment.resized_crop,
            random_place: augment.random_crop,
            rotation: augment.rotation,
            zoom: augment.zoom,
            reduces: false,
            seed,
        }
    }

    /// The view of an upright image of `size` (H, W) for `sample` in `epoch`.
    pub(crate) fn view(&self, size: [usize; 2], epoch: u32, sample: u32) -> View {
        if self.rotation == 0.0 && self.zoom.is_none() {
            return View { window: self.window(size, 1.0, epoch, sample), turn: None };
        }
        let mut stream = Stream::new(self.seed, Purpose::Affine, u64::from(sample), epoch);
        let mut between = |[low, high]: [f64; 2]| low + (high - low) * f64::from(stream.uniform());
        let turn = Turn::new(between([-self.rotation, self.rotation]));
        let zoom = between(self.zoom.unwrap_or([1.0; 2]));
        View { window: self.window(size, zoom, epoch, sample), turn: Some(turn) }
    }

    /// The region of a stored image of `shape` (C, H, W) that is read for `sample` in `epoch`.
    pub(crate) fn region(
        &self,
        shape: [usize; 3],
        orientation: Orientation,
        epoch: u32,
        sample: u32,
    ) -> Region {
        let [_, height, width] = shape;
        let View { window, turn } = self.view(orientation.turned([height, width]), epoch, sample);
        if turn.is_some() {
            return Region::of(shape);
        }
        let part = window.stored(orientation, [height, width]);
        let [rows, columns] = orientation.turned(self.wanted);
        let fits = |reduction: &Reduction| {
            part.height >= (rows * reduction.by()) as f64 && part.width >= (columns * reduction.by()) as f64
        };
        let reductions = if self.reduces { &Reduction::ALL[..] } else { &[] };
        let reduction = reductions.iter().copied().find(fits).unwrap_or_default();
        let along = |first: f64, length: f64, wanted: usize, all: usize| {
            // The reach of the filter beyond the window, and one pixel for rounding.
            let reach = (length / wanted as f64).max(1.0) + reduction.by() as f64;
            // Casting clamps negative numbers to 0.
            let end = all.min((first + length + reach).ceil() as usize);
            ((first - reach).floor() as usize).min(end)..end
        };
        Region {
            rows: along(part.top, part.height, rows, height),
            columns: along(part.left, part.width, columns, width),
            reduction,
        }
    }

    /// The window of an upright image of `size` (H, W) for `sample` in `epoch`, magnified by `zoom`.
    fn window(&self, size: [usize; 2], zoom: f64, epoch: u32, sample: u32) -> Window {
        if let Some(crop) = self.random
            && let Some(window) = self.random_part(crop, size, epoch, sample)
        {
            return if zoom == 1.0 { window } else { window.zoomed(zoom) };
        }
        let size @ [height, width] = size.map(|length| length as f64);
        let wanted @ [wanted_height, wanted_width] = self.wanted.map(|length| length as f64);
        // Pixels of the stored image per pixel of the sample.
        let scale = match self.resize {
            Some(side) => height.min(width) / side as f64,
            None => (height / wanted_height).min(width / wanted_width),
        };
        let part = [0, 1].map(|axis| (wanted[axis] * scale).min(size[axis]) / zoom);
        let mut first = [0, 1].map(|axis| (size[axis] - part[axis]) / 2.0);
        if self.random_place {
            let mut stream = Stream::new(self.seed, Purpose::Crop, u64::from(sample), epoch);
            for axis in [0, 1] {
                // Whole pixels of the resized image, except for rounding.
                let step = part[axis] / wanted[axis];
                let room = size[axis] - part[axis];
                let places = (room / step + 1e-6).floor();
                let drawn = stream.below((places.max(0.0) as u32).saturating_add(1));
                if places >= 1.0 {
                    first[axis] = (f64::from(drawn) * step).min(room);
                }
            }
        }
        Window { top: first[0], left: first[1], height: part[0], width: part[1] }
    }

    /// A random window of whole pixels; `None` where no attempt fits into the image.
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

/// Crops and resizes images, and keeps its memory between them. The resizing library allocates two small
/// tables of coefficients per image.
#[derive(Debug, Default)]
pub(crate) struct Framer {
    pub(crate) resizer: Resizer,
    /// The rotated window, shrunk first, as stored.
    pub(crate) shrunk: Vec<u8>,
    /// The window at the wanted size, as stored; upright where it is rotated.
    pub(crate) resized: Vec<u8>,
    /// For each row of a rotated window, the range of columns inside the image.
    pub(crate) shown: Vec<[usize; 2]>,
    /// The window at the wanted size, upright, where it is stored otherwise.
    turned: Vec<u8>,
    /// The same with the wanted channels, where they differ.
    recoloured: Vec<u8>,
}

/// The pixels of a sample, of the wanted shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framed<'a> {
    pub pixels: &'a [u8],
    pub order: PixelOrder,
    /// Where some pixels lie outside the image: for each row, the range of columns inside.
    pub shown: Option<&'a [[usize; 2]]>,
}

impl Framer {
    /// The pixels of the `view` of a sample, of `shape` (C, H, W).
    pub(crate) fn cut<'a>(
        &'a mut self,
        sample: &Sample<'a>,
        view: View,
        shape: [usize; 3],
    ) -> Result<Framed<'a>, DataError> {
        let [channels, height, width] = sample.shape;
        let [wanted_channels, wanted_height, wanted_width] = shape;
        let [rows, columns] = sample.orientation.turned([wanted_height, wanted_width]);
        let (mut pixels, mut order) = (sample.pixels, sample.order);
        let View { window, turn } = view;
        let mut shown = None;
        if let Some(turn) = turn {
            self.warp(sample, window, turn, [wanted_height, wanted_width])?;
            pixels = &self.resized;
            shown = Some(self.shown.as_slice());
        } else {
            let (stored, by) = (sample.stored_size(), sample.reduction().by());
            let whole = window.top == 0.0
                && window.left == 0.0
                && sample.upright_size().map(|length| length as f64) == [window.height, window.width]
                && stored == [height * by, width * by];
            if !(whole && [height, width] == [rows, columns]) {
                let crop = window.stored(sample.orientation, stored).reduced(by);
                resize_planes(&mut self.resizer, sample, crop, &mut self.resized, [rows, columns])?;
                pixels = &self.resized;
            }
            if sample.orientation != Orientation::default() {
                make_upright(pixels, order, channels, [rows, columns], sample.orientation, &mut self.turned);
                pixels = &self.turned;
            }
        }
        if channels != wanted_channels {
            let plane = wanted_height * wanted_width;
            recolour(pixels, order, [channels, wanted_channels], plane, &mut self.recoloured)?;
            (pixels, order) = (&self.recoloured, PixelOrder::Planes);
        }
        Ok(Framed { pixels, order, shown })
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
    let side_by_side = channels / planes;
    out.resize(channels * rows * columns, 0);
    let Window { left, top, width: part_width, height: part_height } = crop;
    let part = Part { left, top, width: part_width, height: part_height };
    let sources = sample.pixels.chunks_exact(sample.pixels.len() / planes);
    for (source, out) in sources.zip(out.chunks_exact_mut(channels * rows * columns / planes)) {
        let size = [source.len() / (side_by_side * width).max(1), width];
        resizer
            .resize(side_by_side, source, size, part, out, [rows, columns])
            .map_err(|problem| DataError::Resize { problem })?;
    }
    Ok(())
}

/// Turns a stored image of `size` upright.
fn make_upright(
    pixels: &[u8],
    order: PixelOrder,
    channels: usize,
    size: [usize; 2],
    orientation: Orientation,
    out: &mut Vec<u8>,
) {
    let [rows, columns] = orientation.turned(size);
    let stored = PixelIndex::new(orientation, size);
    out.clear();
    let places = (0..rows).flat_map(|y| (0..columns).map(move |x| stored.of(y, x)));
    match order {
        PixelOrder::Planes => {
            for plane in pixels.chunks_exact(rows * columns) {
                out.extend(places.clone().map(|at| plane[at]));
            }
        }
        PixelOrder::Interleaved => {
            places.for_each(|at| out.extend_from_slice(&pixels[at * channels..][..channels]));
        }
    }
}

/// Converts channels: grey is repeated; RGB becomes luma (ITU-R BT.601).
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

/// A shape for messages: 3×224×224.
pub(crate) fn shape_text(shape: [usize; 3]) -> String {
    let [channels, height, width] = shape;
    format!("{channels}×{height}×{width}")
}

#[cfg(test)]
mod tests;
