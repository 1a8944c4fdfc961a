//! Annotations of images whose EXIF orientation turns them: of the image as it is shown, or as it is stored.
//!
//! Programs that people annotate with show an image upright, and what they write is in coordinates of that.
//! Loaders of the field (OpenCV's, Pillow's `exif_transpose`) turn the image and take annotations as they
//! are: so does this one. Where the size that the annotations are for is the stored image's alone, they are
//! of the stored image, and are turned with it. A size that is both (a half turn, a mirror image, a square)
//! says nothing: then the field's rule holds.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::transform::frame::{Orientation, PixelIndex};

/// Which image annotations are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// The image as it is stored.
    Stored,
    /// The image as it is shown.
    Upright {
        /// Whether their size says so; else the rule does.
        certain: bool,
    },
}

/// Which image annotations of a size are of, both as height and width; `None` where they are of neither.
pub(super) fn annotated(size: [usize; 2], stored: [usize; 2], orientation: Orientation) -> Option<Of> {
    if orientation == Orientation::default() {
        return (size == stored).then_some(Of::Stored);
    }
    match (size == orientation.turned(stored), size == stored) {
        (true, certain) => Some(Of::Upright { certain: !certain }),
        (false, true) => Some(Of::Stored),
        (false, false) => None,
    }
}

/// Lays a mask of the upright image out as the stored image of this size is. `spare` is scratch memory.
pub(super) fn store(mask: &mut [u8], stored: [usize; 2], orientation: Orientation, spare: &mut Vec<u8>) {
    spare.clear();
    spare.extend_from_slice(mask);
    let index = PixelIndex::new(orientation, stored);
    let [_, width] = orientation.turned(stored);
    for (row, classes) in spare.chunks_exact(width.max(1)).enumerate() {
        for (column, class) in classes.iter().enumerate() {
            mask[index.of(row, column)] = *class;
        }
    }
}

/// The samples, of those that were read, whose annotations the rule has placed.
#[derive(Debug, Default)]
pub(super) struct Assumed(Vec<AtomicBool>);

impl Assumed {
    pub(super) fn new(samples: usize) -> Self {
        Self((0..samples).map(|_| AtomicBool::new(false)).collect())
    }

    /// Notes what a sample's annotations are of.
    pub(super) fn note(&self, index: usize, of: Of) {
        if of == (Of::Upright { certain: false })
            && let Some(noted) = self.0.get(index)
        {
            noted.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn count(&self) -> usize {
        self.0.iter().filter(|noted| noted.load(Ordering::Relaxed)).count()
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> u64 {
        self.0.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_say_which_image_is_meant_where_they_can() {
        let of = |size, orientation| annotated(size, [32, 48], Orientation::from_exif(orientation));
        assert_eq!(of([32, 48], 1), Some(Of::Stored));
        assert_eq!(of([48, 32], 1), None);
        for orientation in 2..=4 {
            assert_eq!(of([32, 48], orientation), Some(Of::Upright { certain: false }));
            assert_eq!(of([48, 32], orientation), None);
        }
        for orientation in 5..=8 {
            assert_eq!(of([32, 48], orientation), Some(Of::Stored));
            assert_eq!(of([48, 32], orientation), Some(Of::Upright { certain: true }));
            assert_eq!(of([48, 33], orientation), None);
            let square = annotated([9, 9], [9, 9], Orientation::from_exif(orientation));
            assert_eq!(square, Some(Of::Upright { certain: false }));
        }
    }

    /// The upper left pixel of the upright image, and its neighbours, in the stored one.
    #[test]
    fn masks_are_laid_out_as_images_are() {
        let upright = [1, 2, 3, 4, 5, 6];
        for (orientation, expected) in [
            (1, [1, 2, 3, 4, 5, 6]),
            (2, [3, 2, 1, 6, 5, 4]),
            (3, [6, 5, 4, 3, 2, 1]),
            (4, [4, 5, 6, 1, 2, 3]),
            (5, [1, 4, 2, 5, 3, 6]),
            (6, [3, 6, 2, 5, 1, 4]),
            (7, [6, 3, 5, 2, 4, 1]),
            (8, [4, 1, 5, 2, 6, 3]),
        ] {
            let orientation = Orientation::from_exif(orientation);
            let mut mask = upright.to_vec();
            store(&mut mask, orientation.turned([2, 3]), orientation, &mut Vec::new());
            assert_eq!(mask, expected, "{orientation:?}");
        }
    }

    #[test]
    fn samples_are_counted_once() {
        let assumed = Assumed::new(3);
        for (index, of) in [
            (0, Of::Stored),
            (1, Of::Upright { certain: true }),
            (2, Of::Upright { certain: false }),
            (2, Of::Upright { certain: false }),
            (9, Of::Upright { certain: false }),
        ] {
            assumed.note(index, of);
        }
        assert_eq!(assumed.count(), 1);
    }
}
