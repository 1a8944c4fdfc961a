//! Stored images: their orientation, windows and regions of them, and the scale at which they are decoded.

use std::ops::Range;

pub use stratus_jpeg::DctScale;

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

    /// The window in units of `by` × `by` pixels.
    pub(crate) fn scaled_down(self, by: usize) -> Self {
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

/// A shape for messages: 3×224×224.
pub(crate) fn shape_text(shape: [usize; 3]) -> String {
    let [channels, height, width] = shape;
    format!("{channels}×{height}×{width}")
}
