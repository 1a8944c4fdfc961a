//! Finds equal images by a hash of their decoded pixels, so that copies in other files or formats without
//! loss are found too.

use crate::dataset::{IGNORED, Sample};
use sha2::{Digest, Sha256};

/// Bytes of a hash: two of 10⁹ different images have the same with a probability below 10⁻²⁰.
const HASH_BYTES: usize = 16;

/// An image of a data set and the hash of its pixels. It takes 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HashedImage {
    hash: [u8; HASH_BYTES],
    /// The index of the sample.
    pub index: u32,
    /// Its label, or a hash of its targets, or [`IGNORED`].
    label: u32,
}

impl HashedImage {
    /// Hashes the shape and the pixels of a sample as it is stored: one that is only turned by its
    /// orientation is the same picture.
    #[must_use]
    pub fn new(sample: &Sample<'_>, index: u32) -> Self {
        let mut digest = Sha256::new();
        for length in sample.shape {
            digest.update((length as u64).to_le_bytes());
        }
        digest.update(sample.pixels);
        let mut hash = [0; HASH_BYTES];
        hash.copy_from_slice(&digest.finalize()[..HASH_BYTES]);
        Self { hash, index, label: sample.label }
    }

    /// The same image with targets; none if the slice is empty.
    #[must_use]
    pub fn with_targets(self, targets: &[f32]) -> Self {
        if targets.is_empty() {
            return self;
        }
        let mut digest = Sha256::new();
        for target in targets {
            let target = if target.is_nan() { f32::NAN } else { *target };
            digest.update(target.to_bits().to_le_bytes());
        }
        let [a, b, c, ..]: [u8; 32] = digest.finalize().into();
        Self { label: u32::from_le_bytes([a, b, c, 0]), ..self }
    }

    /// Returns whether both have a class or targets, and not the same ones.
    #[must_use]
    pub fn has_another_class(&self, other: &Self) -> bool {
        self.label != other.label && self.label != IGNORED && other.label != IGNORED
    }
}

/// The groups of at least two equal images, in the order of their hashes; each by index.
pub fn equal_images(sorted: &[HashedImage]) -> impl Iterator<Item = &[HashedImage]> {
    sorted.chunk_by(|a, b| a.hash == b.hash).filter(|group| group.len() > 1)
}

/// The images of `sorted` that are also in `others`, each with the first equal one. Both are sorted.
#[must_use]
pub fn common_images(sorted: &[HashedImage], others: &[HashedImage]) -> Vec<[u32; 2]> {
    let equal = |image: &HashedImage| {
        let first = others.partition_point(|other| other.hash < image.hash);
        others.get(first).filter(|other| other.hash == image.hash)
    };
    let mut common: Vec<[u32; 2]> =
        sorted.iter().filter_map(|image| Some([image.index, equal(image)?.index])).collect();
    common.sort_unstable();
    common
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Orientation;
    use crate::transform::pixels::PixelOrder;

    fn hashed(pixels: &[u8], shape: [usize; 3], index: u32, label: u32) -> HashedImage {
        let (order, orientation) = (PixelOrder::Interleaved, Orientation::default());
        let sample = Sample { pixels, shape, dct_scaled: None, order, orientation, label, mask: None };
        HashedImage::new(&sample, index)
    }

    #[test]
    fn equal_pixels_of_the_same_shape_are_equal_images() {
        let mut images = [
            hashed(&[1, 2, 3, 4], [1, 2, 2], 3, 0),
            hashed(&[1, 2, 3, 4], [1, 2, 2], 0, 1),
            hashed(&[1, 2, 3, 4], [1, 1, 4], 1, 0),
            hashed(&[1, 2, 3, 5], [1, 2, 2], 2, 0),
        ];
        images.sort_unstable();
        let groups: Vec<Vec<u32>> =
            equal_images(&images).map(|group| group.iter().map(|image| image.index).collect()).collect();
        assert_eq!(groups, [[0, 3]]);
        let mut others = [
            hashed(&[1, 2, 3, 5], [1, 2, 2], 8, 0),
            hashed(&[1, 2, 3, 4], [1, 2, 2], 7, 0),
            hashed(&[1, 2, 3, 4], [1, 2, 2], 6, 0),
        ];
        others.sort_unstable();
        assert_eq!(common_images(&images, &others), [[0, 6], [2, 8], [3, 6]]);
        let [first, unlabelled] = [0, IGNORED].map(|label| hashed(&[1], [1, 1, 1], 0, label));
        assert!(first.has_another_class(&hashed(&[1], [1, 1, 1], 1, 2)) && !first.has_another_class(&first));
        assert!(!first.has_another_class(&unlabelled) && !unlabelled.has_another_class(&first));
        assert!(common_images(&images, &[]).is_empty() && common_images(&[], &others).is_empty());
    }
}
