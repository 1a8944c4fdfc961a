//! Distances against the definition: the least over all pixels.

use proptest::prelude::*;
use stratus_measures::DistanceTransform;

/// Squared distances between two indices of an image.
pub fn squared(width: usize, a: usize, b: usize) -> u64 {
    let rows = (a / width).abs_diff(b / width) as u64;
    let columns = (a % width).abs_diff(b % width) as u64;
    rows * rows + columns * columns
}

proptest! {
    #[test]
    fn distances_are_exact(
        (width, image) in (1usize..14, 1usize..14).prop_flat_map(|(height, width)| {
            (Just(width), prop::collection::vec(0u8..20, height * width))
        }),
        wanted in 0u8..20,
        limit in 0u64..60,
    ) {
        let mut distances = DistanceTransform::default();
        // Leftovers of another image must not matter.
        distances.measure(&[1, 0, 0, 1, 1, 1], 3, 0);
        distances.measure(&image, width, wanted);
        for pixel in 0..image.len() {
            let set = (0..image.len()).filter(|&other| image[other] == wanted);
            let expected = set.map(|other| squared(width, pixel, other)).min();
            prop_assert_eq!(distances.squared(pixel, u64::MAX), expected);
            prop_assert_eq!(distances.squared(pixel, limit), expected.filter(|&distance| distance <= limit));
        }
        prop_assert_eq!(distances.squared(image.len(), u64::MAX), None);
    }
}

#[test]
fn no_pixels_have_no_distances() {
    let mut distances = DistanceTransform::default();
    assert_eq!(distances.squared(0, 1), None);
    distances.measure::<u8>(&[], 0, 1);
    assert_eq!(distances.squared(0, 1), None);
}

#[test]
fn long_images_are_exact() {
    let mut image = vec![0u8; 60_000];
    image[0] = 1;
    let mut distances = DistanceTransform::default();
    for width in [1, image.len()] {
        distances.measure(&image, width, 1);
        assert_eq!(distances.squared(image.len() - 1, u64::MAX), Some(59_999 * 59_999));
    }
}
