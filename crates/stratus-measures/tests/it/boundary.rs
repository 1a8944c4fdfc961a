//! Boundary F1 computed by hand, and compared with the definition pixel by pixel.

use proptest::prelude::*;
use stratus_measures::{
    BoundaryMatches, BoundaryScore, BoundaryWorkspace, ConfusionMatrix, MetricError, Tolerance,
};

use stratus_testing::allocator::requests;

use super::distance::squared;

/// The pixels of a class with a neighbour of another class, or at the edge of the image.
fn boundary(image: &[i32], [height, width]: [usize; 2], class: i32) -> Vec<usize> {
    let has_class = |row: isize, column: isize| {
        let inside = row >= 0 && column >= 0 && row < height as isize && column < width as isize;
        inside && image[row as usize * width + column as usize] == class
    };
    let on_boundary = |&pixel: &usize| {
        let (row, column) = ((pixel / width) as isize, (pixel % width) as isize);
        let around = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)];
        image[pixel] == class && around.iter().any(|&(row, column)| !has_class(row, column))
    };
    (0..image.len()).filter(on_boundary).collect()
}

/// The precision, recall and F1 of a class by the definition.
fn score(truth: &[i32], predicted: &[i32], size: [usize; 2], class: i32, tolerance: f64) -> [Option<f64>; 3] {
    let (truth, predicted) = (boundary(truth, size, class), boundary(predicted, size, class));
    let share = |pixels: &[usize], others: &[usize]| {
        let found = |&&pixel: &&usize| {
            others.iter().any(|&other| (squared(size[1], pixel, other) as f64).sqrt() <= tolerance)
        };
        (!pixels.is_empty()).then(|| pixels.iter().filter(found).count() as f64 / pixels.len() as f64)
    };
    let (precision, recall) = (share(&predicted, &truth), share(&truth, &predicted));
    let f1 = match (precision, recall) {
        (None, None) => None,
        (Some(p), Some(r)) if p + r > 0.0 => Some(2.0 * p * r / (p + r)),
        _ => Some(0.0),
    };
    [precision, recall, f1]
}

fn near(got: Option<f64>, expected: Option<f64>) -> bool {
    match (got, expected) {
        (Some(got), Some(expected)) => (got - expected).abs() < 1e-6,
        (got, expected) => got == expected,
    }
}

/// The size, labels and predictions of an image with 4 classes, in blocks of pixels so that classes have
/// interior pixels.
fn images() -> impl Strategy<Value = ([usize; 2], Vec<i32>, Vec<i32>)> {
    (1usize..12, 1usize..12, 1usize..4).prop_flat_map(|(height, width, block)| {
        let spread = move |blocks: Vec<i32>| {
            let at = |pixel: usize| blocks[pixel / width / block * 12 + pixel % width / block];
            (0..height * width).map(at).collect::<Vec<_>>()
        };
        let labels = prop::collection::vec(-1i32..4, 144).prop_map(spread);
        let predictions = prop::collection::vec(0i32..4, 144).prop_map(spread);
        (Just([height, width]), labels, predictions)
    })
}

