//! The coordinate space of annotations of images with an EXIF orientation: the upright or the stored image.
//!
//! Annotation programs show an image upright and write coordinates of the upright image. Common loaders
//! (OpenCV, Pillow's `exif_transpose`) turn the image upright and use annotations as they are; so does this
//! one. If the size given by the annotations matches only the stored image, they refer to it and are rotated
//! with it. If it matches both (a half turn, a mirror image, a square), the upright image is assumed.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::geometry::{Orientation, PixelIndex};

/// The image that annotations refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CoordinateSpace {
    /// The stored image.
    Stored,
    /// The upright image.
    Upright {
        /// True if the annotations' size proves it; false if it is assumed.
        certain: bool,
    },
}

/// The coordinate space of annotations for an image of `size` (H, W); `None` if it is neither the stored nor
/// the upright image's size.
pub(super) fn resolve_space(
    size: [usize; 2],
    stored: [usize; 2],
    orientation: Orientation,
) -> Option<CoordinateSpace> {
    if orientation == Orientation::default() {
        return (size == stored).then_some(CoordinateSpace::Stored);
    }
    match (size == orientation.apply_to_size(stored), size == stored) {
        (true, fits_stored) => Some(CoordinateSpace::Upright { certain: !fits_stored }),
        (false, true) => Some(CoordinateSpace::Stored),
        (false, false) => None,
    }
}

/// Converts a mask of the upright image to the layout of the stored image.
pub(super) fn to_stored_layout(
    mask: &mut [u8],
    stored: [usize; 2],
    orientation: Orientation,
    scratch: &mut Vec<u8>,
) {
    scratch.clear();
    scratch.extend_from_slice(mask);
    let index = PixelIndex::new(orientation, stored);
    let [_, width] = orientation.apply_to_size(stored);
    for (row, classes) in scratch.chunks_exact(width.max(1)).enumerate() {
        for (column, class) in classes.iter().enumerate() {
            mask[index.at(row, column)] = *class;
        }
    }
}

/// The samples read so far whose annotations are only assumed to refer to the upright image.
#[derive(Debug, Default)]
pub(super) struct AssumedUpright(Vec<AtomicBool>);

impl AssumedUpright {
    pub(super) fn new(samples: usize) -> Self {
        Self((0..samples).map(|_| AtomicBool::new(false)).collect())
    }

    /// Records the coordinate space of a sample.
    pub(super) fn record(&self, index: usize, space: CoordinateSpace) {
        if space == (CoordinateSpace::Upright { certain: false })
            && let Some(assumed) = self.0.get(index)
        {
            assumed.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn count(&self) -> usize {
        self.0.iter().filter(|assumed| assumed.load(Ordering::Relaxed)).count()
    }

    /// Memory in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.0.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolves_the_coordinate_space_from_sizes() {
        let resolve = |size, orientation| resolve_space(size, [32, 48], Orientation::from_exif(orientation));
        assert_eq!(resolve([32, 48], 1), Some(CoordinateSpace::Stored));
        assert_eq!(resolve([48, 32], 1), None);
        for orientation in 2..=4 {
            assert_eq!(resolve([32, 48], orientation), Some(CoordinateSpace::Upright { certain: false }));
            assert_eq!(resolve([48, 32], orientation), None);
        }
        for orientation in 5..=8 {
            assert_eq!(resolve([32, 48], orientation), Some(CoordinateSpace::Stored));
            assert_eq!(resolve([48, 32], orientation), Some(CoordinateSpace::Upright { certain: true }));
            assert_eq!(resolve([48, 33], orientation), None);
            let square = resolve_space([9, 9], [9, 9], Orientation::from_exif(orientation));
            assert_eq!(square, Some(CoordinateSpace::Upright { certain: false }));
        }
    }

    /// The position of the upright image's pixels in the stored one.
    #[test]
    fn lays_masks_out_like_stored_images() {
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
            to_stored_layout(&mut mask, orientation.apply_to_size([2, 3]), orientation, &mut Vec::new());
            assert_eq!(mask, expected, "{orientation:?}");
        }
    }

    #[test]
    fn counts_each_sample_once() {
        let assumed = AssumedUpright::new(3);
        for (index, space) in [
            (0, CoordinateSpace::Stored),
            (1, CoordinateSpace::Upright { certain: true }),
            (2, CoordinateSpace::Upright { certain: false }),
            (2, CoordinateSpace::Upright { certain: false }),
            (9, CoordinateSpace::Upright { certain: false }),
        ] {
            assumed.record(index, space);
        }
        assert_eq!(assumed.count(), 1);
    }
}
