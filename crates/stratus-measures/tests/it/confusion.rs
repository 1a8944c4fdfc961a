//! Confusion matrices computed by hand, and compared with scikit-learn (`scripts/fixtures/measures.py`).

use serde::Deserialize;
use stratus_measures::{ConfusionMatrix, MetricError};

#[derive(Deserialize)]
struct Case {
    name: String,
    classes: usize,
    labels: Vec<i32>,
    predictions: Vec<i32>,
    confusion: Vec<Vec<u64>>,
    accuracy: f64,
    class_accuracy: Vec<Option<f64>>,
    class_precision: Vec<Option<f64>>,
    class_iou: Vec<Option<f64>>,
    mean_accuracy: f64,
    miou: f64,
    weighted_iou: f64,
}

fn assert_near(context: &str, got: Option<f64>, expected: Option<f64>) {
    let agree = match (got, expected) {
        (Some(got), Some(expected)) => (got - expected).abs() < 1e-6,
        (got, expected) => got == expected,
    };
    assert!(agree, "{context}: {got:?} instead of {expected:?}");
}

#[test]
fn metrics_match_scikit_learn() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../fixtures/measures.json")).unwrap();
    assert_eq!(cases.len(), 7);
    for case in cases {
        let mut matrix = ConfusionMatrix::new(case.classes);
        matrix.add(&case.labels, &case.predictions).unwrap();
        assert_eq!(Vec::<Vec<u64>>::from(matrix.clone()), case.confusion, "{}", case.name);
        assert_near(&case.name, matrix.accuracy(), Some(case.accuracy));
        assert_near(&case.name, matrix.mean_accuracy(), Some(case.mean_accuracy));
        assert_near(&case.name, matrix.mean_iou(), Some(case.miou));
        assert_near(&case.name, matrix.weighted_iou(), Some(case.weighted_iou));
        for class in 0..case.classes {
            let context = format!("{}, class {class}", case.name);
            assert_near(&context, matrix.class_accuracy(class), case.class_accuracy[class]);
            assert_near(&context, matrix.class_precision(class), case.class_precision[class]);
            assert_near(&context, matrix.class_iou(class), case.class_iou[class]);
        }
    }
}

#[test]
fn computes_metrics_by_hand() {
    let mut matrix = ConfusionMatrix::new(4);
    // Class 2 is predicted but does not occur; class 3 neither occurs nor is predicted.
    matrix.add(&[0, 0, 0, 1, 1, -1], &[0u8, 0, 1, 1, 2, 3]).unwrap();
    let rows: Vec<&[u64]> = matrix.rows().collect();
    assert_eq!(rows, [[2, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]);
    assert_eq!((matrix.total(), matrix.correct()), (5, 3));
    assert_eq!(
        (matrix.truth_count(0), matrix.truth_count(2), matrix.predicted_count(1), matrix.predicted_count(3)),
        (3, 0, 2, 0)
    );
    assert_near("accuracy", matrix.accuracy(), Some(0.6));
    assert_near("mean accuracy", matrix.mean_accuracy(), Some((2.0 / 3.0 + 0.5) / 2.0));
    let ious: Vec<_> = (0..4).map(|class| matrix.class_iou(class)).collect();
    assert_eq!(ious, [Some(2.0 / 3.0), Some(1.0 / 3.0), Some(0.0), None]);
    assert_near("mean IoU", matrix.mean_iou(), Some(1.0 / 3.0));
    assert_near("weighted IoU", matrix.weighted_iou(), Some((3.0 * 2.0 / 3.0 + 2.0 / 3.0) / 5.0));
    assert_eq!(matrix.class_precision(2), Some(0.0));
    assert_eq!(matrix.class_precision(3), None);
    // Classes out of range have no counts.
    assert_eq!((matrix.count(0, 4), matrix.count(4, 0), matrix.class_iou(4)), (0, 0, None));
}

#[test]
fn metrics_without_counts_are_none() {
    let mut matrix = ConfusionMatrix::new(3);
    matrix.add(&[-1, i32::MIN], &[0u16, 2]).unwrap();
    matrix.add::<u8>(&[], &[]).unwrap();
    let overall = [matrix.accuracy(), matrix.mean_accuracy(), matrix.mean_iou(), matrix.weighted_iou()];
    assert_eq!(overall, [None; 4]);
    assert_eq!(ConfusionMatrix::new(0).rows().len(), 0);
    assert_eq!(ConfusionMatrix::new(0).mean_iou(), None);
}

#[test]
fn rejects_classes_out_of_range_without_counting() {
    let mut matrix = ConfusionMatrix::new(3);
    let label = matrix.add(&[0, 3], &[0u8, 1]).unwrap_err();
    assert_eq!(label, MetricError::LabelOutOfRange { label: 3, position: 1, classes: 3 });
    assert_eq!(
        label.to_string(),
        "label 3 at position 1 is out of range: there are 3 classes, 0 to 3-1; negative labels are ignored"
    );
    let prediction = matrix.add(&[0, 1], &[0, -1]).unwrap_err();
    assert_eq!(prediction, MetricError::PredictionOutOfRange { prediction: -1, position: 1, classes: 3 });
    let ignored = matrix.add(&[-1], &[200u8]).unwrap_err();
    assert_eq!(ignored.to_string(), "prediction 200 at position 0 is out of range: there are 3 classes");
    let lengths = matrix.add(&[0, 1], &[0u16]).unwrap_err();
    assert_eq!(lengths.to_string(), "expected 2 predictions, one per label, found 1");
    assert_eq!(
        matrix.merge(&ConfusionMatrix::new(2)).unwrap_err(),
        MetricError::ClassCountMismatch { classes: 3, found: 2 }
    );
    assert_eq!(matrix.total(), 0);
}

#[test]
fn merged_matrices_survive_serialisation() {
    let (mut first, mut second, mut whole) =
        (ConfusionMatrix::new(3), ConfusionMatrix::new(3), ConfusionMatrix::new(3));
    first.add(&[0, 1, 2], &[0u8, 2, 2]).unwrap();
    second.add(&[2, -1], &[1u8, 0]).unwrap();
    whole.add(&[0, 1, 2, 2, -1], &[0u8, 2, 2, 1, 0]).unwrap();
    first.merge(&second).unwrap();
    assert_eq!(first, whole);
    let text = serde_json::to_string(&whole).unwrap();
    assert_eq!(text, "[[1,0,0],[0,0,1],[0,1,1]]");
    assert_eq!(serde_json::from_str::<ConfusionMatrix>(&text).unwrap(), whole);
    let damaged = serde_json::from_str::<ConfusionMatrix>("[[1,0],[1]]").unwrap_err().to_string();
    assert!(damaged.contains("row 1 of the confusion matrix has 1 counts, expected 2"), "{damaged}");
    whole.clear();
    assert_eq!(whole, ConfusionMatrix::new(3));
}
