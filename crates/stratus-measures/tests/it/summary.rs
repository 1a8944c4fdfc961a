//! The names under which measures are stored.

use stratus_measures::{
    BoundaryScore, BoundaryWorkspace, ClassificationMeasures, ConfusionMatrix, MeasureError,
    SegmentationMeasures,
};

#[test]
fn a_segmentation_is_stored_by_the_names_of_its_files() {
    let (labels, predictions) = ([0, 0, 1, -1], [0u8, 0, 0, 1]);
    let mut pixels = ConfusionMatrix::new(3);
    pixels.add(&labels, &predictions).unwrap();
    let mut boundaries = BoundaryScore::new(3);
    boundaries.add(&labels, &predictions, [2, 2], &mut BoundaryWorkspace::default()).unwrap();
    let name = |class: usize| ["sky", "road", "car"][class].to_owned();
    let measures = SegmentationMeasures::new(&pixels, Some(&boundaries), name).unwrap();
    let found = serde_json::to_value(&measures).unwrap();
    let third = 2.0 / 3.0;
    let (accuracy, bf) = (found["accuracy"].as_f64().unwrap(), found["classes"][0]["bf"].as_f64().unwrap());
    assert!((accuracy - third).abs() < 1e-12);
    // Precision 2/3, recall 1.
    assert!((bf - 0.8).abs() < 1e-9);
    assert_eq!(found["mean_accuracy"], 0.5);
    assert_eq!(found["miou"], third / 2.0);
    assert!(found["weighted_iou"].is_f64() && found["bf"].is_f64());
    assert_eq!(
        serde_json::to_string(&measures.classes[1..]).unwrap(),
        r#"[{"class":1,"name":"road","samples":1,"accuracy":0.0,"iou":0.0,"bf":0.0},"#.to_owned()
            + r#"{"class":2,"name":"car","samples":0,"accuracy":null,"iou":null,"bf":null}]"#
    );
    assert_eq!(serde_json::from_value::<SegmentationMeasures>(found).unwrap(), measures);
    let without = SegmentationMeasures::new(&pixels, None, name).unwrap();
    assert_eq!((without.bf, without.classes[0].bf), (None, None));
    let other = SegmentationMeasures::new(&pixels, Some(&BoundaryScore::new(2)), name);
    assert_eq!(other, Err(MeasureError::Classes { classes: 3, found: 2 }));
}

#[test]
fn a_classification_has_no_boundaries() {
    let mut images = ConfusionMatrix::new(2);
    images.add(&[0, 0, 1, 1], &[0u8, 1, 1, 1]).unwrap();
    let measures = ClassificationMeasures::new(&images, Some(4), |class| format!("class {class}"));
    assert_eq!((measures.top1, measures.top5, measures.mean_accuracy), (Some(0.75), Some(1.0), Some(0.75)));
    assert_eq!(measures.classes[0].accuracy, Some(0.5));
    assert_eq!(measures.classes[0].bf, None);
    let empty = ClassificationMeasures::new(&ConfusionMatrix::new(1), Some(0), |_| String::new());
    assert_eq!((empty.top1, empty.top5, empty.mean_accuracy), (None, None, None));
    assert_eq!(ClassificationMeasures::new(&images, None, |_| String::new()).top5, None);
}
