//! Rotation and zoom: an affine map from the pixels of a sample to positions in the upright image, and one
//! interpolation.
//!
//! Pixel `i` covers the interval from `i` to `i + 1`; its centre is at `i + ½`. A pixel of the sample whose
//! centre maps into the image is interpolated bilinearly from the four nearest pixels, with the edge
//! repeated. All other pixels are blank. Masks take the pixel that contains the position. Images and masks
//! use the same map, so that they stay aligned.

use crate::dataset::Sample;
use crate::error::DataError;
use crate::geometry::{PixelIndex, Window};
use crate::transform::pixels::PixelOrder;
use crate::transform::resize::Resizer;

/// The scale (image pixels per sample pixel) above which the image is shrunk first, because bilinear
/// interpolation would skip too many pixels.
const PRESHRINK_SCALE: f64 = 1.5;
/// Fraction bits of an interpolation weight.
const WEIGHT_BITS: u32 = 10;

/// An anticlockwise rotation about the centre of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rotation {
    pub sine: f64,
    pub cosine: f64,
}

impl Rotation {
    /// A rotation by an angle in degrees.
    pub(crate) fn new(degrees: f64) -> Self {
        // Math libraries differ in the last bit of a sine. Rounding makes the results equal; the error is
        // below a thousandth of a pixel over a million pixels.
        let rounded = |number: f64| (number * f64::from(1 << 30)).round() / f64::from(1 << 30);
        let (sine, cosine) = degrees.to_radians().sin_cos();
        Self { sine: rounded(sine), cosine: rounded(cosine) }
    }
}

/// The positions of sample pixels in the upright image: `first + y * down + x * right`, each as (row,
/// column).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Affine {
    /// The centre of the first pixel.
    first: [f64; 2],
    /// The step to the pixel below.
    down: [f64; 2],
    /// The step to the pixel on the right.
    right: [f64; 2],
}

impl Affine {
    /// The map for samples of size `output_size` of a `window`, rotated about its centre.
    pub(crate) fn new(window: Window, rotation: Rotation, output_size: [usize; 2]) -> Self {
        let [rows, columns] = output_size.map(|length| length as f64);
        let [step_down, step_right] = [window.height / rows, window.width / columns];
        let down = [rotation.cosine * step_down, -rotation.sine * step_right];
        let right = [rotation.sine * step_down, rotation.cosine * step_right];
        let middle = [window.top + window.height / 2.0, window.left + window.width / 2.0];
        let from_middle = [(1.0 - rows) / 2.0, (1.0 - columns) / 2.0];
        let first = |axis: usize| middle[axis] + from_middle[0] * down[axis] + from_middle[1] * right[axis];
        Self { first: [first(0), first(1)], down, right }
    }

    /// The position of the centre of a pixel.
    pub(crate) fn source_position(&self, row: usize, column: usize) -> [f64; 2] {
        let (row, column) = (row as f64, column as f64);
        let along = |axis: usize| self.first[axis] + row * self.down[axis] + column * self.right[axis];
        [along(0), along(1)]
    }

    /// The pixel of an image of `size` that contains the position.
    pub(crate) fn pixel(&self, row: usize, column: usize, size: [usize; 2]) -> Option<[usize; 2]> {
        let position = self.source_position(row, column);
        is_inside(position, size).then(|| position.map(|at| at as usize))
    }

    /// The ranges of rows and columns of an image of `size` that samples of size `output_size` read, extended
    /// by `margins`.
    fn bounds(&self, output_size: [usize; 2], margins: [f64; 2], size: [usize; 2]) -> [[usize; 2]; 2] {
        let [last_row, last_column] = output_size.map(|length| length - 1);
        let corners = [[0, 0], [0, last_column], [last_row, 0], [last_row, last_column]]
            .map(|[y, x]| self.source_position(y, x));
        [0, 1].map(|axis| {
            let along = corners.map(|corner| corner[axis]);
            let min = along.into_iter().fold(f64::INFINITY, f64::min) - margins[axis];
            let max = along.into_iter().fold(f64::NEG_INFINITY, f64::max) + margins[axis];
            // The cast clamps negative numbers to 0.
            [(min.floor() as usize).min(size[axis]), (max.ceil() as usize).min(size[axis])]
        })
    }
}

fn is_inside([row, column]: [f64; 2], [rows, columns]: [usize; 2]) -> bool {
    (0.0..rows as f64).contains(&row) && (0.0..columns as f64).contains(&column)
}

/// Rotates and zooms images, reusing its memory.
#[derive(Debug, Default)]
pub(crate) struct Rotator {
    /// The part of the image that is shrunk before rotation, as stored.
    shrunk: Vec<u8>,
    /// The upright window, in the channels and order of the sample.
    pub(crate) pixels: Vec<u8>,
    /// For each row of the window, the range of columns inside the image.
    pub(crate) valid_columns: Vec<[usize; 2]>,
}

