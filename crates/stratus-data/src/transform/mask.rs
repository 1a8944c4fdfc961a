//! Converts a stored mask to the labels of a batch: the class of every pixel, with the same window and
//! placement as its image.
//!
//! A pixel gets the class of the stored pixel that contains its centre (nearest neighbour), so no new class
//! appears. Pixels outside the stored image are ignored. Cutout blanks pixels of the image, not of its mask.

use crate::buffer::IGNORED_LABEL;
use crate::dataset::IGNORED_PIXEL;
use crate::geometry::{Orientation, PixelIndex, Window};
use crate::transform::affine::Affine;
use crate::transform::augment::{Padding, Placement};
use crate::transform::frame::CropView;

/// A mask as it is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredMask<'a> {
    /// The class of every pixel, row-major.
    pub classes: &'a [u8],
    /// Height and width.
    pub size: [usize; 2],
    /// The rotation and mirroring that make it upright, like its image.
    pub orientation: Orientation,
}

/// Writes masks into batches; keeps its memory between them.
#[derive(Debug, Default)]
pub(crate) struct MaskWriter {
    /// The source row of each output row; `None` in the padding.
    rows: Vec<Option<usize>>,
    /// The source column of each output column; `None` in the padding.
    columns: Vec<Option<usize>>,
    /// A mask of the image's size, from which a coarser one is sampled.
    fine: Vec<i32>,
}

impl MaskWriter {
    /// Writes a coarser mask of `output_size` rows × columns: each pixel has the class of the pixel at its
    /// centre in the mask of `size`, the size of the image in the batch.
    pub(crate) fn write_coarse(
        &mut self,
        out: &mut [i32],
        output_size: [usize; 2],
        mask: &StoredMask<'_>,
        view: CropView,
        size: [usize; 2],
        placement: &Placement,
    ) {
        if output_size == size {
            return self.write(out, mask, view, size, placement);
        }
        let mut fine = std::mem::take(&mut self.fine);
        fine.resize(size[0] * size[1], IGNORED_LABEL);
        self.write(&mut fine, mask, view, size, placement);
        let centre = |at: usize, axis: usize| (2 * at + 1) * size[axis] / (2 * output_size[axis]);
        for (row, out) in out.chunks_exact_mut(output_size[1]).enumerate() {
            let from = &fine[centre(row, 0) * size[1]..][..size[1]];
            out.iter_mut().enumerate().for_each(|(column, out)| *out = from[centre(column, 1)]);
        }
        self.fine = fine;
    }

    /// Writes the classes of a `view` of the mask, with its placement, to `out`: rows × columns of
    /// `output_size`.
    pub(crate) fn write(
        &mut self,
        out: &mut [i32],
        mask: &StoredMask<'_>,
        view: CropView,
        output_size: [usize; 2],
        placement: &Placement,
    ) {
        let [height, width] = output_size;
        self.rows.clear();
        self.rows
            .extend((0..height).map(|y| shifted_index(y, placement.shift.rows, height, placement.padding)));
        self.columns.clear();
        self.columns.extend((0..width).map(|x| {
            let x = shifted_index(x, placement.shift.columns, width, placement.padding)?;
            Some(if placement.flip { width - 1 - x } else { x })
        }));
        let stored = PixelIndex::new(mask.orientation, mask.size);
        let upright = mask.orientation.apply_to_size(mask.size);
        let class = |[row, column]: [usize; 2]| label(mask.classes[stored.at(row, column)]);
        if let Some(rotation) = view.rotation {
            let affine = Affine::new(view.window, rotation, output_size);
            self.each_pixel(out, |row, column| affine.pixel(row, column, upright).map(class));
        } else {
            let Window { top, left, height: part_height, width: part_width } = view.window;
            let rows = self.rows.iter_mut().flatten();
            rows.for_each(|row| *row = nearest(*row, height, top, part_height, upright[0]));
            let columns = self.columns.iter_mut().flatten();
            columns.for_each(|column| *column = nearest(*column, width, left, part_width, upright[1]));
            self.each_pixel(out, |row, column| Some(class([row, column])));
        }
    }

    /// Writes the result of `label` for the source row and column of every pixel, or [`IGNORED_LABEL`].
    fn each_pixel(&self, out: &mut [i32], label: impl Fn(usize, usize) -> Option<i32>) {
        for (out, &row) in out.chunks_exact_mut(self.columns.len()).zip(&self.rows) {
            for (out, &column) in out.iter_mut().zip(&self.columns) {
                let label = row.zip(column).and_then(|(row, column)| label(row, column));
                *out = label.unwrap_or(IGNORED_LABEL);
            }
        }
    }
}

/// The label of a pixel of class `class`.
fn label(class: u8) -> i32 {
    if class == IGNORED_PIXEL { IGNORED_LABEL } else { i32::from(class) }
}

/// The position `at + by` within `length`; outside of it `None` or the reflected position, depending on the
/// padding.
fn shifted_index(at: usize, by: i32, length: usize, padding: Padding) -> Option<usize> {
    let position = at as isize + by as isize;
    let position = match padding {
        Padding::Zero => position,
        Padding::Reflect => {
            let last = length as isize - 1;
            last - (last - position.abs()).abs()
        }
    };
    usize::try_from(position).ok().filter(|&position| position < length)
}

