//! From a stored mask to the labels of a batch: the class of every pixel, with the same window and placement
//! as its image.
//!
//! A pixel takes the class of the stored pixel that its centre falls into (nearest neighbour), so no new
//! class appears. Pixels outside the stored image have no class. A blanked square (cutout) hides pixels of
//! the image, not of its mask.

use crate::buffer::IGNORED_LABEL;
use crate::datasets::IGNORED_PIXEL;
use crate::transform::affine::Affine;
use crate::transform::augment::{Padding, Placement};
use crate::transform::frame::{Orientation, PixelIndex, View, Window};

/// A mask as it is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredMask<'a> {
    /// The class of every pixel, row-major.
    pub classes: &'a [u8],
    /// Height and width.
    pub size: [usize; 2],
    /// How it is to be turned so that it is upright: as its image.
    pub orientation: Orientation,
}

/// Writes masks into batches; keeps its memory between them.
#[derive(Debug, Default)]
pub(crate) struct MaskWriter {
    /// The rows and columns of the sample that those of the batch show, by the placement; none where they
    /// show nothing.
    rows: Vec<Option<usize>>,
    columns: Vec<Option<usize>>,
    /// A mask of the image's size, of which the batch gets some pixels.
    fine: Vec<i32>,
}

impl MaskWriter {
    /// Writes every pixel of a coarser mask of `wanted` rows × columns: the class of the pixel at its centre
    /// in the mask of `size`, which is that of the image in the batch.
    pub(crate) fn write_coarse(
        &mut self,
        out: &mut [i32],
        wanted: [usize; 2],
        mask: &StoredMask<'_>,
        view: View,
        size: [usize; 2],
        placement: &Placement,
    ) {
        if wanted == size {
            return self.write(out, mask, view, size, placement);
        }
        let mut fine = std::mem::take(&mut self.fine);
        fine.resize(size[0] * size[1], IGNORED_LABEL);
        self.write(&mut fine, mask, view, size, placement);
        let centre = |at: usize, axis: usize| (2 * at + 1) * size[axis] / (2 * wanted[axis]);
        for (row, out) in out.chunks_exact_mut(wanted[1]).enumerate() {
            let from = &fine[centre(row, 0) * size[1]..][..size[1]];
            out.iter_mut().enumerate().for_each(|(column, out)| *out = from[centre(column, 1)]);
        }
        self.fine = fine;
    }