impl Rotator {
    /// Renders a rotated window at size `output_size` to `pixels` and `valid_columns`.
    pub(crate) fn rotate(
        &mut self,
        resizer: &mut Resizer,
        sample: &Sample<'_>,
        window: Window,
        rotation: Rotation,
        output_size: [usize; 2],
    ) -> Result<(), DataError> {
        let [channels, stored_rows, stored_columns] = sample.shape;
        let [rows, columns] = output_size;
        let upright = sample.upright_size();
        let affine = Affine::new(window, rotation, output_size);
        let steps = [window.height / rows as f64, window.width / columns as f64];

        // The region of the image to sample from, and its scale.
        let mut region = [[0, upright[0]], [0, upright[1]]];
        let (mut pixels, mut size) = (sample.pixels, [stored_rows, stored_columns]);
        if steps.iter().any(|step| *step > PRESHRINK_SCALE) {
            let margins = steps.map(|step| step.max(1.0) + 1.0);
            let bounds = affine.bounds(output_size, margins, upright);
            if bounds.iter().all(|[first, end]| first < end) {
                region = bounds;
                let lengths = region.map(|[first, end]| (end - first) as f64);
                let shrunk = [0, 1].map(|axis| (lengths[axis] / steps[axis].max(1.0)).ceil() as usize);
                let crop = Window {
                    top: region[0][0] as f64,
                    left: region[1][0] as f64,
                    height: lengths[0],
                    width: lengths[1],
                };
                let stored = crop.stored(sample.orientation, size);
                let shrunk = sample.orientation.apply_to_size(shrunk);
                resizer.resize(sample, stored, &mut self.shrunk, shrunk)?;
                (pixels, size) = (&self.shrunk, shrunk);
            }
        }
        let stored_index = PixelIndex::new(sample.orientation, size);
        let available = sample.orientation.apply_to_size(size);
        let density = [0, 1].map(|axis| available[axis] as f64 / (region[axis][1] - region[axis][0]) as f64);
        // The strides of pixels and channels.
        let (pixel_step, stored_plane, plane) = match sample.order {
            PixelOrder::Planes => (1, size[0] * size[1], rows * columns),
            PixelOrder::Interleaved => (channels, 1, 1),
        };
        self.pixels.clear();
        self.pixels.resize(channels * rows * columns, 0);
        self.valid_columns.clear();
        for row in 0..rows {
            // Along a row the map is a straight line, so the pixels inside the image are contiguous.
            let is_valid = |&column: &usize| is_inside(affine.source_position(row, column), upright);
            let first = (0..columns).find(is_valid).unwrap_or(columns);
            let end = (first..columns).find(|column| !is_valid(column)).unwrap_or(columns);
            self.valid_columns.push([first, end]);
            for column in first..end {
                let position = affine.source_position(row, column);
                let [y, x] = [0, 1].map(|axis| {
                    Neighbours::new(
                        (position[axis] - region[axis][0] as f64) * density[axis],
                        available[axis],
                    )
                });
                let corners = [(y.low, x.low), (y.low, x.high), (y.high, x.low), (y.high, x.high)]
                    .map(|(y, x)| stored_index.at(y, x) * pixel_step);
                let out = (row * columns + column) * pixel_step;
                for channel in 0..channels {
                    let [a, b, c, d] = corners.map(|at| u32::from(pixels[at + channel * stored_plane]));
                    let upper = a * (Neighbours::WHOLE - x.share) + b * x.share;
                    let lower = c * (Neighbours::WHOLE - x.share) + d * x.share;
                    let sum = upper * (Neighbours::WHOLE - y.share) + lower * y.share;
                    self.pixels[out + channel * plane] =
                        ((sum + Neighbours::HALF) >> (2 * WEIGHT_BITS)) as u8;
                }
            }
        }
        Ok(())
    }
}

/// The two pixels to interpolate along an axis.
struct Neighbours {
    low: usize,
    high: usize,
    /// The weight of `high`, of [`Neighbours::WHOLE`].
    share: u32,
}

impl Neighbours {
    const WHOLE: u32 = 1 << WEIGHT_BITS;
    /// Half of the total weight of both axes, for rounding.
    const HALF: u32 = 1 << (2 * WEIGHT_BITS - 1);

    fn new(position: f64, length: usize) -> Self {
        let from_centre = (position - 0.5).clamp(0.0, (length - 1) as f64);
        let low = from_centre as usize;
        let share = ((from_centre - low as f64) * f64::from(Self::WHOLE)) as u32;
        Self { low, high: (low + 1).min(length - 1), share }
    }
}

#[cfg(test)]
mod tests;