/// The stored pixel that contains the centre of pixel `at` of `count`, which cover `length` stored pixels
/// starting at `first`.
///
/// Like Pillow's `NEAREST` and torchvision's `NEAREST_EXACT`, except that a centre between two pixels always
/// belongs to the second.
fn nearest(at: usize, count: usize, first: f64, length: f64, stored: usize) -> usize {
    let centre = first + (2 * at + 1) as f64 * length / (2 * count) as f64;
    (centre as usize).min(stored - 1)
}

/// The maximum class of a mask; `None` if all pixels are ignored.
pub(crate) fn max_class(classes: &[u8]) -> Option<u8> {
    // Class + 1, and 0 for ignored pixels: a loop without branches.
    let above = classes.iter().fold(0, |above: u8, class| above.max(class.wrapping_add(1)));
    above.checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::augment::{PixelRect, Shift};

    const WHOLE: Window = Window { top: 0.0, left: 0.0, height: 3.0, width: 4.0 };
    /// Class 10 × row + column, except the last pixel, which is ignored.
    const CLASSES: [u8; 12] = [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 255];

    fn written(
        orientation: Orientation,
        window: Window,
        output_size: [usize; 2],
        placement: Placement,
    ) -> Vec<i32> {
        let mask = StoredMask { classes: &CLASSES, size: [3, 4], orientation };
        let view = CropView { window, rotation: None };
        let mut out = vec![77; output_size[0] * output_size[1]];
        MaskWriter::default().write(&mut out, &mask, view, output_size, &placement);
        out
    }

    #[test]
    fn shifts_and_mirrors_masks_but_does_not_blank_them() {
        let upright = Orientation::default();
        let plain = written(upright, WHOLE, [3, 4], Placement::default());
        assert_eq!(plain, [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, -1]);
        let placement = Placement {
            flip: true,
            shift: Shift { rows: 1, columns: -1 },
            cutout: Some(PixelRect { rows: [0, 3], columns: [0, 4] }),
            padding: Padding::Zero,
        };
        let moved = written(upright, WHOLE, [3, 4], placement);
        assert_eq!(moved, [-1, 13, 12, 11, -1, -1, 22, 21, -1, -1, -1, -1]);
        let reflected = written(upright, WHOLE, [3, 4], Placement { padding: Padding::Reflect, ..placement });
        assert_eq!(reflected, [12, 13, 12, 11, 22, -1, 22, 21, 12, 13, 12, 11]);
    }

    /// A pixel of a coarser mask is the one at its centre, after the image was shifted.
    #[test]
    fn coarse_masks_take_the_pixels_at_the_centres() {
        let mask = StoredMask { classes: &CLASSES, size: [3, 4], orientation: Orientation::default() };
        let view = CropView { window: WHOLE, rotation: None };
        let mut writer = MaskWriter::default();
        let mut coarse = |output_size: [usize; 2], placement: Placement| {
            let mut out = vec![77; output_size[0] * output_size[1]];
            writer.write_coarse(&mut out, output_size, &mask, view, [3, 4], &placement);
            out
        };
        assert_eq!(coarse([1, 2], Placement::default()), [11, 13]);
        assert_eq!(coarse([3, 1], Placement::default()), [2, 12, 22]);
        let flipped = Placement { flip: true, ..Placement::default() };
        assert_eq!(coarse([1, 2], flipped), [12, 10]);
        assert_eq!(coarse([3, 4], Placement::default())[..4], [0, 1, 2, 3]);
    }

    #[test]
    fn turns_masks_upright() {
        // Columns of the stored mask, its last first, are the rows of the upright one.
        let window = Window { top: 0.0, left: 0.0, height: 4.0, width: 3.0 };
        let rotated = written(Orientation::from_exif(8), window, [4, 3], Placement::default());
        assert_eq!(rotated, [3, 13, -1, 2, 12, 22, 1, 11, 21, 0, 10, 20]);
        let half = written(Orientation::from_exif(3), WHOLE, [3, 4], Placement::default());
        assert_eq!(half, [-1, 22, 21, 20, 13, 12, 11, 10, 3, 2, 1, 0]);
        // The upper right quarter of the upright mask of orientation 6: the left columns of the upper rows of
        // the stored one.
        let window = Window { top: 0.0, left: 1.0, height: 2.0, width: 2.0 };
        let corner = written(Orientation::from_exif(6), window, [2, 2], Placement::default());
        assert_eq!(corner, [10, 0, 11, 1]);
    }

    /// The centre decides: of four columns shrunk to three, 0.67, 2 and 3.33; to two, 1 and 3.
    #[test]
    fn takes_the_pixel_under_the_centre() {
        let upright = Orientation::default();
        assert_eq!(written(upright, WHOLE, [1, 3], Placement::default()), [10, 12, 13]);
        assert_eq!(written(upright, WHOLE, [1, 2], Placement::default()), [11, 13]);
        assert_eq!(written(upright, WHOLE, [1, 8], Placement::default()), [10, 10, 11, 11, 12, 12, 13, 13]);
        let between = Window { top: 0.75, left: 0.75, height: 1.0, width: 2.0 };
        assert_eq!(written(upright, between, [1, 2], Placement::default()), [11, 12]);
    }

    #[test]
    fn max_class_skips_ignored_pixels() {
        assert_eq!(max_class(&CLASSES), Some(22));
        assert_eq!(max_class(&[255, 0]), Some(0));
        assert_eq!(max_class(&[255; 40]), None);
        assert_eq!(max_class(&[254]), Some(254));
    }
}