    /// Writes the classes of a `view` of the mask, placed as told, to `out`: rows × columns of `wanted`.
    pub(crate) fn write(
        &mut self,
        out: &mut [i32],
        mask: &StoredMask<'_>,
        view: View,
        wanted: [usize; 2],
        placement: &Placement,
    ) {
        let [height, width] = wanted;
        self.rows.clear();
        self.rows.extend((0..height).map(|y| moved(y, placement.shift.rows, height, placement.padding)));
        self.columns.clear();
        self.columns.extend((0..width).map(|x| {
            let x = moved(x, placement.shift.columns, width, placement.padding)?;
            Some(if placement.flip { width - 1 - x } else { x })
        }));
        let stored = PixelIndex::new(mask.orientation, mask.size);
        let upright = mask.orientation.turned(mask.size);
        let class = |[row, column]: [usize; 2]| label(mask.classes[stored.of(row, column)]);
        if let Some(turn) = view.turn {
            let affine = Affine::new(view.window, turn, wanted);
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

    /// Writes what `label` gives for the row and column of every pixel that shows something.
    fn each_pixel(&self, out: &mut [i32], label: impl Fn(usize, usize) -> Option<i32>) {
        for (out, &row) in out.chunks_exact_mut(self.columns.len()).zip(&self.rows) {
            for (out, &column) in out.iter_mut().zip(&self.columns) {
                let shown = row.zip(column).and_then(|(row, column)| label(row, column));
                *out = shown.unwrap_or(IGNORED_LABEL);
            }
        }
    }
}

/// The label of a pixel of class `class`.
fn label(class: u8) -> i32 {
    if class == IGNORED_PIXEL { IGNORED_LABEL } else { i32::from(class) }
}

/// Position `at + by` within `length`; outside, `None` or the reflected position, by the padding.
fn moved(at: usize, by: i32, length: usize, padding: Padding) -> Option<usize> {
    let place = at as isize + by as isize;
    let place = match padding {
        Padding::Zero => place,
        Padding::Reflect => {
            let last = length as isize - 1;
            last - (last - place.abs()).abs()
        }
    };
    usize::try_from(place).ok().filter(|&place| place < length)
}

/// The stored pixel that the centre of pixel `at` of `count` falls into; the `count` pixels cover `length`
/// stored pixels from `first` on.
///
/// Like Pillow's `NEAREST` and torchvision's `NEAREST_EXACT`, except that a centre between two pixels always
/// belongs to the second.
fn nearest(at: usize, count: usize, first: f64, length: f64, stored: usize) -> usize {
    let centre = first + (2 * at + 1) as f64 * length / (2 * count) as f64;
    (centre as usize).min(stored - 1)
}

/// The greatest class of a mask; `None` where no pixel has one.
pub(crate) fn greatest_class(classes: &[u8]) -> Option<u8> {
    // Class + 1, and 0 for no class: a loop without branches.
    let above = classes.iter().fold(0, |above: u8, class| above.max(class.wrapping_add(1)));
    above.checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::augment::{Blank, Shift};

    const WHOLE: Window = Window { top: 0.0, left: 0.0, height: 3.0, width: 4.0 };
    /// Class 10 × row + column, but for the last, which has none.
    const CLASSES: [u8; 12] = [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 255];

    fn written(
        orientation: Orientation,
        window: Window,
        wanted: [usize; 2],
        placement: Placement,
    ) -> Vec<i32> {
        let mask = StoredMask { classes: &CLASSES, size: [3, 4], orientation };
        let view = View { window, turn: None };
        let mut out = vec![77; wanted[0] * wanted[1]];
        MaskWriter::default().write(&mut out, &mask, view, wanted, &placement);
        out
    }

    #[test]
    fn a_whole_mask_is_its_classes_moved_and_mirrored_but_not_blanked() {
        let upright = Orientation::default();
        let plain = written(upright, WHOLE, [3, 4], Placement::default());
        assert_eq!(plain, [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, -1]);
        let placement = Placement {
            flip: true,
            shift: Shift { rows: 1, columns: -1 },
            blank: Some(Blank { rows: [0, 3], columns: [0, 4] }),
            padding: Padding::Zero,
        };
        let moved = written(upright, WHOLE, [3, 4], placement);
        assert_eq!(moved, [-1, 13, 12, 11, -1, -1, 22, 21, -1, -1, -1, -1]);
        let reflected = written(upright, WHOLE, [3, 4], Placement { padding: Padding::Reflect, ..placement });
        assert_eq!(reflected, [12, 13, 12, 11, 22, -1, 22, 21, 12, 13, 12, 11]);
    }

    /// A pixel of a coarser mask is the one at its centre, after the image was moved.
    #[test]
    fn a_coarse_mask_has_the_pixels_at_the_centres() {
        let mask = StoredMask { classes: &CLASSES, size: [3, 4], orientation: Orientation::default() };
        let view = View { window: WHOLE, turn: None };
        let mut writer = MaskWriter::default();
        let mut coarse = |wanted: [usize; 2], placement: Placement| {
            let mut out = vec![77; wanted[0] * wanted[1]];
            writer.write_coarse(&mut out, wanted, &mask, view, [3, 4], &placement);
            out
        };
        assert_eq!(coarse([1, 2], Placement::default()), [11, 13]);
        assert_eq!(coarse([3, 1], Placement::default()), [2, 12, 22]);
        let flipped = Placement { flip: true, ..Placement::default() };
        assert_eq!(coarse([1, 2], flipped), [12, 10]);
        assert_eq!(coarse([3, 4], Placement::default())[..4], [0, 1, 2, 3]);
    }

    #[test]
    fn turned_masks_are_turned() {
        // Columns of the stored mask, its last first, are the rows of the upright one.
        let wanted = Window { top: 0.0, left: 0.0, height: 4.0, width: 3.0 };
        let turned = written(Orientation::from_exif(8), wanted, [4, 3], Placement::default());
        assert_eq!(turned, [3, 13, -1, 2, 12, 22, 1, 11, 21, 0, 10, 20]);
        let half = written(Orientation::from_exif(3), WHOLE, [3, 4], Placement::default());
        assert_eq!(half, [-1, 22, 21, 20, 13, 12, 11, 10, 3, 2, 1, 0]);
        // The upper right quarter of what is upright by orientation 6: the stored mask's left columns of its
        // upper rows.
        let window = Window { top: 0.0, left: 1.0, height: 2.0, width: 2.0 };
        let corner = written(Orientation::from_exif(6), window, [2, 2], Placement::default());
        assert_eq!(corner, [10, 0, 11, 1]);
    }

    /// The centre decides: of four columns shrunk to three, 0.67, 2 and 3.33; to two, 1 and 3.
    #[test]
    fn the_pixel_under_the_centre_is_taken() {
        let upright = Orientation::default();
        assert_eq!(written(upright, WHOLE, [1, 3], Placement::default()), [10, 12, 13]);
        assert_eq!(written(upright, WHOLE, [1, 2], Placement::default()), [11, 13]);
        assert_eq!(written(upright, WHOLE, [1, 8], Placement::default()), [10, 10, 11, 11, 12, 12, 13, 13]);
        let between = Window { top: 0.75, left: 0.75, height: 1.0, width: 2.0 };
        assert_eq!(written(upright, between, [1, 2], Placement::default()), [11, 12]);
    }

    #[test]
    fn the_greatest_class_passes_over_what_has_none() {
        assert_eq!(greatest_class(&CLASSES), Some(22));
        assert_eq!(greatest_class(&[255, 0]), Some(0));
        assert_eq!(greatest_class(&[255; 40]), None);
        assert_eq!(greatest_class(&[254]), Some(254));
    }
}
