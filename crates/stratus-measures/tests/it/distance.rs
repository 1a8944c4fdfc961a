//! Distances compared with the definition, the minimum over all pixels.

use proptest::prelude::*;
use stratus_measures::DistanceTransform;

/// The squared distance between two pixels of an image, given by index.
pub fn squared(width: usize, a: usize, b: usize) -> u64 {
    let rows = (a / width).abs_diff(b / width) as u64;
    let columns = (a % width).abs_diff(b % width) as u64;
    rows * rows + columns * columns
}

proptest! {
    #[test]
    fn distances_match_the_definition(
        (width, image) in (1usize..14, 1usize..14).prop_flat_map(|(height, width)| {
            (Just(width), prop::collection::vec(0u8..20, height * width))
        }),
        target in 0u8..20,
        limit in 0u64..60,
    ) {
        let mut distances = DistanceTransform::default();
        // Data of an earlier image must not affect the result.
        distances.compute(&[1, 0, 0, 1, 1, 1], 3, 0);
        distances.compute(&image, width, target);
        for pixel in 0..image.len() {
            let targets = (0..image.len()).filter(|&other| image[other] == target);
            let expected = targets.map(|other| squared(width, pixel, other)).min();
            prop_assert_eq!(distances.squared_at(pixel, u64::MAX), expected);
            let within = expected.filter(|&distance| distance <= limit);
            prop_assert_eq!(distances.squared_at(pixel, limit), within);
        }
        prop_assert_eq!(distances.squared_at(image.len(), u64::MAX), None);
    }
}

#[test]
fn an_empty_image_has_no_distances() {
    let mut distances = DistanceTransform::default();
    assert_eq!(distances.squared_at(0, 1), None);
    distances.compute::<u8>(&[], 0, 1);
    assert_eq!(distances.squared_at(0, 1), None);
}

#[test]
fn distances_are_exact_in_long_images() {
    let mut image = vec![0u8; 60_000];
    image[0] = 1;
    let mut distances = DistanceTransform::default();
    for width in [1, image.len()] {
        distances.compute(&image, width, 1);
        assert_eq!(distances.squared_at(image.len() - 1, u64::MAX), Some(59_999 * 59_999));
    }
}
