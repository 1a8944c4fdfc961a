//! Confusion matrices, by hand and against scikit-learn (`scripts/fixtures/measures.py`).

use serde::Deserialize;
use stratus_measures::{ConfusionMatrix, MeasureError};

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

fn near(what: &str, got: Option<f64>, expected: Option<f64>) {
    let agree = match (got, expected) {
        (Some(got), Some(expected)) => (got - expected).abs() < 1e-6,
        (got, expected) => got == expected,
    };
    assert!(agree, "{what}: {got:?} instead of {expected:?}");
}

#[test]
fn measures_are_those_of_scikit_learn() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../fixtures/measures.json")).unwrap();
    assert_eq!(cases.len(), 7);
    for case in cases {
        let mut matrix = ConfusionMatrix::new(case.classes);
        matrix.add(&case.labels, &case.predictions).unwrap();
        assert_eq!(Vec::<Vec<u64>>::from(matrix.clone()), case.confusion, "{}", case.name);
        near(&case.name, matrix.accuracy(), Some(case.accuracy));
        near(&case.name, matrix.mean_accuracy(), Some(case.mean_accuracy));
        near(&case.name, matrix.mean_iou(), Some(case.miou));
        near(&case.name, matrix.weighted_iou(), Some(case.weighted_iou));
        for class in 0..case.classes {
            let what = format!("{}, class {class}", case.name);
            near(&what, matrix.class_accuracy(class), case.class_accuracy[class]);
            near(&what, matrix.class_precision(class), case.class_precision[class]);
            near(&what, matrix.class_iou(class), case.class_iou[class]);
        }
    }
}

#[test]
fn by_hand() {
    let mut matrix = ConfusionMatrix::new(4);
    // Class 2 is predicted and does not occur, class 3 neither.
    matrix.add(&[0, 0, 0, 1, 1, -1], &[0u8, 0, 1, 1, 2, 3]).unwrap();
    let rows: Vec<&[u64]> = matrix.rows().collect();
    assert_eq!(rows, [[2, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]);
    assert_eq!((matrix.total(), matrix.correct()), (5, 3));
    assert_eq!(
        (matrix.samples(0), matrix.samples(2), matrix.predicted(1), matrix.predicted(3)),
        (3, 0, 2, 0)
    );
    near("accuracy", matrix.accuracy(), Some(0.6));
    near("mean accuracy", matrix.mean_accuracy(), Some((2.0 / 3.0 + 0.5) / 2.0));
    let ious: Vec<_> = (0..4).map(|class| matrix.class_iou(class)).collect();
    assert_eq!(ious, [Some(2.0 / 3.0), Some(1.0 / 3.0), Some(0.0), None]);
    near("mean IoU", matrix.mean_iou(), Some(1.0 / 3.0));
    near("weighted IoU", matrix.weighted_iou(), Some((3.0 * 2.0 / 3.0 + 2.0 / 3.0) / 5.0));
    assert_eq!(matrix.class_precision(2), Some(0.0));
    assert_eq!(matrix.class_precision(3), None);
    // Beyond the classes there is nothing.
    assert_eq!((matrix.count(0, 4), matrix.count(4, 0), matrix.class_iou(4)), (0, 0, None));
}

#[test]
fn what_was_not_counted_has_no_measures() {
    let mut matrix = ConfusionMatrix::new(3);
    matrix.add(&[-1, i32::MIN], &[0u16, 2]).unwrap();
    matrix.add::<u8>(&[], &[]).unwrap();
    let overall = [matrix.accuracy(), matrix.mean_accuracy(), matrix.mean_iou(), matrix.weighted_iou()];
    assert_eq!(overall, [None; 4]);
    assert_eq!(ConfusionMatrix::new(0).rows().len(), 0);
    assert_eq!(ConfusionMatrix::new(0).mean_iou(), None);
}

#[test]
fn wrong_classes_are_named_and_nothing_is_counted() {
    let mut matrix = ConfusionMatrix::new(3);
    let label = matrix.add(&[0, 3], &[0u8, 1]).unwrap_err();
    assert_eq!(label, MeasureError::Label { label: 3, position: 1, classes: 3 });
    assert_eq!(
        label.to_string(),
        "label 3 at position 1 is out of range: there are 3 classes, 0 to 3-1; negative labels are ignored"
    );
    let prediction = matrix.add(&[0, 1], &[0, -1]).unwrap_err();
    assert_eq!(prediction, MeasureError::Prediction { prediction: -1, position: 1, classes: 3 });
    let ignored = matrix.add(&[-1], &[200u8]).unwrap_err();
    assert_eq!(ignored.to_string(), "prediction 200 at position 0 is out of range: there are 3 classes");
    let lengths = matrix.add(&[0, 1], &[0u16]).unwrap_err();
    assert_eq!(lengths.to_string(), "there are 1 predictions for 2 labels; each label needs one");
    assert_eq!(
        matrix.merge(&ConfusionMatrix::new(2)).unwrap_err(),
        MeasureError::Classes { classes: 3, found: 2 }
    );
    assert_eq!(matrix.total(), 0);
}

#[test]
fn parts_add_up_and_come_back() {
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
    assert!(damaged.contains("row 1 of a confusion matrix of 2 classes has 1 counts"), "{damaged}");
    whole.clear();
    assert_eq!(whole, ConfusionMatrix::new(3));
}