proptest! {
    #[test]
    fn scores_match_the_definition(
        several in prop::collection::vec(images(), 1..4),
        tolerance in prop_oneof![Just(0.0), Just(1.0), Just(2.0), 0.0..4.0],
    ) {
        let mut workspace = BoundaryWorkspace::default();
        let mut total = BoundaryScore::with_tolerance(5, Tolerance::Pixels(tolerance));
        let mut expected = vec![Vec::new(); 5];
        for (size, labels, predictions) in several {
            let kept: Vec<i32> =
                labels.iter().zip(&predictions).map(|(&l, &p)| if l < 0 { -1 } else { p }).collect();
            total.add(&labels, &predictions, size, &mut workspace).unwrap();
            let found =
                workspace.compare(&labels, &predictions, size, 5, Tolerance::Pixels(tolerance)).unwrap();
            for class in 0..5 {
                let [precision, recall, f1] = score(&labels, &kept, size, class as i32, tolerance);
                prop_assert_eq!(found[class].precision(), precision);
                prop_assert_eq!(found[class].recall(), recall);
                prop_assert!(near(found[class].f1(), f1));
                expected[class].extend(f1);
            }
        }
        let mean = |values: &[f64]| {
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        for (class, scores) in expected.iter().enumerate() {
            prop_assert_eq!(total.images(class), scores.len() as u64);
            prop_assert!(near(total.class(class), mean(scores)));
        }
        let classes: Vec<f64> = expected.iter().filter_map(|scores| mean(scores)).collect();
        prop_assert!(near(total.mean(), mean(&classes)));
    }

    #[test]
    fn scores_do_not_depend_on_the_order_of_images(several in prop::collection::vec(images(), 2..6)) {
        let mut workspace = BoundaryWorkspace::default();
        let mut forwards = BoundaryScore::with_tolerance(4, Tolerance::Pixels(1.5));
        let mut parts = Vec::new();
        for (size, labels, predictions) in &several {
            forwards.add(labels, predictions, *size, &mut workspace).unwrap();
            let mut part = BoundaryScore::with_tolerance(4, Tolerance::Pixels(1.5));
            part.add(labels, predictions, *size, &mut workspace).unwrap();
            parts.push(part);
        }
        let mut backwards = BoundaryScore::with_tolerance(4, Tolerance::Pixels(1.5));
        for part in parts.iter().rev() {
            backwards.merge(part).unwrap();
        }
        prop_assert_eq!(&forwards, &backwards);
        let text = serde_json::to_string(&forwards).unwrap();
        prop_assert_eq!(serde_json::from_str::<BoundaryScore>(&text).unwrap(), forwards);
    }
}

#[test]
fn computes_scores_by_hand() {
    // A square of 2×2 is predicted a pixel to the right: 2 of its 4 pixels are on the true square.
    #[rustfmt::skip]
    let (truth, predicted) = (
        [0, 0, 0, 0,
         0, 1, 1, 0,
         0, 1, 1, 0,
         0, 0, 0, 0],
        [0u8, 0, 0, 0,
         0,   0, 1, 1,
         0,   0, 1, 1,
         0,   0, 0, 0],
    );
    let mut workspace = BoundaryWorkspace::default();
    let found = workspace.compare(&truth, &predicted, [4, 4], 3, Tolerance::Diagonal).unwrap();
    assert_eq!(found[1], BoundaryMatches { truth: 4, truth_matched: 2, predicted: 4, predicted_matched: 2 });
    // All pixels of class 0 are on its boundary; 10 of them match.
    assert_eq!(
        found[0],
        BoundaryMatches { truth: 12, truth_matched: 10, predicted: 12, predicted_matched: 10 }
    );
    assert_eq!((found[1].f1(), found[2].f1()), (Some(0.5), None));
    let within_one = workspace.compare(&truth, &predicted, [4, 4], 3, Tolerance::Pixels(1.0)).unwrap();
    assert_eq!(within_one[1].f1(), Some(1.0));
    let mut score = BoundaryScore::new(3);
    score.add(&truth, &predicted, [4, 4], &mut workspace).unwrap();
    // The class is missed in the second image, and does not occur in the third.
    score.add(&[1, 0], &[0u8, 0], [1, 2], &mut workspace).unwrap();
    score.add(&[0], &[0u8], [1, 1], &mut workspace).unwrap();
    assert_eq!((score.class(1), score.images(1), score.class(2)), (Some(0.25), 2, None));
}

#[test]
fn ignores_pixels_without_a_label() {
    let mut workspace = BoundaryWorkspace::default();
    // The prediction of an ignored pixel does not affect the score.
    for prediction in 0..3u8 {
        let found = workspace
            .compare(&[0, 0, -1, 1], &[0, 0, prediction, 1], [1, 4], 3, Tolerance::Diagonal)
            .unwrap();
        assert_eq!(found.iter().map(BoundaryMatches::f1).collect::<Vec<_>>(), [Some(1.0), Some(1.0), None]);
    }
    let mut score = BoundaryScore::new(2);
    score.add(&[-1; 6], &[1u8; 6], [2, 3], &mut workspace).unwrap();
    score.add::<u8>(&[], &[], [0, 7], &mut workspace).unwrap();
    assert_eq!(score, BoundaryScore::new(2));
    assert_eq!((score.class(0), score.mean()), (None, None));
}

#[test]
fn adds_images_without_allocations() {
    let (labels, predictions) = (vec![0, 1, 1, -1, 0, 1], vec![0u16, 1, 0, 1, 1, 1]);
    let mut workspace = BoundaryWorkspace::default();
    let (mut score, mut matrix) = (BoundaryScore::new(2), ConfusionMatrix::new(2));
    // In the second round, the number of pixels is the same, but boundaries are longer.
    for (round, size) in [[2, 3], [1, 6]].into_iter().enumerate() {
        let before = requests();
        score.add(&labels, &predictions, size, &mut workspace).unwrap();
        matrix.add(&labels, &predictions).unwrap();
        assert_eq!(requests() > before, round == 0);
    }
}

#[test]
fn converts_tolerances_to_squared_distances() {
    // Diagonals of 600, 400 and 5 pixels give 4.5, 3 and 0.0375.
    assert_eq!(Tolerance::Diagonal.max_squared_distance([360, 480]), 20);
    assert_eq!(Tolerance::Diagonal.max_squared_distance([240, 320]), 9);
    assert_eq!(Tolerance::Diagonal.max_squared_distance([3, 4]), 0);
    assert_eq!(Tolerance::Pixels(4.5).max_squared_distance([3, 4]), 20);
    assert_eq!(Tolerance::Pixels(-1.0).max_squared_distance([3, 4]), 0);
    assert_eq!(Tolerance::Pixels(f64::NAN).max_squared_distance([3, 4]), 0);
}

#[test]
fn rejects_mismatched_sizes_and_limits() {
    let mut workspace = BoundaryWorkspace::default();
    let mut score = BoundaryScore::new(2);
    let image = score.add(&[0, 1, 0], &[0u8, 1, 0], [2, 2], &mut workspace).unwrap_err();
    assert_eq!(image.to_string(), "expected 2×2 labels, one per pixel, found 3");
    let label = score.add(&[0, 2], &[0u8, 1], [1, 2], &mut workspace).unwrap_err();
    assert_eq!(label, MetricError::LabelOutOfRange { label: 2, position: 1, classes: 2 });
    let overflow = score.add(&[0], &[0u8], [usize::MAX, 2], &mut workspace).unwrap_err();
    assert!(matches!(overflow, MetricError::ImageSizeMismatch { .. }));
    let high = vec![0; 65_536];
    let limit = score.add(&high, &high, [65_536, 1], &mut workspace).unwrap_err();
    assert_eq!(limit.to_string(), "65536 rows exceed the limit of 65535 for boundary F1");
    assert_eq!(
        score.merge(&BoundaryScore::new(3)).unwrap_err().to_string(),
        "cannot add counts of 3 classes to counts of 2 classes"
    );
    let other = BoundaryScore::with_tolerance(2, Tolerance::Pixels(1.0));
    assert_eq!(score.merge(&other), Err(MetricError::ToleranceMismatch));
    assert_eq!(score, BoundaryScore::new(2));
}
